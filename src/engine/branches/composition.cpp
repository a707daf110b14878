#include "engine/branches/composition.h"

#include <algorithm>

namespace dendrite {
namespace {

using Kind = CompositionRecord::Kind;

std::span<const Token> part_of(const std::vector<Token>& tokens, std::int64_t begin,
                               std::int64_t end) {
  return std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(end - begin));
}

/// Puts a plan together, piece by piece.
class Composer {
 public:
  Composer(bool exact, Salt salt) : exact_(exact) { plan_.lineage = Lineage(salt); }

  void add(const PlainPiece& piece, std::size_t index, bool is_last) {
    if (piece.source == nullptr) {
      compute(piece.tokens, Kind::kComputed);
    } else if (exact_) {
      compute(part_of(piece.source->tokens(), piece.at.begin, piece.at.end),
              continues(piece) ? Kind::kKept : Kind::kComputed);
    } else if (continues(piece)) {
      plan_.lineage.add_like(*piece.source, piece.at.begin, piece.at.end);
      plan_.record.add(piece.count(), Kind::kKept);
    } else if (1 + piece.source->moves(piece.at.end) > kMostMoves) {
      compute(part_of(piece.source->tokens(), piece.at.begin, piece.at.end), Kind::kComputed);
      plan_.record.note =
          "pieces that had been moved " + std::to_string(kMostMoves) + " times were computed";
    } else {
      move(piece, index, is_last);
    }
  }

  CompositionPlan take() { return std::move(plan_); }

 private:
  /// It is where it was computed, behind the same.
  bool continues(const PlainPiece& piece) const {
    return piece.at.begin == plan_.lineage.length() &&
           piece.source->path_before(piece.at.begin) ==
               plan_.lineage.path_before(plan_.lineage.length());
  }
  void compute(std::span<const Token> tokens, Kind kind) {
    plan_.lineage.add(tokens);
    plan_.record.add(std::ssize(tokens), kind);
  }
  void move(const PlainPiece& piece, std::size_t index, bool is_last) {
    const std::int64_t count = piece.count();
    const std::int64_t last = std::clamp<std::int64_t>(piece.last, is_last ? 1 : 0, count);
    const std::int64_t first = std::clamp<std::int64_t>(piece.first, 0, count - last);
    const std::vector<Token>& tokens = piece.source->tokens();
    const std::int64_t from = piece.at.begin + first;
    const std::int64_t to = piece.at.end - last;
    compute(part_of(tokens, piece.at.begin, from), Kind::kRepaired);
    if (from < to) plan_.moved.push_back({index, plan_.lineage.length(), to - from});
    for (std::int64_t group = 0, begin = from; begin < to; ++group, begin += kGroup) {
      const std::int64_t end = std::min(begin + kGroup, to);
      if (group < std::ssize(piece.top_groups) &&
          piece.top_groups[static_cast<std::size_t>(group)]) {
        compute(part_of(tokens, begin, end), Kind::kRepaired);
        continue;
      }
      plan_.lineage.add_moved(piece.source, begin, end - begin);
      plan_.record.add(end - begin, Kind::kMoved);
    }
    compute(part_of(tokens, to, piece.at.end), Kind::kRepaired);
  }

  bool exact_;
  CompositionPlan plan_;
};

}  // namespace

const char* name_of(Exactness exactness) {
  return exactness == Exactness::kComposed ? "composed" : "exact";
}

void CompositionRecord::add(std::int64_t count, Kind kind) {
  if (count == 0) return;
  const std::int64_t end = count + (parts.empty() ? 0 : parts.back().end);
  if (!parts.empty() && parts.back().kind == kind) {
    parts.back().end = end;
  } else {
    parts.push_back({end, kind});
  }
}

CompositionRecord CompositionRecord::cut(std::int64_t length) const {
  CompositionRecord out = *this;
  out.parts.clear();
  std::int64_t begin = 0;
  for (const Part& part : parts) {
    if (begin >= length) break;
    out.parts.push_back({std::min(part.end, length), part.kind});
    begin = part.end;
  }
  return out;
}

Composition CompositionRecord::report(std::int64_t length) const {
  Composition report;
  std::int64_t begin = 0;
  for (const Part& part : parts) {
    const std::int64_t count = std::max<std::int64_t>(0, std::min(part.end, length) - begin);
    switch (part.kind) {
      case Kind::kKept:
        report.kept += count;
        break;
      case Kind::kMoved:
        report.moved += count;
        break;
      case Kind::kRepaired:
        report.repaired += count;
        break;
      case Kind::kComputed:
        report.computed += count;
        break;
    }
    begin = part.end;
  }
  report.computed += std::max<std::int64_t>(0, length - begin);
  report.dropped = dropped;
  report.estimate = estimate;
  report.note = note;
  return report;
}

Salt salt_of(std::span<const PlainPiece> pieces) {
  for (const PlainPiece& piece : pieces) {
    if (piece.source != nullptr && piece.source->salt() != 0) return piece.source->salt();
  }
  return 0;
}

CompositionPlan plan_composition(std::span<const PlainPiece> pieces, bool exact, Salt salt) {
  Composer composer(exact, salt);
  std::size_t size = pieces.size();
  while (size > 0 && pieces[size - 1].count() == 0) --size;
  for (std::size_t i = 0; i < size; ++i) composer.add(pieces[i], i, i + 1 == size);
  return composer.take();
}

}  // namespace dendrite
