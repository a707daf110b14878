#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "test_support.h"

// Stores of a recurrent layer, and branches over them, for any kind of such a layer. No test
// framework here: kernels_selftest.cpp uses it too.
namespace dendrite::testing_support {

/// A path as the owner of the stores knows it.
struct RecurrentBranch {
  std::vector<std::int64_t> rows;      // of RecurrenceFixture::in, from position 0 on
  std::int32_t anchor = -1;            // before the journals
  std::vector<std::int32_t> journals;  // up to a whole chunk of them
};

/// `Op`: arguments of the op, DeltaNet and their like.
template <class Op>
class RecurrenceFixture {
 public:
  static constexpr std::int64_t kLayers = 2;
  static constexpr std::int64_t kLayer = 1;  // the one that runs

  RecurrenceFixture(Backend& backend, const Op& op, std::uint32_t seed)
      : op_(op), random_(seed), backend_(backend) {
    op_.layer = kLayer;
    clear_states();
  }
  virtual ~RecurrenceFixture() = default;
  RecurrenceFixture(const RecurrenceFixture&) = delete;
  RecurrenceFixture& operator=(const RecurrenceFixture&) = delete;

  const Op& op() const { return op_; }
  StateStore& states() { return *states_; }
  std::int64_t width() const { return op_.in_columns(); }
  std::int64_t out_width() const { return op_.out_columns(); }

  void clear_states() {
    states_ = backend_.make_state_store(
        {kLayers, op_.anchor_values(), op_.journal_values(), kAnchors, kJournals});
    anchors_used_ = journals_used_ = 0;
  }

  /// New rows of input; the first one's number.
  std::int64_t make_rows(std::int64_t count) {
    const std::int64_t first = std::ssize(in) / width();
    const std::vector<float> made = random_rows(count);
    in.insert(in.end(), made.begin(), made.end());
    out.resize(static_cast<std::size_t>((first + count) * out_width()), kNan);
    return first;
  }

  enum class Keep : std::uint8_t { kAll, kNothing };
  /// Plans rows [first, first + count) of `in` behind a branch, which they become part of. With
  /// kAll, of the states behind chunks the last one alone is kept if it can be, or all: `eager`.
  void add(RecurrentBranch& branch, std::int64_t first, std::int64_t count, Keep keep = Keep::kAll,
           bool eager = true) {
    RecurrencePlan::Run run;
    run.row_begin = static_cast<std::int32_t>(planned_.size());
    run.row_end = static_cast<std::int32_t>(run.row_begin + count);
    run.first_position = std::ssize(branch.rows);
    run.anchor = branch.anchor;
    run.known = static_cast<std::int32_t>(branch.journals.size());
    run.known_begin = static_cast<std::int32_t>(plan.known.size());
    run.anchors_begin = static_cast<std::int32_t>(plan.anchors.size());
    plan.known.insert(plan.known.end(), branch.journals.begin(), branch.journals.end());
    for (std::int64_t i = 0; i < count; ++i) {
      planned_.push_back(first + i);
      branch.rows.push_back(first + i);
      plan.journals.push_back(keep == Keep::kAll ? journals_used_++ : -1);
    }
    const std::int64_t position = std::ssize(branch.rows);
    // Without a state behind a chunk that ends with the run, its journals stay what is known.
    const bool lazy = count > 0 && position % kChunkTokens == 0 && !eager;
    const std::int64_t ended = RecurrencePlan::chunks_ended(run);
    for (std::int64_t i = 0; i < ended; ++i) {
      const bool last = i + 1 == ended;
      const bool kept = keep == Keep::kAll && (last ? !lazy : eager || (lazy && i + 2 == ended));
      plan.anchors.push_back(kept ? anchors_used_++ : -1);
    }
    const std::int64_t made = lazy ? ended - 1 : ended;
    if (made > 0) {
      branch.anchor = plan.anchors[static_cast<std::size_t>(run.anchors_begin + made - 1)];
      branch.journals.clear();
    }
    const std::int64_t own =
        lazy ? kChunkTokens : position % kChunkTokens;  // journals of the chunk
    const std::int64_t missing = own - std::ssize(branch.journals);
    branch.journals.insert(branch.journals.end(), plan.journals.end() - missing,
                           plan.journals.end());
    plan.runs.push_back(run);
  }

  /// Runs what was planned, with rows of NaN behind as padding, and begins anew. False if padding
  /// or the other layer was touched.
  bool run() {
    const auto rows = std::ssize(planned_);
    const std::int64_t padding = 2;
    Owned input(backend_, rows + padding, width(), width() + 3);
    Owned output(backend_, rows + padding, out_width(), out_width() + 1);
    std::vector<float> values(static_cast<std::size_t>((rows + padding) * width()), kNan);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(in.begin() + planned_[static_cast<std::size_t>(i)] * width(), width(),
                  values.begin() + i * width());
    }
    input.set(backend_, values);
    Op args = op_;
    args.in = input.tensor;
    args.out = output.tensor;
    args.states = states_.get();
    args.plan = &plan;
    run_op(backend_, args);
    const std::vector<float> got = output.get(backend_);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(got.begin() + i * out_width(), out_width(),
                  out.begin() + planned_[static_cast<std::size_t>(i)] * out_width());
    }
    const bool clean = std::all_of(got.begin() + rows * out_width(), got.end(),
                                   [](float x) { return std::isnan(x) || x == 0; });
    planned_.clear();
    plan.clear();
    return clean;
  }

  std::vector<float> out_of(std::span<const std::int64_t> rows) const {
    std::vector<float> values;
    for (const std::int64_t row : rows) {
      const auto from = out.begin() + row * out_width();
      values.insert(values.end(), from, from + out_width());
    }
    return values;
  }
  /// The same rows in one run that keeps nothing.
  std::vector<float> replayed(std::span<const std::int64_t> rows) {
    const std::vector<float> before = out;
    RecurrentBranch branch;
    const std::int64_t first = std::ssize(in) / width();
    for (const std::int64_t row : rows) {
      for (std::int64_t i = 0; i < width(); ++i)
        in.push_back(in[static_cast<std::size_t>(row * width() + i)]);
    }
    out.resize(static_cast<std::size_t>(std::ssize(in) / width() * out_width()));
    add(branch, first, std::ssize(rows), Keep::kNothing, false);
    run();
    std::vector<float> values = out_of(branch.rows);
    in.resize(static_cast<std::size_t>(first * width()));
    out = before;
    return values;
  }
  std::vector<float> anchor(std::int32_t slot) const {
    std::vector<float> values(static_cast<std::size_t>(kLayers * op_.anchor_values()));
    states_->read_anchor(slot, values);
    return values;
  }

  std::vector<float> in;   // [rows][width]
  std::vector<float> out;  // [rows][out_width]
  RecurrencePlan plan;

 protected:
  virtual void run_op(Backend& backend, const Op& args) = 0;
  virtual std::vector<float> random_rows(std::int64_t count) {
    return random_.normal(count * width());
  }
  const float* to_device(std::span<const float> values) {
    buffers_.push_back(backend_.make_buffer(std::ssize(values)));
    backend_.upload(buffers_.back()->data(), values);
    return buffers_.back()->data();
  }
  /// What came in at a position of a path, column i; 0 before it.
  double input(std::span<const std::int64_t> rows, std::int64_t position, std::int64_t i) const {
    if (position < 0) return 0;
    return static_cast<double>(
        in[static_cast<std::size_t>(rows[static_cast<std::size_t>(position)] * width() + i)]);
  }
  template <class Number>
  static double at(const std::vector<Number>& values, std::int64_t i) {
    return static_cast<double>(values[static_cast<std::size_t>(i)]);
  }

  Op op_;
  Random random_;

 private:
  static constexpr std::int64_t kAnchors = 120;
  static constexpr std::int64_t kJournals = 2000;

  Backend& backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<StateStore> states_;
  std::int32_t anchors_used_ = 0;
  std::int32_t journals_used_ = 0;
  std::vector<std::int64_t> planned_;  // rows of `in`
};

}  // namespace dendrite::testing_support
