#include "engine/calls/lane_grammar.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/parallel.h"
#include "draft/draft_budget.h"
#include "engine/calls/lane_sampler.h"

namespace dendrite {
namespace {

/// Something to be computed with a matcher. It throws GrammarLimit where that comes to a limit.
struct GrammarWork {
  const void* family = nullptr;
  std::function<void()> run;
  std::function<void()> at_limit;
};

/// Matchers of one family compute one after the other: one thread has them.
void by_family(EngineCore& engine, std::vector<GrammarWork> all) {
  if (all.empty()) return;
  std::ranges::stable_sort(all, {}, &GrammarWork::family);
  std::vector<std::size_t> firsts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i].family != all[i - 1].family) firsts.push_back(i);
  }
  const std::int64_t families = std::ssize(firsts);
  firsts.push_back(all.size());
  std::vector<std::exception_ptr> errors(all.size());
  engine.workers->parallel_for(families, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t last = firsts[static_cast<std::size_t>(end)];
    for (std::size_t i = firsts[static_cast<std::size_t>(begin)]; i < last; ++i) {
      try {
        all[i].run();
      } catch (const GrammarLimit&) {
        all[i].at_limit();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

GrammarWork work_of(Lane& lane, std::function<void()> run) {
  return {lane.matcher.family(), std::move(run), [&lane] { lane.dead = true; }};
}

/// Its node's children from there on are those that must come.
void add_forced(LaneDraft& draft, std::size_t last) {
  while (std::ssize(draft.draft.nodes) < draft.limits.nodes) {
    const DraftNode above = draft.draft.nodes[last];
    Matcher state = draft.states[last];
    if (above.depth >= draft.limits.depth || state.is_complete()) return;
    const std::optional<Token> token = state.forced();
    if (!token || !state.accept(*token)) return;
    draft.draft.nodes.push_back(
        {*token, static_cast<std::int32_t>(last), above.depth + 1, above.score, above.kind});
    draft.states.push_back(std::move(state));
    last = draft.draft.nodes.size() - 1;
  }
}

void follow_grammar(LaneDraft& draft) {
  std::vector<DraftNode>& nodes = draft.draft.nodes;
  std::vector<bool> keep(nodes.size());
  std::vector<bool> has_child(nodes.size());
  std::vector<Matcher> states(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int32_t parent = nodes[i].parent;
    if (parent >= 0 && !keep[static_cast<std::size_t>(parent)]) continue;
    Matcher state = parent < 0 ? draft.lane->matcher : states[static_cast<std::size_t>(parent)];
    try {
      keep[i] = state.accept(nodes[i].token);
    } catch (const GrammarLimit&) {
    }
    states[i] = std::move(state);
    if (keep[i] && parent >= 0) has_child[static_cast<std::size_t>(parent)] = true;
  }
  std::vector<std::size_t> ends;  // among those that stay
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!keep[i]) continue;
    if (!has_child[i]) ends.push_back(draft.states.size());
    draft.states.push_back(std::move(states[i]));
  }
  keep_nodes(nodes, keep);
  for (const std::size_t end : ends) add_forced(draft, end);
}

/// One token at a time: so where a call ends, or a step begins early, makes no difference.
void find_forced(Lane& lane) {
  constexpr std::size_t kMost = 256;  // the next ones are found after the next draw
  std::vector<Token> path{lane.token};
  while (!lane.complete && lane.forced.size() < kMost) {
    const std::optional<Token> token = lane.matcher.forced();
    if (!token || lane.sampler->is_banned(lane, path, *token)) break;  // (the next draw is dead)
    lane.matcher.accept(*token);
    lane.forced.push_back(*token);
    path.push_back(*token);
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

/// The stop string begins in the last token or in one before, and perhaps inside of it.
bool may_end_before_stop(const Lane& lane, const Matcher& whole) {
  const std::string_view text = lane.watch.text();  // which ends before it
  const std::span<const std::size_t> ends =
      std::span(lane.text_ends).first(lane.text_ends.size() - 1);
  std::size_t before = 0;  // tokens whose text is all before it
  std::size_t end = 0;     // of their text
  for (std::size_t i = 0; i < ends.size() && ends[i] <= text.size(); ++i) {
    if (ends[i] == end) continue;  // (no text, or a part of a character)
    before = i + 1;
    end = ends[i];
  }
  Matcher kept =
      whole.at(whole.length() - std::ssize(lane.out.ids) + static_cast<std::int64_t>(before));
  const auto rest = kept.grammar()->vocabulary().spell(text.substr(end));
  const auto takes = [&](Token token) { return kept.accept(token); };
  return rest && std::ranges::all_of(*rest, takes) && kept.is_accepting();
}

}  // namespace

void prepare_masks(EngineCore& engine, std::span<Lane* const> lanes,
                   std::span<DraftDraw* const> drafts) {
  std::vector<GrammarWork> lacking;
  for (Lane* lane : lanes) {
    if (!lane->matcher.valid() || lane->mask != nullptr || lane->dead) continue;
    lacking.push_back(work_of(*lane, [lane] {
      lane->mask = lane->matcher.mask();
      lane->dead = lane->mask->count() == 0;
    }));
  }
  for (DraftDraw* draft : drafts) {
    lacking.push_back(
        {draft->matcher->family(), [draft] { draft->mask = draft->matcher->mask(); }, [] {}});
  }
  by_family(engine, std::move(lacking));
  for (Lane* lane : lanes) {
    if (lane->mask != nullptr && !lane->dead) lane->draw.mask = lane->mask->words().data();
  }
  for (DraftDraw* draft : drafts) {
    if (draft->mask != nullptr) draft->draw->mask = draft->mask->words().data();
  }
}

void follow_grammars(EngineCore& engine, std::span<LaneDraft* const> drafts) {
  std::vector<GrammarWork> all;
  for (LaneDraft* draft : drafts) {
    if (draft->draft.nodes.empty() || !draft->lane->matcher.valid()) continue;
    all.push_back({draft->lane->matcher.family(), [draft] { follow_grammar(*draft); },
                   [] {}});  // (What must follow is not known: the draft ends there.)
  }
  by_family(engine, std::move(all));
}

void advance_matchers(EngineCore& engine, std::span<Lane* const> lanes, bool force) {
  std::vector<GrammarWork> constrained;
  for (Lane* lane : lanes) {
    if (!lane->matcher.valid() || lane->dead) continue;
    constrained.push_back(work_of(*lane, [lane, force] {
      lane->mask.reset();
      if (!lane->matcher.accept(lane->token)) {
        throw Error("constraint: refuses token " + std::to_string(lane->token) +
                    ", which its mask allowed");
      }
      look_ahead(*lane, force && lane->skips_forced);
    }));
  }
  by_family(engine, std::move(constrained));
}

Matcher matcher_of(const Lane& lane) {
  return lane.matcher.at(lane.matcher.length() - std::ssize(lane.forced));
}

bool may_end_at_stop(const Lane& lane) {
  if (!lane.matcher.valid()) return true;
  try {
    Matcher whole = matcher_of(lane);
    if (!whole.is_accepting()) return false;
    return !lane.stopped || may_end_before_stop(lane, whole);
  } catch (const GrammarLimit&) {
    return false;  // there is no telling
  }
}

}  // namespace dendrite
