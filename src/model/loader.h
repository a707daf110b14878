#pragma once

#include <memory>
#include <utility>

#include "core/dtype.h"
#include "model/info.h"
#include "model/model.h"

namespace dendrite {

class Checkpoint;
class MtpHead;

/// A checkpoint's model before it is loaded: its config has been read, once for all that is asked
/// of it. Which family the model is of, and what configs of that family say, its loader alone
/// knows.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;

  const ModelInfo& info() const { return info_; }

  /// The number type of the weights: the embedding's own, as config.json can be wrong. Where the
  /// checkpoint has no weights, or the embedding is packed, what config.json says, else bf16.
  /// Throws Error naming the tensor when it is stored in no known format.
  virtual DType weight_dtype() const = 0;

  /// Throws Error naming the tensor and its file: missing, of another shape or type than the config
  /// says, or holding NaN or infinity.
  virtual std::unique_ptr<Model> load(Backend& backend, const ModelOptions& options) const = 0;
  /// The MTP head beside the model that load() made, see load_mtp_head (mtp_head.h).
  virtual std::unique_ptr<MtpHead> load_mtp(Model& model, Backend& backend,
                                            const ModelOptions& options,
                                            std::int64_t page_tokens) const = 0;
  /// Looks at all tensors that load() reads. Throws Error likewise, but for their values.
  virtual void check(Backend& backend) const = 0;
  /// How load() would have products behind norms multiplied. Reads some rows of each.
  virtual Compatibility judge(Backend& backend) const = 0;

 protected:
  explicit ModelLoader(ModelInfo info) : info_(std::move(info)) {}

 private:
  ModelInfo info_;
};

/// Reads config.json and, where there is one, generation_config.json. Throws Error naming file and
/// key: a wrong type or range, or something that is not supported. The checkpoint outlives
/// the loader.
std::unique_ptr<ModelLoader> make_loader(const Checkpoint& checkpoint);

}  // namespace dendrite
