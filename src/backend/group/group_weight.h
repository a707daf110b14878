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

/// A weight of which every rank has all, or its share.
class GroupWeight final : public Weight {
 public:
  GroupWeight(std::vector<std::unique_ptr<Weight>> of_ranks, Split::Of shared)
      : of_ranks_(std::move(of_ranks)), shared_(shared) {}

  std::int64_t rows() const override {
    const bool parts = shared_ == Split::Of::kOutputs || shared_ == Split::Of::kLogits;
    return of_ranks_.front()->rows() * (parts ? ranks() : 1);
  }
  std::int64_t cols() const override {
    return of_ranks_.front()->cols() * (shared_ == Split::Of::kInputs ? ranks() : 1);
  }
  std::int64_t size_bytes() const override {
    return std::accumulate(
        of_ranks_.begin(), of_ranks_.end(), std::int64_t{0},
        [](std::int64_t sum, const auto& weight) { return sum + weight->size_bytes(); });
  }
  /// Where inputs are shared: the rows of rank 0's part.
  Rows input(Tensor scratch) const override {
    if (shared_ == Split::Of::kInputs) scratch = part_of(scratch, ranks());
    return of_ranks_.front()->input(scratch);
  }

  Split::Of shared() const { return shared_; }
  const Weight& on(std::size_t rank) const { return *of_ranks_[rank]; }

 private:
  std::int64_t ranks() const { return std::ssize(of_ranks_); }

  std::vector<std::unique_ptr<Weight>> of_ranks_;
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
