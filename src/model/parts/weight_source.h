#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "dendrite/compatibility.h"
#include "io/checkpoint.h"

namespace dendrite {

/// The norms around a product, by their tensors' names. Empty: there is none.
struct NormNames {
  std::string before{};
  std::string q{}, k{};  // of the heads that it gives
  std::int64_t head_dim = 0, rotary_dim = 0;
  bool zero_centred = false;  // a weight is 1 + what is stored
};

/// What becomes of a number that is stored; null: nothing.
using Change = float (*)(float stored);
inline float plus_one(float stored) {
  return 1 + stored;
}
/// Of norms.
inline Change change_of(bool zero_centred) {
  return zero_centred ? plus_one : nullptr;
}

/// Where the weights of a model come from, tensor by tensor, and what has come.
class WeightSource {
 public:
  /// What a walk over a model's tensors does with each: look at names, shapes and types only; judge
  /// products, too; read and pack; or make up random ones.
  enum class Walk : std::uint8_t { kCheck, kJudge, kRead, kRandom };

  /// `checkpoint`: null for Walk::kRandom. keeps_fp8_inputs: products with weights in FP8 are as if
  /// these were plain. rounds_block_inputs: see StoredMatrix::rounds_inputs.
  WeightSource(Walk walk, const Checkpoint* checkpoint, Backend& backend,
               bool keeps_fp8_inputs = false, bool rounds_block_inputs = false)
      : walk_(walk),
        checkpoint_(checkpoint),
        backend_(backend),
        keeps_fp8_inputs_(keeps_fp8_inputs),
        rounds_block_inputs_(rounds_block_inputs) {}

  /// Of a tensor's rows, as they are stored: so many of `all`, from this one on.
  struct Range {
    std::int64_t all = 0;
    std::int64_t first = 0;
  };
  struct Part {
    std::string name;
    std::int64_t rows;  // of a vector: values
    /// Where a tensor's rows are in turns so many of several kinds: these, and which kind is meant.
    std::vector<std::int64_t> turns{};
    std::size_t kind = 0;
    /// Where a tensor's rows are heads of so many, in `rotated` of which, behind `unrotated`
    /// others, the pairs that RoPE turns lie beside each other.
    std::int64_t head = 0;
    std::int64_t unrotated = 0;
    std::int64_t rotated = 0;
    std::optional<Range> range{};       // of a matrix
    std::vector<std::int64_t> shape{};  // of a vector's tensor where it is not [rows]
    std::optional<Slice> slice{};       // the tensor holds several such matrices or vectors
    bool transposed = false;            // of a matrix: the tensor holds its columns as rows
    bool output = false;                // gives the logits
    bool mxfp4 = false;                 // of a matrix of an expert: random ones are
  };
  /// Matrices of `cols` columns, stacked along rows, and vectors, one after the other. Null in
  /// walks that pack nothing. Throw Error naming the tensor and its file. A product that `norms`
  /// make incompatible with inputs that are rounded (ProductFit) gets a weight that rounds none.
  /// `split`: of the stacked matrix, or of what the vectors are added to.
  std::unique_ptr<Weight> matrix(const std::vector<Part>& parts, std::int64_t cols,
                                 const NormNames& norms = {}, bool of_expert = false,
                                 const Split& split = {});
  std::unique_ptr<Buffer> vector(const std::vector<Part>& parts, float dummy_value,
                                 Change change = nullptr, const Split& split = {});

  /// A vector of so many ones, which no file has. Null as above.
  std::unique_ptr<Buffer> ones(std::int64_t count);
  /// The one value of a tensor [1].
  float scalar(const std::string& name) { return numbers({name, 1}, 1.0F, nullptr).front(); }

  const Checkpoint* checkpoint() const { return checkpoint_; }
  std::int64_t parameters() const { return parameters_; }
  std::int64_t size_bytes() const { return size_bytes_; }  // on the device
  /// Of the products behind norms: of all in a walk that judges, else of those whose inputs would
  /// be rounded.
  const Compatibility& compatibility() const { return compatibility_; }

 private:
  std::vector<StoredMatrix> stored(const Part& part, std::int64_t cols) const;
  void judge(std::vector<StoredMatrix>& matrices, const NormNames& norms);
  /// Of the part's tensor, all slices of it.
  std::vector<float> numbers(const Part& part, float dummy_value, Change change) const;

  Walk walk_;
  const Checkpoint* checkpoint_;
  Backend& backend_;
  bool keeps_fp8_inputs_;
  bool rounds_block_inputs_;
  std::uint64_t seed_ = 0;
  std::int64_t parameters_ = 0;
  std::set<std::pair<std::string, std::int64_t>>
      vectors_;  // that are in parameters_: tensor, number
  std::int64_t size_bytes_ = 0;
  Compatibility compatibility_;
};

}  // namespace dendrite
