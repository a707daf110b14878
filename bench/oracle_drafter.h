#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/session.h"
#include "draft/acceptance.h"
#include "engine/drafts/paced_provider.h"

// Drafters that know what comes, for what speculation gives at an acceptance that is set, whatever
// was trained. A text with drafts is the text without, to the bit, so a run before says what comes.
namespace dendrite::bench {

/// What branches said before, by their random streams.
class KnownTexts {
 public:
  void clear() { texts_.clear(); }
  void add(const Branch& branch) { texts_[branch.stream()] = branch.tokens(); }
  /// What followed a branch's first `length` tokens; none: it is not known.
  std::span<const Token> after(std::uint64_t stream, std::int64_t length) const;

 private:
  std::map<std::uint64_t, std::vector<Token>> texts_;
};

/// How often a drafter of set acceptance is right about the token after a text that it has right.
struct OracleOptions {
  double first = 0.8;   // its likeliest token is what comes
  double beside = 0.5;  // one of its others is, where that is not; each half as likely as the last
  bool tree = false;    // it proposes them
  std::int64_t depth = 15;  // of a draft at most: the masks of a block of 16
  std::int64_t top = 8;     // tokens of each place that a tree is made of
  double claims = 0;        // what it says of its likeliest token instead of `first`; 0: the truth
  double ms = 0;            // that a pass takes, busily; for all branches of a turn
};

/// The chance of each of a place's tokens, likeliest first, each after a text that is right.
std::vector<double> chances_of(const OracleOptions& options);

/// Right about each place by the branch's stream and the position, so a chain's tokens are the
/// first choices of the tree. Where it has been wrong it goes on being wrong, to the budget. It
/// says how likely its tokens are, or what it is told to claim, and never whether they come. Paced
/// as a block drafter is.
class OracleDrafter final : public PacedProvider {
 public:
  OracleDrafter(EngineCore& engine, const KnownTexts& texts, const OracleOptions& options);

 protected:
  std::vector<LaneDraft*> choose(std::span<LaneDraft* const> wanted) DENDRITE_COMPUTES override;
  void fill(std::span<LaneDraft* const> drafts, std::int64_t depth) DENDRITE_COMPUTES override;

 private:
  class Guesses;
  std::span<const Token> next_of(const LaneDraft& draft) const;

  const KnownTexts& texts_;
  const OracleOptions options_;
  const std::vector<double> chances_;
  const std::vector<double> claims_;
  Acceptance acceptance_;
};

/// Drafts of one shape that never come: what verifying them takes. Its rows all run where the
/// call's slack is infinite.
class WrongDrafter final : public DraftProvider {
 public:
  WrongDrafter(EngineCore& engine, const KnownTexts& texts) : engine_(engine), texts_(texts) {}

  /// From now on, of this shape: the parent of each node, and their depths. None: nothing is
  /// proposed, but steps are not begun early, as where something might be.
  std::vector<DraftNode> shape;

  void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES override;
  void learn(const LaneDraft& /*draft*/, std::int32_t /*came*/) override {}

 private:
  EngineCore& engine_;
  const KnownTexts& texts_;
};

/// While it lives, the engine's draft model (Speculate::kDraftModel) is another provider. Requires:
/// no call is under way when it comes and goes.
class DraftModelInPlace {
 public:
  DraftModelInPlace(const Engine& engine, std::unique_ptr<DraftProvider>& provider);
  ~DraftModelInPlace();
  DraftModelInPlace(const DraftModelInPlace&) = delete;
  DraftModelInPlace& operator=(const DraftModelInPlace&) = delete;

 private:
  const Engine engine_;
  std::unique_ptr<DraftProvider>& provider_;
};

}  // namespace dendrite::bench
