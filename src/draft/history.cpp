#include "draft/history.h"

#include <cstddef>

namespace dendrite {
namespace {

std::uint64_t key_of(History::Place place, Token token) {
  return std::uint64_t{static_cast<std::uint32_t>(place)} << 32 | static_cast<std::uint32_t>(token);
}

}  // namespace

History::History() {
  clear();
}

void History::clear() {
  ++epoch_;
  nodes_.assign(1, Node{});
  children_.clear();
  for (auto& latest : latest_) latest.clear();
}

History::Place History::add(Place from, Token token) {
  const auto [found, is_new] =
      children_.try_emplace(key_of(from, token), static_cast<Place>(nodes_.size()));
  const Place place = found->second;
  if (is_new) {
    Node& parent = nodes_[static_cast<std::size_t>(from)];
    Node child{.token = token, .parent = from, .next_sibling = parent.first_child};
    parent.first_child = place;
    nodes_.push_back(child);
    enter(place);
  }
  ++nodes_[static_cast<std::size_t>(place)].times;
  return place;
}

void History::enter(Place place) {
  const auto keys = hashes(place);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == 0) continue;
    Place& latest = latest_[i][keys[i]];
    nodes_[static_cast<std::size_t>(place)].alike[i] = latest;
    latest = place;
  }
}

/// Of the last tokens at the place, for each of kLengths; 0: there are fewer.
std::array<std::uint64_t, History::kLengths.size()> History::hashes(Place place) const {
  std::array<std::uint64_t, kLengths.size()> out{};
  std::uint64_t hash = 0;
  int tokens = 0;
  for (; place != kStart && tokens < kLengths.front(); place = node(place).parent) {
    hash = (hash ^ static_cast<std::uint32_t>(node(place).token)) * 0x9e3779b97f4a7c15U;
    hash ^= hash >> 29;
    ++tokens;
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      if (kLengths[i] == tokens) out[i] = hash | 1;
    }
  }
  return out;
}

History::Match History::find(Place at) const {
  if (node(at).first_child != kStart) return {{at}, 0};
  const auto keys = hashes(at);
  Match match;
  for (std::size_t i = 0; i < keys.size() && match.places.empty(); ++i) {
    const auto latest = latest_[i].find(keys[i]);
    if (keys[i] == 0 || latest == latest_[i].end()) continue;
    // (Many may be ends of texts, after which nothing came.)
    constexpr int kLooked = 64;
    Place place = latest->second;
    for (int looked = 0; place != kStart && looked < kLooked; ++looked) {
      if (node(place).first_child != kStart) match.places.push_back(place);
      if (match.places.size() == kMost) break;
      place = node(place).alike[i];
    }
    match.level = i + 1;
  }
  return match;
}

void History::next_of(Place place, std::vector<Next>& out) const {
  for (Place child = node(place).first_child; child != kStart; child = node(child).next_sibling) {
    out.push_back({node(child).token, child, node(child).times});
  }
}

}  // namespace dendrite
