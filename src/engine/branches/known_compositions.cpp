#include "engine/branches/known_compositions.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"

namespace dendrite {
namespace {

std::uint64_t hash_of(std::span<const PlainPiece> pieces) {
  std::uint64_t hash = 0;
  for (const PlainPiece& piece : pieces) {
    hash = hash_bytes(std::as_bytes(std::span(piece.tokens)), hash);
    const Lineage* source = piece.source.get();
    hash = hash_bytes(std::as_bytes(std::span(&source, 1)), hash);
  }
  return hash;
}

}  // namespace

const KnownCompositions::Entry* KnownCompositions::entry(std::uint64_t hash,
                                                         std::span<const PlainPiece> pieces) const {
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.hash == hash && std::ranges::equal(entry.known.pieces, pieces);
  });
  return found == entries_.end() ? nullptr : &*found;
}

const KnownCompositions::Known* KnownCompositions::find(std::span<const PlainPiece> pieces) const {
  const Entry* found = entry(hash_of(pieces), pieces);
  if (found == nullptr) return nullptr;
  const Tip* tip = index_.find(found->known.path, found->known.number);
  if (tip == nullptr || tree_.computed(*tip) < tree_.length(*tip)) return nullptr;
  return &found->known;
}

void KnownCompositions::add(Known known) {
  const std::uint64_t hash = hash_of(known.pieces);
  const Entry* found = entry(hash, known.pieces);
  if (found != nullptr && found->known.number == known.number) return;
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.known.number == known.number ||
           index_.find(entry.known.path, entry.known.number) == nullptr;
  });
  entries_.push_back({hash, std::move(known)});
}

}  // namespace dendrite
