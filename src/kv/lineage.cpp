#include "kv/lineage.h"

#include <algorithm>
#include <cassert>

namespace dendrite {

std::uint64_t Lineage::path_before(std::int64_t position) const {
  return position == 0 ? root_path(salt_) : paths_[static_cast<std::size_t>(position - 1)];
}

void Lineage::add(std::span<const Token> tokens) {
  std::uint64_t path = path_before(length());
  for (const Token token : tokens) paths_.push_back(path = path_hash(path, token));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void Lineage::add_moved(const std::shared_ptr<const Lineage>& source, std::int64_t from,
                        std::int64_t count) {
  assert(0 <= from && 0 <= count && from + count <= source->length());
  if (count == 0) return;
  const std::int64_t at = length();
  std::uint64_t path = path_before(at);
  for (std::int64_t p = from; p < from + count; ++p) {
    const auto i = static_cast<std::size_t>(p);
    paths_.push_back(path = moved_path_hash(path, source->paths_[i]));
    tokens_.push_back(source->tokens_[i]);
  }
  const int moves = std::max(this->moves(at), 1 + source->moves(from + count));
  MovedSpan* last = moved_.empty() ? nullptr : &moved_.back();
  if (last != nullptr && last->at + last->count == at && last->source == source &&
      last->shift == from - at) {
    last->count += count;
    moves_.back() = moves;
    return;
  }
  moved_.push_back({at, count, from - at, source});
  moves_.push_back(moves);
}

void Lineage::add_like(const Lineage& other, std::int64_t begin, std::int64_t end) {
  for (const MovedSpan& span : other.moved_) {
    const std::int64_t first = std::max(begin, span.at);
    const std::int64_t last = std::min(end, span.at + span.count);
    if (first >= last) continue;
    add(std::span(other.tokens_)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(first - begin)));
    add_moved(span.source, first + span.shift, last - first);
    begin = last;
  }
  if (begin >= end) return;
  add(std::span(other.tokens_)
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
}

int Lineage::moves(std::int64_t length) const {
  const auto after = std::ranges::lower_bound(moved_, length, {}, &MovedSpan::at);
  if (after == moved_.begin()) return 0;
  const auto last = static_cast<std::size_t>(after - moved_.begin() - 1);
  const MovedSpan& span = moved_[last];
  if (length >= span.at + span.count) return moves_[last];
  // As if it ended here: the same path, held as part of a longer one, says the same.
  return std::max(last == 0 ? 0 : moves_[last - 1], 1 + span.source->moves(length + span.shift));
}

}  // namespace dendrite
