#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "dendrite/error.h"
#include "engine/session_core.h"
#include "sample/distribution.h"

namespace dendrite {
namespace {

BranchState& require_live(const Branch& branch, const SessionCore& session, const char* what) {
  if (!branch.valid() || branch.state()->session != &session) {
    throw Error(std::string(what) +
                ": a branch is empty or of another session; expected live branches");
  }
  return *branch.state();
}

/// A trie over the continuations of one branch. Tokens that several continuations begin with are
/// computed once; the last token of a continuation is not computed at all.
struct TrieNode {
  Token token = 0;
  std::int32_t parent = -1;
  std::vector<std::int32_t> children;
  float logprob = 0;  // of this token after its parent
  bool internal() const { return !children.empty(); }
};

class BranchTrie {
 public:
  explicit BranchTrie(const std::vector<std::vector<Token>>& continuations) {
    nodes_.emplace_back();  // the branch's own tip
    for (const std::vector<Token>& continuation : continuations) {
      std::int32_t node = 0;
      for (const Token token : continuation) node = child(node, token);
      ends_.push_back(node);
    }
  }

  TrieNode& node(std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }

  /// The tokens of the children of `index`, into `out`.
  void tokens_after(std::int32_t index, std::vector<Token>& out) {
    out.clear();
    for (const std::int32_t child : node(index).children) out.push_back(node(child).token);
  }
  /// Their log-probs, in the same order.
  void take(std::int32_t index, std::span<const float> logprobs) {
    const auto& children = node(index).children;
    for (std::size_t i = 0; i < children.size(); ++i) node(children[i]).logprob = logprobs[i];
  }

  std::vector<Score> scores() {
    std::vector<Score> out;
    for (const std::int32_t end : ends_) {
      Score& score = out.emplace_back();
      for (std::int32_t at = end; at > 0; at = node(at).parent) {
        score.tokens.push_back(node(at).logprob);
      }
      std::reverse(score.tokens.begin(), score.tokens.end());
      for (const float logprob : score.tokens) score.logprob += logprob;
    }
    return out;
  }

 private:
  std::int32_t child(std::int32_t parent, Token token) {
    for (const std::int32_t index : node(parent).children) {
      if (node(index).token == token) return index;
    }
    const auto index = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back({token, parent, {}, 0});
    node(parent).children.push_back(index);
    return index;
  }

  std::vector<TrieNode> nodes_;
  std::vector<std::int32_t> ends_;
};

/// Scores the continuations of several branches: forks that are dropped when the call returns.
class ScoreRun final : private LogprobSink {
 public:
  ScoreRun(SessionCore& session, std::span<Branch> branches,
           const std::vector<std::vector<Token>>& continuations)
      : session_(session), engine_(*session.engine) {
    for (const std::vector<Token>& continuation : continuations) {
      if (continuation.empty()) {
        throw Error("score: a continuation has no tokens; expected at least one");
      }
      engine_.check_tokens(continuation);
    }
    const TreeLock lock(engine_.tree_mutex);
    for (Branch& branch : branches) {
      BranchState& state = require_live(branch, session, "score");
      const std::int64_t length = engine_.tree->length(state.tip);
      std::int64_t independent = 0;
      for (const std::vector<Token>& continuation : continuations) {
        independent += length + std::ssize(continuation) - 1;
      }
      independent_.push_back(independent);
      roots_.push_back(&state);
      tries_.emplace_back(continuations);
    }
    for (std::size_t i = 0; i < tries_.size(); ++i) {
      roots_[i]->last_used = engine_.clock + 1;
      requests_.push_back(
          {.tip = &roots_[i]->tip, .priority = roots_[i]->priority, .branch = roots_[i]});
    }
    ++engine_.clock;
    for (std::size_t i = 0; i < tries_.size(); ++i) grow(i, 0, roots_[i]->tip);
    for (const std::unique_ptr<Tip>& tip : tips_) {
      // All rows from the first scored token on; the root's own distribution is its segment's.
      const auto found = scored_.find(engine_.tree->segment(*tip));
      if (found == scored_.end()) continue;
      requests_.push_back({.tip = tip.get(),
                           .priority = roots_[found->second.trie]->priority,
                           .keep_logits = false,
                           .logits_from = 0,
                           .branch = roots_[found->second.trie]});
    }
    engine_.call_tips.push_back(&tips_);
    engine_.debug_check();
  }

  ~ScoreRun() override {
    const TreeLock lock(engine_.tree_mutex);
    std::erase(engine_.call_tips, &tips_);
    for (const std::unique_ptr<Tip>& tip : tips_) engine_.tree->drop(*tip);
    engine_.debug_check();
  }
  ScoreRun(const ScoreRun&) = delete;
  ScoreRun& operator=(const ScoreRun&) = delete;

  std::vector<std::vector<Score>> run(std::stop_token cancel) {
    ComputeCall call(session_, std::move(cancel));
    const Finish ended = call.run(requests_, this);
    std::vector<std::vector<Score>> out;
    for (std::size_t i = 0; i < tries_.size(); ++i) {
      const auto logits = kept_logits(*roots_[i]);
      if (ended != Finish::kRunning || logits == nullptr || has_no_room()) {
        const Score missing{std::numeric_limits<double>::quiet_NaN(), {}};
        out.emplace_back(tries_[i].scores().size(), missing);
        continue;
      }
      tries_[i].tokens_after(0, tokens_);
      tries_[i].take(0, engine_.log_probs(*logits, tokens_));
      out.push_back(tries_[i].scores());
      const TreeLock lock(engine_.tree_mutex);
      session_.stats.tokens_independent += independent_[i];
    }
    return out;
  }

 private:
  /// Which trie nodes a temporary segment's tokens are.
  struct Scored {
    std::size_t trie = 0;
    std::int64_t begin = 0;           // position of the first
    std::vector<std::int32_t> nodes;  // in order
  };

  std::shared_ptr<const LogitsRow> kept_logits(const BranchState& branch) const {
    const TreeLock lock(engine_.tree_mutex);
    return engine_.tree->segment(branch.tip)->logits;
  }

  std::span<const Token> wanted(const Segment& segment, std::int64_t position)
      DENDRITE_REQUIRES(kComputeLock) override {
    tokens_.clear();
    if (const Place place = place_of(segment, position); place.node >= 0) {
      tries_[place.trie].tokens_after(place.node, tokens_);
    }
    return tokens_;
  }
  void take(const Segment& segment, std::int64_t position, std::span<const float> logprobs)
      DENDRITE_REQUIRES(kComputeLock) override {
    const Place place = place_of(segment, position);
    if (place.node >= 0) tries_[place.trie].take(place.node, logprobs);
  }

  struct Place {
    std::size_t trie = 0;
    std::int32_t node = -1;  // -1: not one of this call's
  };
  Place place_of(const Segment& segment, std::int64_t position) const {
    const auto found = scored_.find(&segment);
    if (found == scored_.end() || position < found->second.begin) return {};
    const Scored& scored = found->second;
    return {scored.trie, scored.nodes[static_cast<std::size_t>(position - scored.begin)]};
  }

  /// Gives the internal nodes below `index` tips of their own: chains share one, forks fork.
  void grow(std::size_t trie, std::int32_t index, Tip& from) DENDRITE_REQUIRES(kTreeLock) {
    for (const std::int32_t first : tries_[trie].node(index).children) {
      if (!tries_[trie].node(first).internal()) continue;
      tips_.push_back(std::make_unique<Tip>(engine_.tree->fork(from)));
      Tip& tip = *tips_.back();
      Scored scored{trie, engine_.tree->length(tip), {}};
      std::vector<Token> tokens;
      std::int32_t node = first;
      for (;;) {
        tokens.push_back(tries_[trie].node(node).token);
        scored.nodes.push_back(node);
        const std::int32_t next = only_internal_child(trie, node);
        if (next < 0) break;
        node = next;
      }
      engine_.tree->append(tip, tokens);
      scored_.emplace(engine_.tree->segment(tip), std::move(scored));
      grow(trie, node, tip);
    }
  }

  /// The next node of a chain, -1 where it ends or branches.
  std::int32_t only_internal_child(std::size_t trie, std::int32_t index) {
    std::int32_t found = -1;
    for (const std::int32_t child : tries_[trie].node(index).children) {
      if (!tries_[trie].node(child).internal()) continue;
      if (found >= 0) return -1;
      found = child;
    }
    return found;
  }

  bool has_no_room() const {
    return std::any_of(requests_.begin(), requests_.end(), [](const StepRequest& request) {
      return request.state == StepRequest::State::kNoRoom;
    });
  }

  SessionCore& session_;
  EngineCore& engine_;
  std::vector<BranchState*> roots_;
  std::vector<std::int64_t>
      independent_;  // rows of a root's continuations as requests of their own
  std::vector<BranchTrie> tries_;
  std::vector<std::unique_ptr<Tip>> tips_;  // freed with the call
  std::unordered_map<const Segment*, Scored> scored_;
  std::vector<StepRequest> requests_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<std::vector<Score>> score(SessionCore& session, std::span<Branch> branches,
                                      const std::vector<std::vector<Token>>& continuations,
                                      std::stop_token cancel) {
  return ScoreRun(session, branches, continuations).run(std::move(cancel));
}

namespace {

/// Those of one distribution that the parameters name, likeliest first.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, const ExpandParams& params) {
  const double lse = log_sum_exp(logits);
  const auto enough = [&](double logprob) { return std::exp(logprob) >= params.min_prob; };
  const std::ptrdiff_t top =
      params.top > 0 ? params.top
                     : std::ranges::count_if(logits, [&](float v) { return enough(v - lse); });
  std::vector<TokenLogprob> tokens = top_logprobs(logits, lse, static_cast<std::size_t>(top));
  const auto first_out = std::ranges::find_if_not(tokens, enough, &TokenLogprob::logprob);
  tokens.erase(first_out, tokens.end());
  return tokens;
}

}  // namespace

std::vector<std::vector<TokenLogprob>> next_tokens(SessionCore& session,
                                                   std::span<const Branch> branches,
                                                   const ExpandParams& params) {
  if (params.top <= 0 && !(params.min_prob > 0)) {
    throw Error(
        "ExpandParams: neither top nor min_prob is > 0; expected at least one, else every token of "
        "the vocabulary would become a branch");
  }
  EngineCore& engine = *session.engine;
  std::vector<StepRequest> requests;
  {
    const TreeLock lock(engine.tree_mutex);
    ++engine.clock;
    for (const Branch& branch : branches) {
      BranchState& state = require_live(branch, session, "next_tokens");
      state.last_used = engine.clock;
      requests.push_back({.tip = &state.tip, .priority = state.priority, .branch = &state});
    }
  }
  ComputeCall call(session, params.cancel);
  const Finish ended = call.run(requests);
  std::vector<std::shared_ptr<const LogitsRow>> logits;
  {
    const TreeLock lock(engine.tree_mutex);
    for (const Branch& branch : branches) {
      BranchState& state = *branch.state();
      logits.push_back(engine.tree->segment(state.tip)->logits);
      if (logits.back() == nullptr) {
        state.finish = ended == Finish::kRunning ? Finish::kBudget : ended;
      } else {
        session.count_independent(state, engine.tree->length(state.tip));
      }
    }
  }
  std::vector<std::vector<TokenLogprob>> tokens(branches.size());
  engine.workers->parallel_for(std::ssize(branches), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      if (logits[i] != nullptr) tokens[i] = likeliest(logits[i]->values, params);
    }
  });
  return tokens;
}

std::vector<std::vector<Branch>> children(SessionCore& session, std::span<const Branch> branches,
                                          std::span<const std::vector<TokenLogprob>> tokens) {
  if (tokens.size() != branches.size()) {
    throw Error("children: there are " + std::to_string(tokens.size()) +
                " lists of tokens; expected " + std::to_string(branches.size()) +
                ", one for each branch");
  }
  EngineCore& engine = *session.engine;
  for (const std::vector<TokenLogprob>& list : tokens) {
    for (const TokenLogprob& token : list) engine.check_tokens(std::span(&token.id, 1));
  }
  std::vector<std::vector<Branch>> out(branches.size());
  const TreeLock lock(engine.tree_mutex);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    BranchState& parent = require_live(branches[i], session, "children");
    for (const TokenLogprob& token : tokens[i]) {
      out[i].push_back(session.child(parent, token));
      // Without sharing, the first child would go on from its parent's request; the others are new
      // ones. None has a row before somebody wants its distribution.
      if (out[i].size() == 1) {
        out[i].back().state()->independent_tokens = parent.independent_tokens;
      }
    }
  }
  return out;
}

}  // namespace dendrite
