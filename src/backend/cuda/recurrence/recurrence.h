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
#include "backend/cuda/recurrence/piece_order.h"
#include "backend/cuda/recurrence/short_conv.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Recurrent layers: the plan of a pass, in the order in which a GPU may go over it, and their ops.
class Recurrence {
 public:
  Recurrence(Device& device, Staging& staging, Passes& passes)
      : device_(device),
        staging_(staging),
        has_families_(delta_net_family_shared_bytes() <= device.shared_bytes()),
        values_(device, passes),
        records_(device, passes) {}

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
  Passes::Key::Recurrence fixed() const;
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
    OrderedPieces cut;
  };
  template <typename Stages>
  Staged stage(Stages& stages) const {
    return {stages.stage(std::span(runs_)), stages.stage(std::span(journals_)),
            stages.stage(std::span(known_)), stages.stage(std::span(anchors_)), cut(stages)};
  }
  template <typename Stages>
  OrderedPieces cut(Stages& stages) const {
    OrderedPieces out;
    if (has_one_row_) return out;
    out.runs = stages.stage(order_.runs());
    out.alone = order_.alone();
    out.known = stages.stage(order_.known());
    out.pieces = stages.stage(order_.pieces());
    out.count = static_cast<std::int32_t>(std::ssize(order_.pieces()));
    out.families = stages.stage(order_.families());
    out.family_count = static_cast<std::int32_t>(std::ssize(order_.families()));
    out.family_rows = stages.stage(order_.family_rows());
    return out;
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
  /// Whether it goes by pieces, but for rows alone, and then room for these. (What a recording
  /// holds fixed decides.)
  bool goes_by_pieces(DeltaNetArguments& launch, std::int64_t rows);
  void go_by_pieces(const DeltaNetArguments& launch);

  Device& device_;
  Staging& staging_;
  const bool has_families_;
  Scratch values_;
  Scratch records_;
  // Of the last plan; each array is somewhere, also where it is empty.
  std::vector<LeveledRun> runs_;  // then such of no level, up to a power of two
  std::vector<std::int32_t> journals_;
  std::vector<std::int32_t> known_;
  std::vector<std::int32_t> anchors_;
  std::int32_t levels_ = 0;
  bool has_one_row_ = false;                 // each run, at most
  PieceOrder order_;                         // where some have more
  const RecurrencePlan* of_pass_ = nullptr;  // that `runs_` are of
};

}  // namespace dendrite::cuda
