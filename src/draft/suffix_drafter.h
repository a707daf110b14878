#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "draft/history.h"
#include "draft/lattice.h"

namespace dendrite {

/// What may follow a text, by what followed other texts of a session that ended alike (suffix
/// decoding, arXiv 2411.04975). No training; it learns while it runs how far it can be trusted.
class SuffixDrafter {
 public:
  /// What may come after the text at the place. Its level: how much alike the texts are that it is
  /// from, see History::Match.
  Draft propose(History::Place at, const DraftLimits& limits);
  /// A draft was put to the test at one of its nodes (-1: before the first): what came there was
  /// one of its children, or was not.
  void learn(const Draft& draft, std::int32_t node, bool came);

  History history;

 private:
  class Continuations;

  /// How often drafts came true, beside how often they were to: with forgetting.
  struct Trust {
    double came = 1.6;
    double expected = 2;
    double value() const;
    void drift(double share);
  };
  std::array<Trust, History::kLevels> trust_{};
};

}  // namespace dendrite
