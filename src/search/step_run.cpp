#include "search/step_run.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dendrite/error.h"

namespace dendrite {

std::vector<Thought*> pointers(std::span<Thought> thoughts) {
  std::vector<Thought*> out;
  for (Thought& thought : thoughts) out.push_back(&thought);
  return out;
}

bool goes_on(const Thought& node, std::span<const Thought> thoughts) {
  return std::ranges::find(thoughts, node.node, &Thought::parent) != thoughts.end();
}

StepRun::StepRun(Session& session, const StepRules& rules)
    : session_(session),
      rules_(rules),
      judge_(rules.search, rules.steps.judgement, rules.fallback),
      log_(rules.on_event) {
  const auto require = [&](const char* name, std::int64_t value, std::int64_t least) {
    if (value >= least) return;
    throw Error(rules.search + ": " + name + " is " + std::to_string(value) +
                "; expected >= " + std::to_string(least));
  };
  require("candidates", rules.steps.candidates, 1);
  require("propose_groups", rules.steps.propose_groups, 1);
  require("speculate", rules.steps.speculate, 0);
  require("evaluator_threads", rules.steps.judgement.evaluator_threads, 0);
}

Thought StepRun::start(Branch root) {
  Thought thought;
  if (was_cut_short(root.finish())) finish_ = root.finish();
  thought.branch_id = root.id();
  thought.branch = std::move(root);
  return thought;
}

Finish StepRun::finish() {
  if (finish_ == Finish::kStop && rules_.cancel.stop_requested()) finish_ = Finish::kCancelled;
  return finish_;
}

bool StepRun::is_solution(const Thought& thought) const {
  return rules_.solved && rules_.solved(thought.branch, thought.text);
}

bool StepRun::may_be_leaf(const Thought& thought) {
  return finish() == Finish::kStop && thought.node != NodeId::kRoot &&
         thought.branch.constraint() && thought.branch.is_accepted();
}

double StepRun::prior(const Thought& thought) const {
  return rules_.steps.prior ? rules_.steps.prior(thought) : std::exp(thought.logprob);
}

void StepRun::prune(Thought& thought) {
  log_.pruned(thought);
  ahead_.erase(thought.node);
  thought.branch.prune();
}

/// The default proposer.
Proposals StepRun::sample_steps(std::span<Branch> nodes) const {
  const Steps& steps = rules_.steps;
  std::vector<Branch> all;
  for (Branch& node : nodes) {
    for (Branch& child : node.fork(steps.candidates)) all.push_back(std::move(child));
  }
  const std::vector<Generation> texts = session_.decode(all, {.max_tokens = steps.max_step_tokens,
                                                              .stop = {"\n"},
                                                              .temperature = steps.temperature,
                                                              .cancel = rules_.cancel});
  Proposals proposals;
  proposals.children.resize(nodes.size());
  std::set<std::pair<std::size_t, std::string>> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t node = i / static_cast<std::size_t>(steps.candidates);
    const Finish finish = texts[i].finish;
    const bool whole = ended_by_itself(finish) && !texts[i].ids.empty();
    if (whole && seen.emplace(node, texts[i].text).second) {
      proposals.children[node].push_back(std::move(all[i]));
    }
    if (was_cut_short(finish)) proposals.finish = finish;
  }
  return proposals;
}

Proposals StepRun::call_proposer(std::vector<Branch>& nodes) {
  if (nodes.empty()) return {};
  Proposals proposals =
      rules_.steps.propose ? rules_.steps.propose(session_, nodes) : sample_steps(nodes);
  check_count(rules_.search, "propose", "lists of steps", proposals.children.size(), nodes.size());
  return proposals;
}

std::vector<Thought> StepRun::propose(std::span<Thought* const> nodes) {
  std::vector<std::vector<Branch>> children(nodes.size());
  std::vector<Branch> branches;  // of nodes that were not opened ahead
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (auto found = ahead_.extract(nodes[i]->node)) {
      Opened& opened = found.mapped();
      opened.twin.set_priority(nodes[i]->branch.priority());
      nodes[i]->branch = std::move(opened.twin);
      nodes[i]->branch_id = nodes[i]->branch.id();
      children[i] = std::move(opened.children);
    } else {
      branches.push_back(std::move(nodes[i]->branch));
      places.push_back(i);
    }
  }
  Proposals proposals = call_proposer(branches);
  if (was_cut_short(proposals.finish)) finish_ = proposals.finish;
  for (std::size_t i = 0; i < places.size(); ++i) {
    nodes[places[i]]->branch = std::move(branches[i]);
    children[places[i]] = std::move(proposals.children[i]);
  }
  std::vector<Thought> thoughts;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Branch& node = nodes[i]->branch;
    const std::string before = node.text();
    for (Branch& child : children[i]) {
      Thought thought;
      thought.text = last_step(child, before);
      if (rules_.steps.accept && !rules_.steps.accept(child, thought.text)) continue;
      thought.parent = nodes[i]->node;
      thought.depth = nodes[i]->depth + 1;
      thought.tokens = child.length() - node.length();
      thought.logprob = child.logprob() - node.logprob();
      thought.branch = std::move(child);
      log_.proposed(thought);
      thoughts.push_back(std::move(thought));
    }
  }
  return thoughts;
}

/// Proposes from the likeliest of the thoughts whose values are still open.
void StepRun::open_ahead(std::span<Thought* const> thoughts) {
  if (rules_.steps.speculate == 0 || !judge_.concurrent() || finish() != Finish::kStop) return;
  std::vector<std::pair<double, Thought*>> likely;
  for (Thought* thought : thoughts) {
    if (thought->depth < rules_.depth) likely.emplace_back(prior(*thought), thought);
  }
  std::stable_sort(likely.begin(), likely.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  likely.resize(std::min(likely.size(), static_cast<std::size_t>(rules_.steps.speculate)));
  std::vector<Branch> twins;
  for (const auto& [prior, thought] : likely) {
    twins.push_back(thought->branch.fork({.stream = thought->branch.stream()}));
  }
  Proposals proposals = call_proposer(twins);
  // Half a list would not be what the search gets when it comes here.
  if (was_cut_short(proposals.finish)) return;
  for (std::size_t i = 0; i < likely.size(); ++i) {
    ahead_[likely[i].second->node] = {std::move(twins[i]), std::move(proposals.children[i])};
  }
}

void StepRun::take_values(std::span<Thought* const> thoughts) {
  const std::vector<double> values = judge_.take(session_);
  for (std::size_t i = 0; i < thoughts.size(); ++i) log_.judged(*thoughts[i], values[i]);
}

void StepRun::judge(std::span<Thought* const> thoughts) {
  judge_.ask(thoughts);
  open_ahead(thoughts);
  take_values(thoughts);
}

std::vector<double> StepRun::values_of(std::span<Thought* const> thoughts) {
  judge_.ask(thoughts);
  return judge_.take(session_);
}

std::vector<Thought> StepRun::grow(std::span<Thought* const> nodes) {
  const auto groups = std::min(static_cast<std::size_t>(rules_.steps.propose_groups), nodes.size());
  std::vector<std::vector<Thought>> grown;
  std::vector<Thought*> all;
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = nodes.size() * group / groups;
    const std::size_t end = nodes.size() * (group + 1) / groups;
    grown.push_back(propose(nodes.subspan(begin, end - begin)));
    const std::vector<Thought*> added = pointers(grown.back());
    judge_.ask(added);
    all.insert(all.end(), added.begin(), added.end());
  }
  open_ahead(all);
  take_values(all);
  std::vector<Thought> thoughts;
  for (std::vector<Thought>& some : grown) {
    for (Thought& thought : some) thoughts.push_back(std::move(thought));
  }
  return thoughts;
}

}  // namespace dendrite
