#include "engine/calls/drafting.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/branches/tell.h"

namespace dendrite {
namespace {

/// No deeper than texts that are copied usually agree, and than a step has use for.
constexpr auto kDepth = static_cast<std::int64_t>(kDraftDepth);
/// What is less likely is of no use where a row costs anything at all.
constexpr double kLeast = 0.02;

/// Chances that differ less are the same to who gets a row first.
constexpr double kScoreSteps = 1000;

}  // namespace

Drafting::Drafting(SessionCore& session, const DecodeParams& params, const LaneSampler& sampler)
    : session_(session),
      engine_(*session.engine),
      params_(params),
      sampler_(sampler),
      provider_(engine_.drafts->of(session, params.speculate)),
      tips_(engine_) {}

/// The likeliest tokens are told from whole rows: where the device draws, those stay there.
bool Drafting::can_draft() const {
  return !sampler_.on_device() || !sampler_.wants_rows();
}

bool Drafting::rests() {
  return !std::isinf(params_.slack) && provider_.rests();
}

void Drafting::want(Lane& lane, std::int64_t most) {
  ++lanes_;
  if (!can_draft()) return;
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
    of.place = of.owner().lanes.size();
    of.owner().lanes.push_back(&of);
  }
  {
    const TreeLock lock(engine_.tree_mutex);
    for (Drafted& of : drafts_) {
      if (of.shared_with == nullptr) grow(of);
    }
  }
  for (Drafted& of : drafts_) {
    if (!of.chains.empty()) ask_for(of, wishes);
  }
}

void Drafting::ask_for(Drafted& of, std::vector<Wish>& wishes) {
  for (std::size_t i = 0; i < of.picked.size(); ++i) {
    if (of.picked[i])
      hoped_ += static_cast<double>(of.lanes.size()) * std::exp(of.draft.nodes[i].score);
  }
  const std::size_t nodes = of.chain_nodes.size();
  if (sampler_.on_device()) {
    of.draws.resize(nodes * of.lanes.size());
    if (!of.states.empty()) of.masked.resize(nodes);
  } else {
    of.rows.resize(nodes);
  }
  std::size_t before = 0;  // nodes of other chains
  for (Chain& chain : of.chains) {
    Wish& wish = wishes.emplace_back();
    wish.branch = of.lane->branch;
    wish.is_draft = true;
    wish.turn.place = static_cast<std::int64_t>(wishes.size());  // a chain's parent comes before it
    // The likelier ones first, whoever's they are.
    const DraftNode& first = of.draft.nodes[static_cast<std::size_t>(chain.nodes.front())];
    wish.turn.tokens = static_cast<std::int64_t>(-kScoreSteps * first.score);
    wish.request.tip = chain.tip;
    wish.request.optional = true;
    wish.request.priority = std::numeric_limits<int>::min();
    wish.request.keep_logits = false;
    wish.request.logits_from = chain.begin;
    ask_for_draws(of, chain, before, wish);
    before += chain.nodes.size();
  }
}

/// What is to be known after each token of the chain, which has so many before it: for each lane
/// what it draws, or the row.
void Drafting::ask_for_draws(Drafted& of, Chain& chain, std::size_t before, Wish& wish) const {
  const std::size_t nodes = chain.nodes.size();
  if (!sampler_.on_device()) {
    wish.request.chain_rows = chain.rows = std::span(of.rows).subspan(before, nodes);
    return;
  }
  const std::size_t lanes = of.lanes.size();
  chain.draws = std::span(of.draws).subspan(before * lanes, nodes * lanes);
  wish.request.chain_draws = chain.draws;
  wish.request.chain_lanes = static_cast<std::int32_t>(lanes);
  if (of.masked.empty()) return;
  wish.masked = chain.masked = std::span(of.masked).subspan(before, nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    chain.masked[i].matcher = &of.states[static_cast<std::size_t>(chain.nodes[i])];
    chain.masked[i].draw = &chain.draws[i];
  }
}

void Drafting::prepare_draws() {
  for (Drafted& of : drafts_) {
    if (sampler_.draws_wait()) of.edits.reserve(of.draws.size());  // (their addresses stay)
    auto draw = of.draws.begin();
    for (const Chain& chain : of.chains) {
      if (chain.draws.empty()) continue;
      for (std::size_t i = 0; i < chain.nodes.size(); ++i) {
        const std::int64_t length = chain.begin + 1 + static_cast<std::int64_t>(i);
        for (const Drafted* one : of.lanes) {
          *draw = sampler_.draw_of(*one->lane, length);
          if (sampler_.draws_wait()) {
            LaneSampler::OwnEdits& edits = of.edits.emplace_back();
            sampler_.edits_after(*one->lane, path_to(of, chain.nodes[i]), edits);
            draw->edits = edits.view();
          }
          ++draw;
        }
      }
    }
  }
}

/// The drafted tokens from the lane's last one to the node.
std::vector<Token> Drafting::path_to(const Drafted& of, std::int32_t node) {
  std::vector<Token> path;
  for (std::int32_t at = node; at >= 0;) {
    const DraftNode& one = of.draft.nodes[static_cast<std::size_t>(at)];
    path.push_back(one.token);
    at = one.parent;
  }
  std::ranges::reverse(path);
  return path;
}

Drafting::Children::Children(const LaneDraft& draft)
    : firsts(draft.picked.size() + 1, -1), nexts(draft.picked.size(), -1) {
  for (std::size_t i = draft.picked.size(); i-- > 0;) {
    if (!draft.picked[i]) continue;
    std::int32_t& first = firsts[static_cast<std::size_t>(draft.draft.nodes[i].parent + 1)];
    nexts[i] = std::exchange(first, static_cast<std::int32_t>(i));
  }
}

void Drafting::grow(Drafted& of) {
  const auto picked = static_cast<std::size_t>(std::ranges::count(of.picked, true));
  if (picked == 0) return;
  of.chains.reserve(picked);
  of.chain_nodes.reserve(picked);
  of.chain_tokens.reserve(picked);
  grow(of, Children(of), -1, of.lane->branch->tip);
}

/// Tips for what comes after a node: chains share one, forks fork.
void Drafting::grow(Drafted& of, const Children& children, std::int32_t node, Tip& from) {
  for (std::int32_t first = children.first(node); first >= 0; first = children.after(first)) {
    Chain& chain = of.chains.emplace_back();
    chain.tip = &tips_.fork(from);
    chain.begin = engine_.tree->length(from);
    std::size_t count = 0;
    std::int32_t last = first;
    for (std::int32_t next = first; next >= 0;) {
      last = next;
      of.chain_nodes.push_back(last);
      of.chain_tokens.push_back(of.draft.nodes[static_cast<std::size_t>(last)].token);
      ++count;
      next = children.first(last);
      if (next >= 0 && children.after(next) >= 0) break;  // it branches
    }
    chain.nodes = std::span(of.chain_nodes).last(count);
    engine_.tree->append(*chain.tip, std::span(of.chain_tokens).last(count));
    grow(of, children, last, *chain.tip);
  }
}

bool Drafting::follow(Lane& lane) {
  const auto found = std::ranges::find(drafts_, &lane, &Drafted::lane);
  if (found == drafts_.end() || found->is_walked) return false;
  Drafted& of = *found;
  const std::vector<DraftNode>& nodes = of.draft.nodes;
  const auto came = std::ranges::find_if(nodes, [&](const DraftNode& node) {
    return node.parent == of.at && node.token == lane.token;
  });
  const auto node = came == nodes.end() ? -1 : static_cast<std::int32_t>(came - nodes.begin());
  provider_.learn(of, node);
  of.is_walked = true;  // unless it goes on
  if (node < 0) return false;
  of.is_refused = true;
  for (const Chain& chain : of.owner().chains) {
    const auto place = std::ranges::find(chain.nodes, node);
    if (place == chain.nodes.end()) continue;
    if (!take(of, chain, static_cast<std::size_t>(place - chain.nodes.begin()))) return false;
    of.is_walked = of.is_refused = false;
    of.at = node;
    return true;
  }
  return false;
}

/// The lane's branch has its last token, the chain's token `i`, on the chain's pages from now on.
/// False: the step has no row of it, or the lane no draw after it.
bool Drafting::take(Drafted& of, const Chain& chain, std::size_t i) {
  Lane& lane = *of.lane;
  if (!chain.has_row(i)) return false;
  if (!chain.draws.empty()) {
    const Draw& draw = chain.draws[i * of.owner().lanes.size() + of.place];
    const bool is_masked = chain.masked.empty() || chain.masked[i].mask != nullptr;
    if (draw.token < 0 || !is_masked) return false;
    lane.draw = draw;
    if (!chain.masked.empty()) lane.mask = chain.masked[i].mask;
  } else {
    lane.logits = chain.rows[i];
  }
  const TreeLock lock(engine_.tree_mutex);
  if (!may_spend()) return false;
  session_.move_to(*lane.branch, *chain.tip, lane.length);
  if (sampler_.wants_history()) lane.history.push_back(lane.token);
  ++lane.branch->tokens_computed;
  ++session_.stats.tokens_computed;
  ++session_.stats.tokens_accepted;
  engine_.debug_check();
  return true;
}

/// One row more, as a step of its own would take.
bool Drafting::may_spend() const {
  const std::int64_t budget = session_.options.budget.tokens;
  return budget == 0 || session_.spent_tokens() < budget;
}

void Drafting::drop() {
  for (const Drafted& of : drafts_) provider_.conclude(of);
  const SpeculationStats counts = count();
  const TreeLock lock(engine_.tree_mutex);
  session_.stats.speculation.add(counts);
  engine_.counts.speculation.add(counts);
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
    if (of.is_impossible) ++counts.fallbacks;
    counts.tokens_proposed += std::ssize(of.draft.nodes);
    if (of.shared_with == nullptr) count_rows(of, counts);
  }
  return counts;
}

/// Of a draft with rows, and of all lanes that went through it.
void Drafting::count_rows(const Drafted& owner, SpeculationStats& to) const {
  std::int64_t rows = 0;
  for (const Chain& chain : owner.chains) {
    for (std::size_t i = 0; i < chain.nodes.size(); ++i) rows += chain.has_row(i) ? 1 : 0;
  }
  if (rows == 0) return;
  std::vector<bool> is_taken(owner.draft.nodes.size());
  std::int64_t taken = 0;
  for (const Drafted* of : owner.lanes) {
    ++to.drafts;
    to.tokens_budget += of->limits.nodes;
    taken += of->taken();
    for (std::int32_t at = of->at; at >= 0;) {
      is_taken[static_cast<std::size_t>(at)] = true;
      at = of->draft.nodes[static_cast<std::size_t>(at)].parent;
    }
    count_walk(*of, to);
  }
  const std::int64_t rows_taken = std::ranges::count(is_taken, true);
  to.tokens_wasted += rows - rows_taken;
  to.tokens_shared += taken - rows_taken;
}

void Drafting::count_walk(const Drafted& of, SpeculationStats& to) {
  const std::vector<DraftNode>& nodes = of.draft.nodes;
  std::int64_t as_chain = of.taken();
  for (std::int32_t at = of.at; at >= 0;) {
    const DraftNode& node = nodes[static_cast<std::size_t>(at)];
    const auto first = std::ranges::find(nodes, node.parent, &DraftNode::parent);
    if (&*first != &node) {
      ++to.siblings_taken;
      as_chain = node.depth - 1;
    }
    ++to.accept_depth_by_position[static_cast<std::size_t>(node.depth - 1)];
    at = node.parent;
  }
  to.tokens_accepted_as_chain += as_chain;
}

void Drafting::tell(const Drafted& of) const {
  const std::vector<DraftNode>& nodes = of.draft.nodes;
  std::vector<bool> has_row(nodes.size()), is_accepted(nodes.size());
  for (const Chain& chain : of.owner().chains) {
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
