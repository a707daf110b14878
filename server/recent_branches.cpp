#include "server/recent_branches.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dendrite::server {

std::int64_t Composedness::moved() const {
  return std::accumulate(
      parts.begin(), parts.end(), std::int64_t{0},
      [](std::int64_t sum, const ComposedPart& part) { return sum + part.moved; });
}

std::int64_t Composedness::repaired() const {
  return std::accumulate(
      parts.begin(), parts.end(), std::int64_t{0},
      [](std::int64_t sum, const ComposedPart& part) { return sum + part.repaired; });
}

Composedness Composedness::before(std::int64_t length) const {
  Composedness out;
  for (ComposedPart part : parts) {
    if (part.at.begin >= length) break;
    part.at.end = std::min(part.at.end, length);
    part.moved = std::min(part.moved, part.at.end - part.at.begin);
    part.repaired = std::min(part.repaired, part.at.end - part.at.begin - part.moved);
    out.parts.push_back(part);
  }
  if (!out.parts.empty()) out.error = error;
  return out;
}

void RecentBranches::keep(const BranchOwner& owner, Branch branch, Composedness how) {
  auto kept = std::make_shared<Kept>();
  kept->owner = owner;
  kept->tokens = branch.tokens();
  kept->how = std::move(how);
  kept->branch = std::move(branch);
  const bool is_exact = kept->how.parts.empty();
  // (What is exact does not go for what is not.)
  const auto is_continued = [&](const Kept& other) {
    return other.owner == owner && (is_exact || !other.how.parts.empty()) &&
           other.tokens.size() <= kept->tokens.size() &&
           std::equal(other.tokens.begin(), other.tokens.end(), kept->tokens.begin());
  };
  std::list<std::shared_ptr<Kept>> gone;  // after the lock
  const std::lock_guard lock(mutex_);
  for (auto at = kept_.begin(); at != kept_.end();) {
    const auto here = at++;
    if (is_continued(**here)) gone.splice(gone.end(), kept_, here);
  }
  kept_.push_back(std::move(kept));
  if (kept_.size() > most_) gone.splice(gone.end(), kept_, kept_.begin());
}

std::size_t RecentBranches::size() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

RecentBranches::FoundBoth RecentBranches::find(const BranchOwner& owner,
                                               std::span<const Token> tokens,
                                               std::int64_t shortest_run) {
  std::vector<std::shared_ptr<Kept>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : kept_) {
      if (each->owner == owner) all.push_back(each);
    }
  }
  struct Best {
    std::shared_ptr<Kept> kept;
    std::int64_t common = 1;
    std::int64_t prefix = 0;
  };
  Best exact;
  Best composed;
  FoundBoth found;
  const TokenPlaces places(tokens);
  for (const auto& each : all) {
    std::call_once(each->looked_at, [&] { each->places = TokenPlaces(each->tokens); });
    const std::int64_t prefix = common_prefix(each->tokens, tokens);
    const std::int64_t common = std::max(prefix, each->places.common(places));
    const bool is_exact = each->how.parts.empty();
    if (is_exact) found.known = std::max(found.known, prefix);
    Best& best = is_exact ? exact : composed;
    if (common >= best.common) best = {each, common, prefix};  // of two alike the newer one
  }
  const auto look = [&](const Best& best, Found& out) {
    if (best.kept == nullptr) return;
    const Kept& kept = *best.kept;
    out.how = kept.how;
    out.prefix = best.prefix;
    out.runs = common_runs(kept.tokens, kept.places, tokens, places, best.prefix, shortest_run);
    const std::lock_guard lock(mutex_);
    out.branch = best.kept->branch.fork({.stream = kept.branch.stream()});
  };
  look(exact, found.exact);
  look(composed, found.composed);
  return found;
}

}  // namespace dendrite::server
