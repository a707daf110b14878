#include "dendrite/search/beam.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "dendrite/error.h"
#include "search/search_log.h"

namespace dendrite {
namespace {

/// A continuation of the prompt. Its thought is its last token, with the score as its value.
struct Beam {
  Thought thought;
  double logprob = 0;       // of all its tokens
  std::int64_t tokens = 0;  // since the prompt
};

/// A next token of a beam that may be kept.
struct Choice {
  std::size_t parent = 0;  // in the group
  TokenLogprob token;
  double logprob = 0;   // of all tokens
  double selected = 0;  // by which it is chosen: after the penalty
};

struct Group {
  std::vector<Beam> running;
  std::vector<Beam> done;    // best first
  std::vector<Beam> inside;  // that a stop ended inside of what the constraint asks for
};

class BeamRun {
 public:
  BeamRun(Session& session, const BeamSearch& strategy)
      : session_(session), s_(strategy), log_(strategy.on_event) {
    if (s_.width < 1 || s_.groups < 1 || s_.width % s_.groups != 0) {
      throw Error("beam search: width is " + std::to_string(s_.width) + " and groups is " +
                  std::to_string(s_.groups) +
                  "; expected both >= 1 and width a multiple of groups");
    }
    if (s_.diversity < 0 || s_.length_penalty < 0) {
      throw Error("beam search: diversity is " + std::to_string(s_.diversity) +
                  " and length_penalty is " + std::to_string(s_.length_penalty) +
                  "; expected both >= 0");
    }
    stops_.insert(s_.stop_tokens.begin(), s_.stop_tokens.end());
    const std::vector<Token>& eos = session.engine().info().eos;
    stops_.insert(eos.begin(), eos.end());
  }

  SearchResult run(Branch root) {
    Finish finish = was_cut_short(root.finish()) ? root.finish() : Finish::kStop;
    if (s_.constraint && root.constraint()) {
      throw Error(
          "beam search: constraint is set, and the root is under one of its own; expected one of "
          "the two");
    }
    prompt_text_ = root.text();
    if (s_.constraint) root.constrain(*s_.constraint);
    groups_.resize(static_cast<std::size_t>(s_.groups));
    for (Group& group : groups_) group.running.emplace_back().thought.branch = root.fork();
    root.prune();
    for (int step = 0; step < s_.max_tokens && finish == Finish::kStop; ++step) {
      for (Group& group : groups_) drop_hopeless(group);
      finish = read_next();
      if (next_.empty()) break;
      std::map<Token, int> chosen;  // at this step, by earlier groups
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (Thought* solution = advance(groups_[g], g, chosen)) {
          return log_.solved(std::move(*solution));
        }
      }
    }
    return collect(finish);
  }

 private:
  std::size_t group_width() const { return static_cast<std::size_t>(s_.width / s_.groups); }

  double score(double logprob, std::int64_t tokens) const {
    return logprob /
           std::pow(static_cast<double>(std::max<std::int64_t>(1, tokens)), s_.length_penalty);
  }

  /// Beams that cannot come before the group's last finished one, however likely they go on: a
  /// log-prob never grows, and the largest length that divides it is max_tokens.
  void drop_hopeless(Group& group) {
    if (group.done.size() < group_width()) return;
    const double worst = group.done.back().thought.value;
    std::erase_if(group.running, [&](Beam& beam) {
      if (score(beam.logprob, s_.max_tokens) > worst) return false;
      log_.pruned(beam.thought);
      return true;
    });
  }

  /// The likeliest tokens after all beams of all groups, in one batch: next_[group][beam]. Enough
  /// of each that neither a stop token nor a penalised one can take the place of what has to be
  /// kept.
  Finish read_next() {
    next_.clear();
    const int top = s_.width + static_cast<int>(stops_.size());
    std::vector<Branch> branches;
    for (Group& group : groups_) {
      for (Beam& beam : group.running) branches.push_back(std::move(beam.thought.branch));
    }
    if (branches.empty()) return Finish::kStop;
    auto tokens = session_.next_tokens(branches, {.top = top, .cancel = s_.cancel});
    Finish finish = Finish::kStop;
    std::size_t next = 0;
    for (Group& group : groups_) {
      std::vector<std::vector<TokenLogprob>>& mine = next_.emplace_back();
      for (Beam& beam : group.running) {
        beam.thought.branch = std::move(branches[next]);
        mine.push_back(std::move(tokens[next++]));
        if (was_cut_short(beam.thought.branch.finish())) finish = beam.thought.branch.finish();
      }
    }
    if (finish != Finish::kStop) next_.clear();  // a step is taken by all beams or by none
    return finish;
  }

  /// What a group goes on with, best first: as many as it is wide, and before the last of these all
  /// that end with a stop token.
  std::vector<Choice> choose(const Group& group, std::size_t g,
                             const std::map<Token, int>& chosen) const {
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < group.running.size(); ++i) {
      for (const TokenLogprob& token : next_[g][i]) {
        const double logprob = group.running[i].logprob + token.logprob;
        const auto earlier = chosen.find(token.id);
        const double penalty = earlier == chosen.end() ? 0 : s_.diversity * earlier->second;
        choices.push_back({i, token, logprob, logprob - penalty});
      }
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.selected > b.selected; });
    std::size_t running = 0;
    std::size_t count = 0;
    while (count < choices.size() && running < group_width()) {
      running += stops_.contains(choices[count++].token.id) ? 0 : 1;
    }
    choices.resize(count);
    return choices;
  }

  /// Branches for choices of one group: the only forks of the search.
  std::vector<Branch> fork_chosen(Group& group, std::span<const Choice> choices) {
    std::vector<Branch> parents;
    for (Beam& beam : group.running) parents.push_back(std::move(beam.thought.branch));
    std::vector<std::vector<TokenLogprob>> tokens(parents.size());
    for (const Choice& choice : choices) tokens[choice.parent].push_back(choice.token);
    auto children = session_.children(parents, tokens);
    for (std::size_t i = 0; i < parents.size(); ++i) {
      group.running[i].thought.branch = std::move(parents[i]);
    }
    std::vector<std::size_t> taken(parents.size());
    std::vector<Branch> branches;
    for (const Choice& choice : choices) {
      branches.push_back(std::move(children[choice.parent][taken[choice.parent]++]));
    }
    return branches;
  }

  /// One step of a group; the solution, if one has finished.
  Thought* advance(Group& group, std::size_t g, std::map<Token, int>& chosen) {
    const std::vector<Choice> choices = choose(group, g, chosen);
    std::vector<Branch> branches = fork_chosen(group, choices);
    std::vector<Beam> next;
    Thought* solution = nullptr;
    for (std::size_t i = 0; i < choices.size() && solution == nullptr; ++i) {
      const Choice& choice = choices[i];
      ++chosen[choice.token.id];
      Beam beam = keep(group.running[choice.parent], choice, std::move(branches[i]));
      if (!stops_.contains(choice.token.id) && !has_stop(beam)) {
        next.push_back(std::move(beam));
      } else if (!is_whole(beam)) {
        group.inside.push_back(std::move(beam));
      } else if (Beam* done = add_done(group, std::move(beam));
                 done != nullptr && is_solution(*done)) {
        solution = &done->thought;
      }
    }
    for (std::size_t i = 0; i < group.running.size(); ++i) {
      if (next_[g][i].empty() && group.running[i].thought.branch.finish() == Finish::kStop) {
        add_done(group, std::move(group.running[i]));  // a whole text, and no token to end it with
        continue;
      }
      const NodeId node = group.running[i].thought.node;
      const bool continued = std::any_of(
          next.begin(), next.end(), [&](const Beam& beam) { return beam.thought.parent == node; });
      if (!continued && node != NodeId::kRoot) log_.pruned(group.running[i].thought);
    }
    group.running = std::move(next);
    return solution;
  }

  Beam keep(const Beam& parent, const Choice& choice, Branch branch) {
    Beam beam;
    beam.logprob = choice.logprob;
    beam.tokens = parent.tokens + 1;
    Thought& thought = beam.thought;
    thought.text = added_text(branch, parent.thought.branch.text());
    thought.parent = parent.thought.node;
    thought.depth = static_cast<int>(beam.tokens);
    thought.tokens = 1;
    thought.logprob = choice.logprob - parent.logprob;
    thought.branch = std::move(branch);
    log_.proposed(thought);
    log_.judged(thought, score(beam.logprob, beam.tokens));
    log_.kept(thought);
    return beam;
  }

  /// Puts a beam among the group's best finished ones; where it stands, or null.
  Beam* add_done(Group& group, Beam beam) {
    const auto at = std::find_if(group.done.begin(), group.done.end(), [&](const Beam& other) {
      return other.thought.value < beam.thought.value;
    });
    if (at - group.done.begin() >= static_cast<std::ptrdiff_t>(group_width())) {
      log_.pruned(beam.thought);
      return nullptr;
    }
    const auto index = at - group.done.begin();
    group.done.insert(at, std::move(beam));
    if (group.done.size() > group_width()) {
      log_.pruned(group.done.back().thought);
      group.done.pop_back();
    }
    return &group.done[static_cast<std::size_t>(index)];
  }

  bool has_stop(const Beam& beam) const {
    if (s_.stop.empty()) return false;
    const std::string text = added_text(beam.thought.branch, prompt_text_);
    return std::ranges::any_of(
        s_.stop, [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
  }

  /// Of one that ended: its constraint, if any, lets it.
  bool is_whole(Beam& beam) const {
    Branch& branch = beam.thought.branch;
    const std::vector<Token>& eos = session_.engine().info().eos;
    if (std::ranges::find(eos, branch.last_token()) != eos.end()) return true;  // drawn at an end
    std::string kept = added_text(branch, prompt_text_);
    std::size_t end = kept.size();
    for (const std::string& stop : s_.stop) end = std::min(end, kept.find(stop));
    kept.resize(end);
    return may_end_at_stop(branch, prompt_text_, kept);
  }

  bool is_solution(const Beam& beam) const {
    if (!s_.solved) return false;
    return s_.solved(beam.thought.branch, last_step(beam.thought.branch, prompt_text_));
  }

  /// All that finished or was cut off by max_tokens, best first.
  SearchResult collect(Finish finish) {
    std::vector<Beam> all;
    for (Group& group : groups_) {
      std::ranges::move(group.done, std::back_inserter(all));
      for (Beam& beam : group.running) {
        if (finish == Finish::kStop && beam.tokens > 0) all.push_back(std::move(beam));
      }
    }
    std::stable_sort(all.begin(), all.end(), [](const Beam& a, const Beam& b) {
      return a.thought.value > b.thought.value;
    });
    std::vector<Beam> inside;
    for (Group& group : groups_) std::ranges::move(group.inside, std::back_inserter(inside));
    for (Beam& beam : all) {
      const bool cut_off = !stops_.contains(beam.thought.branch.last_token()) && !has_stop(beam);
      if (cut_off && is_solution(beam)) return log_.solved(std::move(beam.thought));
    }
    std::ranges::stable_sort(inside, std::ranges::greater(),
                             [](const Beam& beam) { return beam.thought.value; });
    std::ranges::move(inside, std::back_inserter(all));
    if (all.empty()) return log_.end(finish);
    SearchResult result = log_.end_at(std::move(all.front().thought), finish);
    for (std::size_t i = 1; i < std::min(all.size(), static_cast<std::size_t>(s_.width)); ++i) {
      result.others.push_back(std::move(all[i].thought));
    }
    return result;
  }

  Session& session_;
  const BeamSearch& s_;
  SearchLog log_;
  std::set<Token> stops_;
  std::string prompt_text_;
  std::vector<Group> groups_;
  std::vector<std::vector<std::vector<TokenLogprob>>> next_;
};

}  // namespace

SearchResult run(Session& session, Branch root, const BeamSearch& strategy) {
  return BeamRun(session, strategy).run(std::move(root));
}

}  // namespace dendrite
