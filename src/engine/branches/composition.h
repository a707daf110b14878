#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dendrite/compose.h"
#include "kv/lineage.h"

namespace dendrite {

/// What branches that were composed keep of how: shared by their forks, never changed.
struct CompositionRecord {
  enum class Kind : std::uint8_t { kKept, kMoved, kRepaired, kComputed };
  /// Positions from the part before it to `end`.
  struct Part {
    std::int64_t end = 0;
    Kind kind = Kind::kComputed;
  };
  std::vector<Part> parts;
  std::int64_t dropped = 0;
  std::optional<Estimate> estimate;
  double distance = 0;  // what the last step estimate was made of, see KlRecord; 0: none, or used
  std::string note;

  /// Tokens that it tells of.
  std::int64_t length() const { return parts.empty() ? 0 : parts.back().end; }
  /// Of the first `length` tokens of a branch; what is behind the last part was computed.
  Composition report(std::int64_t length) const;
  void add(std::int64_t count, Kind kind);
  /// Of a branch that was cut: what comes to be behind `length` is another text's.
  CompositionRecord cut(std::int64_t length) const;
};

/// A piece whose tokens are known, and where they have K and V.
struct PlainPiece {
  std::vector<Token> tokens;              // of one that is computed
  std::shared_ptr<const Lineage> source;  // of one that is moved: its positions `at`
  Span at{};
  std::int64_t first = 0;  // its repair
  std::int64_t last = 0;
  double top = 0;
  /// Which groups of kGroup tokens of what is moved without it that is (choose_top).
  std::vector<bool> top_groups{};

  bool operator==(const PlainPiece&) const = default;
  std::int64_t count() const { return source == nullptr ? std::ssize(tokens) : at.end - at.begin; }
};

/// What a composition is to be.
struct CompositionPlan {
  /// What is moved of a piece.
  struct Moved {
    std::size_t piece = 0;
    std::int64_t at = 0;
    std::int64_t count = 0;
  };
  Lineage lineage;
  CompositionRecord record;
  std::vector<Moved> moved;
};

/// Repair::top takes so many tokens or none; the last group may be shorter.
inline constexpr std::int64_t kGroup = 16;

/// K may be rotated so often; a piece that would be beyond is computed.
inline constexpr int kMostMoves = 8;

/// Of the first piece that is moved from a text with one: what is composed without a parent has it.
Salt salt_of(std::span<const PlainPiece> pieces);

/// The lineage that decides every bit of the composition, by the pieces alone. Leading pieces that
/// are what is already there stay as they are; the last token is computed, so that its distribution
/// is like any other.
CompositionPlan plan_composition(std::span<const PlainPiece> pieces, bool exact, Salt salt);

}  // namespace dendrite
