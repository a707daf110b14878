#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "step/attention_planner.h"

namespace dendrite::testing {

/// Branches that decode a token a step as page tables: now and then one forks, ends, is rewound, or
/// gets other pages. Stamps keep KvTree's promise.
class GrowingBranches {
 public:
  GrowingBranches(std::uint32_t seed, std::int64_t page_tokens)
      : random_(seed), page_tokens_(page_tokens), together_(in(0, 1) == 0) {
    Branch prompt;
    grow(prompt, in(0, 3) == 0 ? 1 : in(1, 3000));
    const std::int64_t count = in(0, 2) == 0 ? 1 : in(1, 20);
    const std::int64_t most = in(0, 1) == 0 ? 20 : 400;
    for (std::int64_t i = 0; i < count; ++i) {
      fork(prompt);
      grow(branches_.back(), in(1, most));
    }
  }

  void step() {
    if (in(0, 30) == 0) fork(any());
    if (in(0, 30) == 0 && branches_.size() > 1) {
      branches_.erase(branches_.begin() + in(0, std::ssize(branches_) - 1));
    }
    if (in(0, 60) == 0) std::shuffle(branches_.begin(), branches_.end(), random_);
    for (Branch& branch : branches_) {
      if (together_ || in(0, 20) > 0) grow(branch, 1);
    }
    if (in(0, 40) == 0) {
      Branch& branch = any();
      replace_pages(branch, settled(branch));
    }
    if (in(0, 50) == 0) rewind(any());
    if (in(0, 50) == 0) {  // evicted, and computed again
      Branch& branch = any();
      branch.stamp = ++stamps_;
      replace_pages(branch, 0);
    }
  }

  std::vector<PlanSequence> sequences() const {
    std::vector<PlanSequence> sequences;
    for (const Branch& branch : branches_) {
      PlanSequence& sequence = sequences.emplace_back();
      sequence.table = branch.table;
      sequence.first_position = branch.tokens - 1;
      sequence.rows = 1;
      sequence.stamp = branch.stamp;
      sequence.settled = settled(branch);
    }
    return sequences;
  }

 private:
  struct Branch {
    std::vector<std::int32_t> table;
    std::int64_t tokens = 0;
    std::uint64_t stamp = 0;
    std::int64_t unsettled = 0;  // pages before the last
    bool rewound = false;        // another branch's table, until it is written to
  };

  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  Branch& any() { return branches_[static_cast<std::size_t>(in(0, std::ssize(branches_) - 1))]; }

  std::int64_t settled(const Branch& branch) const {
    return std::max<std::int64_t>(0, (branch.tokens - 1) / page_tokens_ - branch.unsettled);
  }
  void grow(Branch& branch, std::int64_t tokens) {
    if (branch.rewound) branch.stamp = ++stamps_;
    branch.rewound = false;
    branch.tokens += tokens;
    while (std::ssize(branch.table) * page_tokens_ < branch.tokens) {
      branch.table.push_back(next_page_++);
    }
  }
  void fork(const Branch& from) {
    Branch branch = from;
    branch.stamp = ++stamps_;
    branch.unsettled = in(0, 3) == 0 ? in(1, 2) : 0;
    if (branch.tokens % page_tokens_ != 0) branch.table.back() = next_page_++;  // its own copy
    branches_.push_back(branch);
  }
  /// Of [from, end) some, as a step that did not run may have given them back.
  void replace_pages(Branch& branch, std::int64_t from) {
    for (std::int64_t i = from; i < std::ssize(branch.table); ++i) {
      if (in(0, 1) == 0) branch.table[static_cast<std::size_t>(i)] = next_page_++;
    }
  }
  void rewind(Branch& branch) {
    branch.tokens = std::max<std::int64_t>(1, branch.tokens - in(0, 200));
    branch.table.resize(
        static_cast<std::size_t>((branch.tokens + page_tokens_ - 1) / page_tokens_));
    branch.rewound = true;
  }

  std::mt19937 random_;
  std::int64_t page_tokens_;
  bool together_;  // all run in each step
  std::vector<Branch> branches_;
  std::int32_t next_page_ = 0;
  std::uint64_t stamps_ = 0;
};

}  // namespace dendrite::testing
