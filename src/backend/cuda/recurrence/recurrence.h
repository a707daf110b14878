#pragma once

#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/base/pass_arrays.h"
#include "backend/cuda/base/scratch.h"
#include "backend/cuda/base/staging.h"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/mamba.h"
#include "backend/cuda/recurrence/short_conv.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Recurrent layers: the plan of a pass, in the order in which a GPU may go over it, and their ops.
class Recurrence {
 public:
  /// recordable_rows: of the longest pass that may be recorded.
  Recurrence(Device& device, Staging& staging, Passes& passes, std::int64_t recordable_rows)
      : device_(device),
        staging_(staging),
        recordable_rows_(recordable_rows),
        values_(device, passes),
        pieces_(device, passes) {}

  /// A pass, while it lives: its plan is put in order once.
  class Pass {
   public:
    Pass(Recurrence& recurrence, const RecurrencePlan* plan) : recurrence_(recurrence) {
      if (plan != nullptr) recurrence_.level(*plan);
      recurrence_.of_pass_ = plan;
    }
    ~Pass() { recurrence_.of_pass_ = nullptr; }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Recurrence& recurrence_;
  };

  /// Of the pass that there is: what of its plan a recording holds fixed.
  std::int64_t runs() const { return std::ssize(runs_); }
  std::int64_t levels() const { return levels_; }
  bool has_one_row() const { return has_one_row_; }
  /// The arrays that ops of the pass stage.
  void declare(PassArrays& arrays) const { stage(arrays); }

  /// Both throw Error naming sizes that the GPU's shared memory does not take.
  void delta_net(const DeltaNet& args);
  void mamba(const Mamba& args);
  void short_conv(const ShortConv& args);
  void gate(const Rows& out, const Tensor& x, const Tensor& gate);
  void squared_relu(const Tensor& x);

 private:
  struct Staged {  // on the device
    const LeveledRun* runs;
    const std::int32_t* journals;
    const std::int32_t* known;
    const std::int32_t* anchors;
    const std::int32_t* piece_runs;
  };
  template <typename Stages>
  Staged stage(Stages& stages) const {
    return {stages.stage(std::span(runs_)), stages.stage(std::span(journals_)),
            stages.stage(std::span(known_)), stages.stage(std::span(anchors_)),
            stages.stage(std::span(piece_runs_))};
  }
  /// Of all kinds' launches: where the layer keeps states, and the runs.
  RunPlaces places(const StateStore& states, std::int64_t layer, const Staged& staged) const;
  /// Of a run in a pass of so many rows. (A recording holds for other plans: of its rows all may be
  /// of one run.)
  std::int32_t most_rows(std::int64_t rows) const {
    return has_one_row_ ? 1 : static_cast<std::int32_t>(rows);
  }
  void check_shared(const char* op, std::int64_t bytes, const std::string& heads) const;
  void level(const RecurrencePlan& plan);
  void grow_values(std::int64_t size_bytes);
  /// Of runs of so many rows together: one ends and begins anywhere in a chunk.
  std::int64_t most_pieces(std::int64_t rows) const { return rows / kChunkTokens + 2 * runs(); }
  /// By pieces, but for rows alone that have a kernel of their own. (What a recording holds fixed
  /// decides.)
  void cut(DeltaNetArguments& launch, std::int64_t rows);

  Device& device_;
  Staging& staging_;
  const std::int64_t recordable_rows_;
  Scratch values_;
  Scratch pieces_;
  // Of the last plan; each array is somewhere, also where it is empty.
  std::vector<LeveledRun> runs_;  // then such of no level, up to a power of two
  std::vector<std::int32_t> journals_;
  std::vector<std::int32_t> known_;
  std::vector<std::int32_t> anchors_;
  std::vector<std::int32_t> piece_runs_;  // each piece's run, then -1
  std::int32_t levels_ = 0;
  bool has_one_row_ = false;                 // each run, at most
  const RecurrencePlan* of_pass_ = nullptr;  // that `runs_` are of
};

}  // namespace dendrite::cuda
