#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "io/checkpoint.h"

namespace dendrite {

/// Where the weights of a model come from, tensor by tensor, and what has come.
class WeightSource {
 public:
  /// What a walk over a model's tensors does with each: look at names, shapes and types only, read
  /// and pack, or make up random ones.
  enum class Walk : std::uint8_t { kCheck, kRead, kRandom };

  /// `checkpoint`: null for Walk::kRandom.
  WeightSource(Walk walk, const Checkpoint* checkpoint, Backend& backend)
      : walk_(walk), checkpoint_(checkpoint), backend_(backend) {}

  struct Part {
    std::string name;
    std::int64_t rows;
  };
  /// Matrices of `cols` columns, stacked along rows, and vectors, one after the other. Null in a
  /// walk that only checks. Throw Error naming the tensor and its file.
  std::unique_ptr<Weight> matrix(const std::vector<Part>& parts, std::int64_t cols);
  std::unique_ptr<Buffer> vector(const std::vector<Part>& parts, float dummy_value);

  const Checkpoint* checkpoint() const { return checkpoint_; }
  std::int64_t parameters() const { return parameters_; }
  std::int64_t size_bytes() const { return size_bytes_; }  // on the device

 private:
  void append(const Part& part, float dummy_value, std::vector<float>& values) const;

  Walk walk_;
  const Checkpoint* checkpoint_;
  Backend& backend_;
  std::uint64_t seed_ = 0;
  std::int64_t parameters_ = 0;
  std::int64_t size_bytes_ = 0;
};

}  // namespace dendrite
