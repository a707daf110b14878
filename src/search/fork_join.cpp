#include "dendrite/search/fork_join.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dendrite/error.h"
#include "search/search_log.h"

namespace dendrite {
namespace {

/// A line of text: the root's or a child's, with the fork that it has opened.
struct Line {
  Thought now;  // what it decodes, or has decoded
  int nesting = 0;
  std::int64_t tokens_left = 0;
  std::string text_before;  // that the branch had before `now`
  bool may_open = false;    // a fork, as it decodes `now`
  bool ended = false;
  std::vector<std::unique_ptr<Line>> children;
};

bool holds(const std::vector<Token>& tokens, Token token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

std::size_t find_mark(const std::string& text, const std::string& mark) {
  return mark.empty() ? std::string::npos : text.find(mark);
}

class ForkJoinRun {
 public:
  ForkJoinRun(Session& session, const ForkJoin& strategy)
      : session_(session), s_(strategy), log_(strategy.on_event) {
    if (s_.open.empty() && s_.open_tokens.empty()) {
      throw Error("fork and join: open and open_tokens are empty; expected what opens a fork");
    }
    if (s_.children < 1 || s_.max_forks < 0 || s_.nesting < 1) {
      throw Error("fork and join: children is " + std::to_string(s_.children) + ", max_forks is " +
                  std::to_string(s_.max_forks) + " and nesting is " + std::to_string(s_.nesting) +
                  "; expected children >= 1, max_forks >= 0 and nesting >= 1");
    }
  }

  SearchResult run(Branch root) {
    if (was_cut_short(root.finish())) return log_.end(root.finish());
    constraint_ = root.constraint();
    constraint_begin_ = root.constraint_begin().value_or(0);
    Line text;
    text.tokens_left = s_.trunk.max_tokens;
    text.text_before = root.text();
    text.now.depth = 1;
    text.now.branch = std::move(root);
    while (finish_ == Finish::kStop && !text.ended) {
      std::vector<Line*> ready;
      collect_ready(text, ready);
      decode(ready);
      if (finish_ == Finish::kStop) join(text);
    }
    if (!text.now.kept) log_.kept(text.now);
    SearchResult result;
    if (finish_ == Finish::kStop && s_.solved && s_.solved(text.now.branch, text.now.text)) {
      result = log_.solved(std::move(text.now));
    } else {
      result = log_.end_at(std::move(text.now), finish_);
    }
    result.joins = std::move(joins_);
    return result;
  }

 private:
  bool is_child(const Line& line) const { return line.nesting > 0; }

  static void collect_ready(Line& line, std::vector<Line*>& ready) {
    if (line.children.empty() && !line.ended) ready.push_back(&line);
    for (const auto& child : line.children) collect_ready(*child, ready);
  }

  /// Those whose children have all ended.
  static void collect_joinable(Line& line, std::vector<Line*>& joinable) {
    for (const auto& child : line.children) collect_joinable(*child, joinable);
    if (!line.children.empty() &&
        std::ranges::all_of(line.children, [](const auto& child) { return child->ended; })) {
      joinable.push_back(&line);
    }
  }

  DecodeParams params_of(const Line& line) const {
    DecodeParams params = is_child(line) ? s_.child : s_.trunk;
    params.max_tokens = line.tokens_left;
    params.cancel = s_.cancel;
    const auto stop_at = [&](const std::string& text, const std::vector<Token>& tokens) {
      if (!text.empty()) params.stop.push_back(text);
      params.stop_tokens.insert(params.stop_tokens.end(), tokens.begin(), tokens.end());
    };
    if (line.may_open) stop_at(s_.open, s_.open_tokens);
    if (is_child(line)) stop_at(s_.close, s_.close_tokens);
    return params;
  }

  /// Of all these in one batch: lines with the same parameters are one call.
  void decode(std::span<Line* const> ready) {
    struct Group {
      std::vector<Line*> lines;
      std::vector<Branch*> branches;
      PendingDecode call;
    };
    std::map<std::tuple<bool, bool, std::int64_t>, Group> groups;
    std::map<const Line*, double> logprobs;
    for (Line* line : ready) {
      line->may_open = line->nesting < s_.nesting && forks_ < s_.max_forks;
      Group& group = groups[{is_child(*line), line->may_open, line->tokens_left}];
      group.lines.push_back(line);
      group.branches.push_back(&line->now.branch);
      logprobs[line] = line->now.branch.logprob();
    }
    for (auto& [key, group] : groups) {
      group.call = session_.submit_decode(group.branches, params_of(*group.lines.front()));
    }
    std::map<const Line*, Generation> generations;
    for (auto& [key, group] : groups) {
      std::vector<Generation> out = group.call.get();
      for (std::size_t i = 0; i < out.size(); ++i) generations[group.lines[i]] = std::move(out[i]);
    }
    for (Line* line : ready) {
      const Generation& out = generations[line];
      Thought& now = line->now;
      now.text = out.text;
      now.tokens = std::ssize(out.ids);
      now.logprob = now.branch.logprob() - logprobs[line];
      line->tokens_left -= now.tokens;
      log_.proposed(now);
      if (was_cut_short(out.finish)) finish_ = out.finish;
    }
    if (finish_ != Finish::kStop) return;
    for (Line* line : ready) take(*line, generations[line]);
  }

  /// A line goes on as what it was stopped by says.
  void take(Line& line, const Generation& out) {
    const std::string text = added_text(line.now.branch, line.text_before);
    // (A mark inside of what a constraint asks for is a mark like any other.)
    const bool by_stop = out.finish == Finish::kStop || out.finish == Finish::kStopInside;
    const bool stopped = by_stop && !out.ids.empty();
    const std::size_t open_at = find_mark(text, s_.open);
    const std::size_t close_at = is_child(line) ? find_mark(text, s_.close) : std::string::npos;
    const bool opens =
        stopped && line.may_open && (holds(s_.open_tokens, out.ids.back()) || open_at < close_at);
    if (!opens) {
      const bool closed =
          stopped && (holds(s_.close_tokens, out.ids.back()) || close_at != std::string::npos);
      if (is_child(line)) close(line, out.finish, closed);
      line.ended = true;
      return;
    }
    log_.kept(line.now);
    std::vector<std::string> begins;
    if (forks_ < s_.max_forks) {  // others of this round may have opened the last ones
      begins = s_.begin ? s_.begin(line.now.branch, line.now.text)
                        : std::vector<std::string>(static_cast<std::size_t>(s_.children));
    }
    if (begins.empty()) {
      go_on(line, std::move(line.now.branch), {});
      return;
    }
    ++forks_;
    std::vector<Branch> branches = line.now.branch.fork(static_cast<int>(begins.size()));
    for (std::size_t i = 0; i < begins.size(); ++i) {
      Line& child = *line.children.emplace_back(std::make_unique<Line>());
      child.nesting = line.nesting + 1;
      child.tokens_left = s_.child.max_tokens;
      child.now.parent = line.now.node;
      child.now.depth = line.now.depth + 1;
      child.now.branch = std::move(branches[i]);
      if (!begins[i].empty()) child.now.branch.append(begins[i]);
      child.text_before = child.now.branch.text();
    }
  }

  /// A child's text as it is joined.
  void close(Line& child, Finish finish, bool closed) const {
    Branch& branch = child.now.branch;
    if (finish == Finish::kEos) branch = branch.at(branch.length() - 1);
    if (!closed) {
      branch.unconstrain();
      if (!s_.close.empty()) {
        branch.append(s_.close);
      } else if (!s_.close_tokens.empty()) {
        branch.append(std::span(s_.close_tokens).first(1));
      }
    }
    child.now.branch_id = branch.id();
  }

  void join(Line& text) {
    std::vector<Line*> joinable;
    collect_joinable(text, joinable);
    if (joinable.empty()) return;
    std::vector<std::vector<const Branch*>> groups;
    for (const Line* line : joinable) {
      std::vector<const Branch*>& group = groups.emplace_back();
      for (const auto& child : line->children) group.push_back(&child->now.branch);
    }
    JoinParams params = s_.join;
    params.cancel = s_.cancel;
    std::vector<Composed> joined;
    if (params.target_kl == 0) {
      joined = session_.join_many(groups, params);
    } else {
      for (const auto& group : groups) joined.push_back(session_.join(group, params));
    }
    for (Composed& one : joined) {
      if (was_cut_short(one.branch.finish())) {
        finish_ = one.branch.finish();
      } else if (constraint_ && !one.branch.constrain_from(*constraint_, constraint_begin_)) {
        finish_ = Finish::kDeadEnd;
      }
    }
    if (finish_ != Finish::kStop) return;
    for (std::size_t i = 0; i < joinable.size(); ++i) {
      Line& line = *joinable[i];
      std::vector<NodeId> nodes;
      for (const auto& child : line.children) {
        log_.kept(child->now);
        nodes.push_back(child->now.node);
      }
      joins_.push_back(std::move(joined[i].report));
      go_on(line, std::move(joined[i].branch), std::move(nodes));
    }
  }

  /// The line decodes next on `branch`, which continues what it had or was joined from `nodes`.
  static void go_on(Line& line, Branch branch, std::vector<NodeId> nodes) {
    const Thought& before = nodes.empty() ? line.now : line.children.front()->now;
    Thought next;
    next.parent = before.node;
    next.depth = before.depth + 1;
    next.joined = std::move(nodes);
    next.branch = std::move(branch);
    line.text_before = next.branch.text();
    line.now = std::move(next);
    line.children.clear();
  }

  Session& session_;
  const ForkJoin& s_;
  SearchLog log_;
  Finish finish_ = Finish::kStop;
  int forks_ = 0;
  std::optional<Constraint> constraint_;  // the root's
  std::int64_t constraint_begin_ = 0;     // tokens before what it is of
  std::vector<Composition> joins_;
};

}  // namespace

SearchResult run(Session& session, Branch root, const ForkJoin& strategy) {
  return ForkJoinRun(session, strategy).run(std::move(root));
}

}  // namespace dendrite
