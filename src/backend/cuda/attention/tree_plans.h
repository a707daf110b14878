#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/attention/tree_plan.h"

namespace dendrite::cuda {

/// The tree plans of a pass: each is built when it is first asked for, and stays where it is until
/// the next pass.
class TreePlans {
 public:
  void begin_pass() {
    used_ = 0;
    in_pass_ = true;
  }
  void end_pass() {
    used_ = 0;
    in_pass_ = false;
  }

  /// Requires, within a pass: a plan does not change, nor does its shape.
  const TreePlan& of(const AttentionPlan& plan, const TreePlan::Shape& shape) {
    for (std::size_t i = 0; i < used_; ++i) {
      if (entries_[i]->source == &plan) return entries_[i]->tree;
    }
    if (used_ == entries_.size()) entries_.push_back(std::make_unique<Entry>());
    Entry& entry = *entries_[used_];
    if (in_pass_) ++used_;
    entry.source = &plan;
    entry.tree.build(plan, shape);
    return entry.tree;
  }

 private:
  struct Entry {
    const AttentionPlan* source = nullptr;
    TreePlan tree;
  };

  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t used_ = 0;
  bool in_pass_ = false;
};

}  // namespace dendrite::cuda
