#include "engine/lane_grammar.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "core/parallel.h"

namespace dendrite {
namespace {

/// `work` for each lane. Matchers of one family compute one after the other: one thread has them.
void by_family(EngineCore& engine, std::vector<Lane*> lanes,
               const std::function<void(Lane&)>& work) {
  if (lanes.empty()) return;
  std::ranges::stable_sort(lanes, {}, [](const Lane* lane) { return lane->matcher.family(); });
  std::vector<std::size_t> firsts;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (i == 0 || lanes[i]->matcher.family() != lanes[i - 1]->matcher.family()) firsts.push_back(i);
  }
  const std::int64_t families = std::ssize(firsts);
  firsts.push_back(lanes.size());
  std::vector<std::exception_ptr> errors(lanes.size());
  engine.workers->parallel_for(families, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t last = firsts[static_cast<std::size_t>(end)];
    for (std::size_t i = firsts[static_cast<std::size_t>(begin)]; i < last; ++i) {
      try {
        work(*lanes[i]);
      } catch (const GrammarLimit&) {
        lanes[i]->dead = true;
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// One token at a time: so where a call ends, or a step begins early, makes no difference.
void find_forced(Lane& lane) {
  constexpr std::size_t kMost = 256;  // the next ones are found after the next draw
  while (!lane.complete && lane.forced.size() < kMost) {
    const std::optional<Token> token = lane.matcher.forced();
    if (!token) break;
    lane.matcher.accept(*token);
    lane.forced.push_back(*token);
    lane.complete = lane.matcher.is_complete();
  }
}

/// What follows the lane's token. A limit that this comes to is met again by the next draw, as it
/// would be where nothing is forced: the token counts.
void look_ahead(Lane& lane, bool force) {
  lane.complete = false;
  try {
    lane.complete = lane.matcher.is_complete();
    if (force) find_forced(lane);
  } catch (const GrammarLimit&) {
  }
  std::ranges::reverse(lane.forced);
}

}  // namespace

void prepare_masks(EngineCore& engine, std::span<Lane* const> lanes) {
  std::vector<Lane*> lacking;
  for (Lane* lane : lanes) {
    if (lane->matcher.valid() && lane->mask == nullptr && !lane->dead) lacking.push_back(lane);
  }
  by_family(engine, lacking, [](Lane& lane) {
    lane.mask = lane.matcher.mask();
    lane.dead = lane.mask->count() == 0;
  });
  for (Lane* lane : lanes) {
    if (lane->mask != nullptr && !lane->dead) lane->draw.mask = lane->mask->words().data();
  }
}

void advance_matchers(EngineCore& engine, std::span<Lane* const> lanes, bool force) {
  std::vector<Lane*> constrained;
  for (Lane* lane : lanes) {
    if (lane->matcher.valid() && !lane->dead) constrained.push_back(lane);
  }
  by_family(engine, constrained, [force](Lane& lane) {
    lane.mask.reset();
    if (!lane.matcher.accept(lane.token)) {
      throw Error("constraint: refuses token " + std::to_string(lane.token) +
                  ", which its mask allowed");
    }
    look_ahead(lane, force && lane.skips_forced);
  });
}

Matcher matcher_of(const Lane& lane) {
  return lane.matcher.at(lane.matcher.length() - std::ssize(lane.forced));
}

}  // namespace dendrite
