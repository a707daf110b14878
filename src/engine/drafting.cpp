#include "engine/drafting.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/suffix_provider.h"
#include "engine/tell.h"

namespace dendrite {
namespace {

/// No deeper than texts that are copied usually agree, and than a step has use for.
constexpr auto kDepth = static_cast<std::int64_t>(kDraftDepth);
/// A row that is less likely to be of use costs more than it gives, wherever it was measured.
constexpr double kLeast = 0.25;
/// What the calls of a session draft from.
DraftProvider& provider_of(SessionCore& session, Speculate method) DENDRITE_COMPUTES {
  if (method == Speculate::kDraftModel) return *session.engine->draft_model;
  if (method == Speculate::kDFlash || method == Speculate::kDFlashTree) {
    return *session.engine->block_provider;
  }
  if (session.suffixes == nullptr) {
    session.suffixes = std::make_unique<SuffixProvider>(*session.engine);
  }
  return *session.suffixes;
}

/// Leaves the nodes that the constraint admits, with what comes before them.
void keep_accepted(const Matcher& matcher, std::vector<DraftNode>& nodes) {
  std::vector<DraftNode> kept;
  std::vector<Matcher> after;                          // of those
  std::vector<std::int32_t> places(nodes.size(), -1);  // in `kept`, of each node
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    DraftNode node = nodes[i];
    if (node.parent >= 0) {
      node.parent = places[static_cast<std::size_t>(node.parent)];
      if (node.parent < 0) continue;
    }
    Matcher state = node.parent < 0 ? matcher : after[static_cast<std::size_t>(node.parent)];
    try {
      if (!state.accept(node.token)) continue;
    } catch (const GrammarLimit&) {
      continue;
    }
    places[i] = static_cast<std::int32_t>(kept.size());
    kept.push_back(node);
    after.push_back(std::move(state));
  }
  nodes = std::move(kept);
}

}  // namespace

Drafting::Drafting(SessionCore& session, const DecodeParams& params, const LaneSampler& sampler)
    : session_(session),
      engine_(*session.engine),
      params_(params),
      sampler_(sampler),
      provider_(provider_of(session, params.speculate)),
      tips_(engine_) {}

/// Draws of a constrained lane need a mask for each node, and the likeliest tokens the whole row:
/// where the device draws, neither is there without a step of its own.
bool Drafting::can_draft(const Lane& lane) const {
  return !sampler_.on_device() || (!lane.matcher.valid() && sampler_.draws_in_step());
}

void Drafting::want(Lane& lane, std::int64_t most) {
  ++lanes_;
  if (!can_draft(lane)) return;
  Drafted& of = drafts_.emplace_back();
  of.lane = &lane;
  of.params = &params_;
  std::int64_t depth = std::min(kDepth, most - 1);
  if (params_.speculate_tokens > 0) depth = std::min(depth, params_.speculate_tokens);
  of.limits = {params_.speculate_budget, depth, kLeast};
}

void Drafting::collect(std::vector<DraftWish>& wishes) {
  for (Drafted& of : drafts_) wishes.push_back({&provider_, &of});
}

void Drafting::ask(std::vector<Wish>& wishes) {
  for (Drafted& of : drafts_) {
    if (of.lane->matcher.valid()) keep_accepted(of.lane->matcher, of.draft.nodes);
    if (!of.draft.nodes.empty()) ask_for(of, wishes);
  }
}

void Drafting::ask_for(Drafted& of, std::vector<Wish>& wishes) {
  Lane& lane = *of.lane;
  for (const DraftNode& node : of.draft.nodes) hoped_ += std::exp(node.score);
  {
    const TreeLock lock(engine_.tree_mutex);
    grow(of, -1, lane.branch->tip);
  }
  std::int64_t place = 0;
  for (Chain& chain : of.chains) {
    Wish& wish = wishes.emplace_back();
    wish.branch = lane.branch;
    wish.is_draft = true;
    wish.turn = lane.turn;
    wish.turn.tokens = place++;  // a chain's parent comes before it
    wish.request.tip = chain.tip;
    wish.request.optional = true;
    wish.request.priority = std::numeric_limits<int>::min();
    wish.request.keep_logits = false;
    wish.request.logits_from = chain.begin;
    if (sampler_.on_device()) {
      for (std::size_t i = 0; i < chain.nodes.size(); ++i) {
        const std::int64_t length = chain.begin + 1 + static_cast<std::int64_t>(i);
        chain.draws.push_back(sampler_.draw_of(lane, length));
      }
      wish.request.chain_draws = chain.draws;
    } else {
      chain.rows.resize(chain.nodes.size());
      wish.request.chain_rows = chain.rows;
    }
  }
}

/// Tips for what comes after a node: chains share one, forks fork.
void Drafting::grow(Drafted& of, std::int32_t node, Tip& from) {
  const std::vector<DraftNode>& nodes = of.draft.nodes;
  const auto child_after = [&](std::int32_t parent, std::int32_t last) {
    for (std::int32_t i = last + 1; i < std::ssize(nodes); ++i) {
      if (nodes[static_cast<std::size_t>(i)].parent == parent) return i;
    }
    return std::int32_t{-1};
  };
  for (std::int32_t first = child_after(node, node); first >= 0; first = child_after(node, first)) {
    Chain& chain = of.chains.emplace_back();
    chain.tip = &tips_.fork(from);
    chain.begin = engine_.tree->length(from);
    std::vector<Token> tokens;
    std::int32_t last = first;
    for (std::int32_t next = first; next >= 0;) {
      last = next;
      chain.nodes.push_back(last);
      tokens.push_back(nodes[static_cast<std::size_t>(last)].token);
      next = child_after(last, last);
      if (next >= 0 && child_after(last, next) >= 0) break;  // it branches
    }
    engine_.tree->append(*chain.tip, tokens);
    grow(of, last, *chain.tip);
  }
}

bool Drafting::follow(Lane& lane) {
  const auto of = std::ranges::find(drafts_, &lane, &Drafted::lane);
  if (of == drafts_.end() || of->is_walked) return false;
  const std::vector<DraftNode>& nodes = of->draft.nodes;
  const auto came = std::ranges::find_if(nodes, [&](const DraftNode& node) {
    return node.parent == of->at && node.token == lane.token;
  });
  const auto node = came == nodes.end() ? -1 : static_cast<std::int32_t>(came - nodes.begin());
  provider_.learn(*of, node);
  of->is_walked = true;  // unless it goes on
  if (node < 0) return false;
  for (Chain& chain : of->chains) {
    const auto found = std::ranges::find(chain.nodes, node);
    if (found == chain.nodes.end()) continue;
    const auto i = static_cast<std::size_t>(found - chain.nodes.begin());
    of->is_refused = !chain.has_row(i);
    if (of->is_refused) return false;
    const TreeLock lock(engine_.tree_mutex);
    if (!may_spend()) return false;
    take(lane, chain);
    if (chain.rows.empty()) {
      lane.draw = chain.draws[i];
    } else {
      lane.logits = chain.rows[i];
    }
    of->is_walked = false;
    of->at = node;
    return true;
  }
  return false;
}

/// One row more, as a step of its own would take.
bool Drafting::may_spend() const {
  const std::int64_t budget = session_.options.budget.tokens;
  return budget == 0 || session_.spent_tokens() < budget;
}

/// The branch has its last token on the chain's pages from now on.
void Drafting::take(Lane& lane, const Chain& chain) {
  session_.move_to(*lane.branch, *chain.tip, lane.length);
  if (sampler_.wants_history()) lane.history.push_back(lane.token);
  ++lane.branch->tokens_computed;
  ++session_.stats.tokens_computed;
  ++session_.stats.tokens_accepted;
  engine_.debug_check();
}

void Drafting::drop() {
  for (const Drafted& of : drafts_) provider_.conclude(of);
  const SpeculationStats counts = count();
  const TreeLock lock(engine_.tree_mutex);
  session_.stats.speculation.add(counts);
  engine_.speculation.add(counts);
  if (wants_drafts(engine_)) [[unlikely]] {
    for (const Drafted& of : drafts_) tell(of);
  }
  tips_.drop();
  for (const Drafted& of : drafts_) {
    // What was taken chain by chain becomes one again: each had a page in common with the last.
    if (of.taken() > 0) engine_.tree->pages_needed(of.lane->branch->tip);
  }
  engine_.debug_check();
  drafts_.clear();
  lanes_ = 0;
  hoped_ = 0;
}

/// Of this step.
SpeculationStats Drafting::count() const {
  SpeculationStats counts;
  counts.fallbacks = lanes_ - std::ssize(drafts_);
  for (const Drafted& of : drafts_) {
    const std::vector<DraftNode>& nodes = of.draft.nodes;
    if (of.is_impossible) ++counts.fallbacks;
    counts.tokens_proposed += std::ssize(nodes);
    std::int64_t rows = 0;
    for (const Chain& chain : of.chains) {
      for (std::size_t i = 0; i < chain.nodes.size(); ++i) rows += chain.has_row(i) ? 1 : 0;
    }
    if (rows == 0) continue;
    ++counts.drafts;
    counts.tokens_budget += of.limits.nodes;
    counts.tokens_wasted += rows - of.taken();
    std::int64_t as_chain = of.taken();
    for (std::int32_t at = of.at; at >= 0;) {
      const DraftNode& node = nodes[static_cast<std::size_t>(at)];
      const auto first = std::ranges::find(nodes, node.parent, &DraftNode::parent);
      if (&*first != &node) {
        ++counts.siblings_taken;
        as_chain = node.depth - 1;
      }
      ++counts.accept_depth_by_position[static_cast<std::size_t>(node.depth - 1)];
      at = node.parent;
    }
    counts.tokens_accepted_as_chain += as_chain;
  }
  return counts;
}

void Drafting::tell(const Drafted& of) const {
  const std::vector<DraftNode>& nodes = of.draft.nodes;
  std::vector<bool> has_row(nodes.size()), is_accepted(nodes.size());
  for (const Chain& chain : of.chains) {
    for (std::size_t i = 0; i < chain.nodes.size(); ++i) {
      has_row[static_cast<std::size_t>(chain.nodes[i])] = chain.has_row(i);
    }
  }
  for (std::int32_t at = of.at; at >= 0; at = nodes[static_cast<std::size_t>(at)].parent) {
    is_accepted[static_cast<std::size_t>(at)] = true;
  }
  std::vector<DraftedToken> tokens;
  std::vector<std::int32_t> places(nodes.size(), -1);  // in `tokens`, of each node
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!has_row[i]) continue;
    const std::int32_t parent = nodes[i].parent;
    places[i] = static_cast<std::int32_t>(tokens.size());
    tokens.push_back({nodes[i].token, parent < 0 ? -1 : places[static_cast<std::size_t>(parent)],
                      is_accepted[i]});
  }
  if (tokens.empty()) return;
  tell_draft({of.lane->branch, params_.speculate, of.taken(), tokens});
}

double Drafting::slack() const {
  if (lanes_ == 0) return 1;
  const auto lanes = static_cast<double>(lanes_);
  return (lanes + hoped_) / lanes;
}

}  // namespace dendrite
