#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/split.h"
#include "backend/weight.h"
#include "quant/format.h"

namespace dendrite::group {

/// A rank's part of a tensor whose columns the ranks share, packed where the whole one lies.
inline Tensor part_of(const Tensor& whole, std::int64_t ranks) {
  return {whole.data, whole.rows, whole.cols / ranks, whole.stride / ranks};
}

/// A weight of which every device has all, or each of so many ranks its share.
class GroupWeight final : public Weight {
 public:
  GroupWeight(std::vector<std::unique_ptr<Weight>> held, Split::Of shared)
      : held_(std::move(held)), shared_(shared) {}

  std::int64_t rows() const override {
    const bool parts = shared_ == Split::Of::kOutputs || shared_ == Split::Of::kLogits;
    return held_.front()->rows() * (parts ? std::ssize(held_) : 1);
  }
  std::int64_t cols() const override {
    return held_.front()->cols() * (shared_ == Split::Of::kInputs ? std::ssize(held_) : 1);
  }
  std::int64_t size_bytes() const override {
    return std::accumulate(
        held_.begin(), held_.end(), std::int64_t{0},
        [](std::int64_t sum, const auto& weight) { return sum + weight->size_bytes(); });
  }
  /// Where inputs are shared: the rows of the first rank's part.
  Rows input(Tensor scratch) const override {
    if (shared_ == Split::Of::kInputs) scratch = part_of(scratch, std::ssize(held_));
    return held_.front()->input(scratch);
  }

  Split::Of shared() const { return shared_; }
  /// A rank's share, or what a device has where nothing is shared.
  const Weight& at(std::size_t number) const { return *held_[number]; }

 private:
  std::vector<std::unique_ptr<Weight>> held_;
  Split::Of shared_;
};

/// A rank's rows of something that has `runs` rows of several kinds: [begin, end) of each kind.
std::vector<std::pair<std::int64_t, std::int64_t>> rows_on(std::span<const std::int64_t> runs,
                                                           std::size_t rank, std::size_t ranks);

/// A rank's share of matrices that are stacked: views of them, which live as long as this.
class SharedParts {
 public:
  SharedParts(std::span<const StoredMatrix> parts, const Split& split, std::size_t rank,
              std::size_t ranks);
  ~SharedParts();
  std::span<const StoredMatrix> views() const { return views_; }

 private:
  struct Cuts;
  std::unique_ptr<Cuts> cuts_;
  std::vector<StoredMatrix> views_;
};

}  // namespace dendrite::group
