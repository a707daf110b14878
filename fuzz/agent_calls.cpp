// Calls of agents that wait, and what must have come of calls.
#include <algorithm>
#include <limits>
#include <thread>

#include "engine/branches/internals.h"
#include "fuzz/draw_calls.h"
#include "fuzz/plan.h"
#include "fuzz/submitted.h"

namespace dendrite::fuzz {
namespace {

/// Somebody else may cut the call short.
std::stop_source published_source(Agent& agent) {
  std::stop_source source;
  if (agent.draws().one_in(3)) {
    agent.board().add([source]() mutable { source.request_stop(); });
  }
  return source;
}

/// A decode call that waits, whose callbacks do all that they may.
class DecodeCallOfAgent {
 public:
  DecodeCallOfAgent(Agent& agent, const std::vector<Mirror*>& mirrors)
      : agent_(agent),
        mirrors_(mirrors),
        params_(draw_params(agent.engine(), agent.draws(), mirrors)) {
    for (Mirror* mirror : mirrors) lanes_.emplace_back(*mirror);
    source_ = published_source(agent);
    if (agent.draws().one_in(8)) cancel_at_ = agent.draws().in(1, 8);
    if (agent.draws().one_in(20)) throw_at_ = agent.draws().in(1, 8);
    if (agent.draws().one_in(6)) rule_ = Rule{agent.draws().in(1, 3), agent.draws().in(1, 3)};
  }

  void run() {
    const std::vector<Mirror*> likely = draw_likely();
    agent_.say("decode ", names_of(mirrors_), ", at most ", params_.max_tokens, " tokens");
    std::vector<Generation> out;
    bool thrown = false;
    {
      Batch batch(mirrors_);
      Batch others(likely);
      batch_ = &batch;
      set_callbacks();
      try {
        out = agent_.session().decode(batch.branches(), params_, others.branches());
      } catch (const Thrown&) {
        thrown = true;
      }
    }
    require(thrown == threw_, "decode: what a callback throws comes to its caller");
    require(thrown || out.size() == lanes_.size(), "decode: not one result a branch");
    if (!thrown) check_race(out);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const bool lives = thrown
                             ? agent_.settle_thrown(lanes_[i], params_)
                             : agent_.settle(lanes_[i], out[i], params_, source_.stop_requested());
      if (!lives) agent_.mirrors().drop(*mirrors_[i]);
    }
  }

 private:
  std::vector<Mirror*> draw_likely() {
    if (!agent_.draws().one_in(8)) return {};
    std::vector<Mirror*> likely = agent_.company(3);
    std::erase_if(likely, [&](Mirror* each) { return std::ranges::count(mirrors_, each) > 0; });
    if (any_constrained(likely)) params_.constraint.reset();
    params_.slack = std::numeric_limits<double>::infinity();
    agent_.owner().ahead = params_;
    return likely;
  }

  void set_callbacks() {
    params_.cancel = source_.get_token();
    params_.on_token = [this](const TokenEvent& event) { on_token(event); };
    if (!rule_) return;
    params_.enough = [this](std::size_t index, const Generation& generation) {
      shown_.push_back(index);
      return rule_->accepts(generation) && ++accepted_ == rule_->quorum;
    };
  }

  void on_token(const TokenEvent& event) {
    require(std::this_thread::get_id() == thread_, "on_token: in another thread than the call's");
    AgentLane& lane = lanes_[event.index];
    Branch& branch = (*batch_)[event.index];
    require(lane.pruned || event.branch == branch.id(), "on_token: the event names another branch");
    lane.seen.push_back(event.token);
    lane.shown += event.text;
    if (++calls_ == cancel_at_) source_.request_stop();
    if (calls_ == throw_at_) {
      threw_ = true;
      throw Thrown();
    }
    switch (agent_.draws().below(48)) {
      case 1:
      case 2:
        return fork_lane(lane, branch);
      case 3:
        return prune_another(lane);
      case 4: {
        const auto i = static_cast<std::size_t>(agent_.draws().below(std::ssize(lanes_)));
        agent_.say("    prune b", lanes_[i].mirror->number, " of the call");
        lanes_[i].pruned = true;
        return (*batch_)[i].prune();
      }
      case 5:
        return submit_decode(agent_);
      case 6:
        return submit_prefill(agent_);
      case 7:
        return must_throw("a call that waits, in a callback", [&] {
          (void)agent_.session().prefill(std::vector<Token>{1}, {.stream = 0});
        });
      case 8:
        if (lane.pruned) return;
        return must_throw("append to a branch in a call",
                          [&] { branch.append(std::vector<Token>{1}); });
      default:
        return;
    }
  }

  void fork_lane(AgentLane& lane, Branch& branch) {
    if (agent_.full() || lane.pruned) return;
    Branch child = branch.fork();
    check_fork(child, lane.before, params_, lane.seen);
    std::vector<Token> tokens = child.tokens();
    lane.forks.push_back(tokens);
    const double logprob = child.logprob();
    agent_.say("    fork b", lane.mirror->number, " of the call");
    agent_.mirrors().add_fork(std::move(child), *lane.mirror, std::move(tokens), logprob);
  }

  void prune_another(const AgentLane& lane) {
    const Mirror* idle = agent_.any_idle();
    if (idle == nullptr) return;
    agent_.say("    prune b", idle->number, ", as b", lane.mirror->number, " has a token");
    agent_.mirrors().drop(*idle);
  }

  void check_race(const std::vector<Generation>& out) {
    const bool pruned = std::ranges::any_of(lanes_, &AgentLane::pruned);
    if (!rule_ || pruned || std::ranges::any_of(out, cut_short)) return;
    std::vector<History> before;
    for (const AgentLane& lane : lanes_) before.push_back(lane.before);
    agent_.later([before, params = for_replay(params_), shown = shown_,
                  rule = *rule_](Reference& reference) {
      verify_race(reference, before, shown, params, rule);
    });
  }

  Agent& agent_;
  const std::vector<Mirror*>& mirrors_;
  std::vector<AgentLane> lanes_;
  DecodeParams params_;
  std::stop_source source_;
  std::thread::id thread_ = std::this_thread::get_id();
  Batch* batch_ = nullptr;
  std::int64_t calls_ = 0;
  std::int64_t cancel_at_ = 0;
  std::int64_t throw_at_ = 0;
  bool threw_ = false;
  std::optional<Rule> rule_;  // of a race
  std::vector<std::size_t> shown_;
  std::int64_t accepted_ = 0;
};

}  // namespace

void Agent::require_reason(bool cancelled) {
  require(cancelled || core_of(session())->options.budget.tokens > 0 || session().shortage(),
          "a call did not give all, and there is no reason for it");
}

bool Agent::settle(const AgentLane& lane, const Generation& got, const DecodeParams& params,
                   bool cancelled) {
  Mirror& mirror = *lane.mirror;
  const bool lives = mirror.branch.valid();
  if (got.finish == Finish::kAbandoned) {
    require(!lives && params.enough, "decode: a branch was abandoned, and there was no race");
    require(got.ids.empty() && got.text.empty(), "race: one that lost has tokens");
    return false;
  }
  require(lives || lane.pruned, "decode: a branch is gone, and nobody pruned it");
  check_generation(got, lane.before, params, lane.seen, lane.shown);
  require(got.finish != Finish::kCancelled || cancelled || lane.pruned,
          "decode: cancelled, though nobody asked for it");
  check_forks(lane.forks, lane.before, got);
  if (got.finish == Finish::kBudget) require_reason(false);
  counts_.tokens_generated += std::ssize(got.ids);
  counts_.cut_calls += cut_short(got) ? 1 : 0;
  counts_.dead_ends += got.finish == Finish::kDeadEnd ? 1 : 0;
  const bool masks = is_constrained(lane.before, params) && draws_.one_in(3);
  const std::optional<double> after = lives ? std::optional(mirror.branch.logprob()) : std::nullopt;
  later([name = "decode of b" + std::to_string(mirror.number), before = lane.before, got, after,
         sum = lane.logprob, plain = for_replay(params), masks](Reference& reference) mutable {
    if (masks) verify_masks(reference, name, before, got, plain);
    for (const float logprob : verify_generation(reference, name, before, got, plain)) {
      sum += logprob;
    }
    require(!after || same_bits(*after, sum), "decode: another log-prob than its tokens' sum");
  });
  say("b", mirror.number, " ->", text_of(got.ids), ", ", name_of(got.finish));
  if (!lives) return false;
  require(lane.appended || got.finish == mirror.branch.finish(),
          "decode: branch.finish() is another");
  mirror.tokens.insert(mirror.tokens.end(), got.ids.begin(), got.ids.end());
  if (lane.appended) mirror.tokens.push_back(1);
  mirror.logprob = *after;
  return true;
}

bool Agent::settle_thrown(const AgentLane& lane, const DecodeParams& params) {
  Mirror& mirror = *lane.mirror;
  const bool lives = mirror.branch.valid();
  require(lives || lane.pruned || params.enough, "decode: a branch is gone, and nobody pruned it");
  if (!lives) return false;
  const std::vector<Token> tokens = mirror.branch.tokens();
  const auto old = lane.before.tokens.size();
  require(
      tokens.size() >= old && std::ranges::equal(std::span(tokens).first(old), lane.before.tokens),
      "decode: a callback threw, and the branch has lost tokens");
  const std::vector<Token> ids(tokens.begin() + static_cast<std::ptrdiff_t>(old),
                               tokens.end() - (lane.appended ? 1 : 0));
  require(ids.size() >= lane.seen.size() &&
              std::ranges::equal(std::span(ids).first(lane.seen.size()), lane.seen),
          "decode: a callback threw, and the branch has other tokens than it was told");
  later([name = "decode of b" + std::to_string(mirror.number), before = lane.before, ids,
         plain = for_replay(params)](Reference& reference) {
    verify_tokens(reference, name, before, ids, plain);
  });
  mirror.tokens = tokens;
  mirror.logprob = mirror.branch.logprob();
  return true;
}

void wait_for_prefill(Agent& agent) {
  if (agent.full()) return;
  const std::vector<Token> prompt = agent.prompt();
  const std::stop_source source = published_source(agent);
  const std::uint64_t before = agent.count_prompt(prompt, {});
  agent.say("prefill ", prompt.size(), " tokens");
  Branch branch = agent.session().prefill(prompt, {.cancel = source.get_token()});
  const Finish finish = branch.finish();
  require(finish == Finish::kRunning || finish == Finish::kBudget ||
              (finish == Finish::kCancelled && source.stop_requested()),
          "a prefill ended for no reason");
  agent.mirrors().add_prompt(std::move(branch), agent.owner(), prompt, before, {});
}

void wait_for_decode(Agent& agent) {
  const std::vector<Mirror*> mirrors = agent.company(6);
  if (!mirrors.empty()) DecodeCallOfAgent(agent, mirrors).run();
}

void wait_for_decode_step(Agent& agent) {
  Mirror* mirror = agent.any_idle();
  if (mirror == nullptr || mirror->length() > World::kMostTokens - 100) return;
  DecodeParams params = draw_params(agent.engine(), agent.draws(), {mirror});
  params.max_tokens = 1;
  params.stop.clear();  // no text is told, by which a stop inside would be judged
  const std::stop_source source = published_source(agent);
  params.cancel = source.get_token();
  const History before = mirror->history();
  const std::optional<Token> token = agent.session().decode_step(mirror->branch, params);
  agent.say("decode_step of b", mirror->number);
  const Finish finish = mirror->branch.finish();
  Generation got;
  if (token) got.ids.push_back(*token);
  got.finish = finish;
  require(token || finish == Finish::kBudget || is_constrained(before, params) ||
              (finish == Finish::kCancelled && source.stop_requested()),
          "decode_step: no token, and no reason for it");
  mirror->logprob = mirror->branch.logprob();
  mirror->tokens.insert(mirror->tokens.end(), got.ids.begin(), got.ids.end());
  agent.counts().tokens_generated += std::ssize(got.ids);
  if (cut_short(got)) return;
  agent.later([=, name = "decode_step of b" + std::to_string(mirror->number)](Reference& r) {
    verify_tokens(r, name, before, got.ids, params);
    if (is_constrained(before, params)) verify_masks(r, name, before, got, params);
  });
}

void wait_for_score(Agent& agent) {
  const std::vector<Mirror*> mirrors = agent.company(4);
  if (mirrors.empty()) return;
  const std::vector<std::vector<Token>> asked =
      draw_continuations(agent.engine().info().vocab, agent.draws(), *mirrors.front());
  const std::stop_source source = published_source(agent);
  agent.say("score ", asked.size(), " continuations of ", names_of(mirrors));
  std::vector<std::vector<Score>> got;
  {
    Batch batch(mirrors);
    got = agent.session().score_tokens(batch.branches(), asked, {.cancel = source.get_token()});
  }
  require(got.size() == mirrors.size(), "score: not one result a branch");
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!scored(asked, got[i])) {
      agent.require_reason(source.stop_requested());
      continue;
    }
    agent.later([name = "score of b" + std::to_string(mirrors[i]->number), asked,
                 before = mirrors[i]->history(), scores = std::move(got[i])](Reference& r) {
      verify_scores(r, name, before, asked, scores);
    });
  }
}

void wait_for_expand(Agent& agent) {
  const std::vector<Mirror*> mirrors = agent.company(2);
  if (mirrors.empty() || agent.full()) return;
  ExpandParams params{.top = static_cast<int>(agent.draws().in(1, 3))};
  const std::stop_source source = published_source(agent);
  params.cancel = source.get_token();
  agent.say("expand ", names_of(mirrors), " into ", params.top);
  std::vector<std::vector<Branch>> got;
  {
    Batch batch(mirrors);
    got = agent.session().expand(batch.branches(), params);
  }
  require(got.size() == mirrors.size(), "expand: not one result a branch");
  for (std::size_t i = 0; i < got.size(); ++i) {
    Mirror& parent = *mirrors[i];
    const Finish finish = parent.branch.finish();
    const bool cut = finish == Finish::kBudget || source.stop_requested();
    require(!got[i].empty() || cut || parent.spans.constraint() != nullptr,
            "expand: no children, and no reason for it");
    if (got[i].empty() && cut) continue;
    std::vector<std::pair<Token, double>> children;
    for (Branch& child : got[i]) {
      const std::pair<Token, double> told(child.last_token(), child.logprob());
      children.push_back(told);
      agent.mirrors().add_child(std::move(child), parent, {told.first, 0}).logprob = told.second;
    }
    agent.later([=, before = parent.history(), sum = parent.logprob](Reference& reference) {
      Replay replay = reference.replay(before);
      const std::vector<Branch> expected = std::move(
          replay.session.expand(std::span(&replay.branch, 1), {.top = params.top}).front());
      ++reference.counts.comparisons;
      require(expected.size() == children.size(), "expand: other children than the replay's");
      require(!expected.empty() || replay.branch.finish() == finish,
              "expand: no children, and another finish than the replay's");
      for (std::size_t c = 0; c < children.size(); ++c) {
        require(expected[c].last_token() == children[c].first &&
                    same_bits(sum + expected[c].logprob(), children[c].second),
                "expand: other children than the replay's");
      }
    });
  }
}

/// Perhaps with a chunk that others register at the same time.
void wait_for_compose(Agent& agent) {
  if (agent.full()) return;
  std::vector<KnownChunk> chunks(agent.chunks().begin(), agent.chunks().end());
  const std::stop_source source = published_source(agent);
  if (agent.draws().one_in(2)) {
    KnownChunk chunk{.left = core_of(agent.engine())->chunk_stub(), .tokens = agent.prompt()};
    if (std::ssize(chunk.tokens) > agent.engine().info().kv_tokens / 2) return;
    chunk.chunk = agent.session().register_chunk(chunk.tokens, {.cancel = source.get_token()});
    chunks.push_back(std::move(chunk));
  }
  const Sources sources{agent.engine(), agent.idle(), chunks};
  Plan plan(draw_compose_params(agent.draws(), agent.engine()));
  const std::int64_t most = std::min(agent.engine().info().kv_tokens, World::kMostTokens - 200);
  Mirror* parent = draw_pieces(plan, agent.draws(), sources, most);
  ComposeParams params = plan.params();
  params.cancel = source.get_token();
  agent.say("compose ", plan.pieces().size(), " pieces");
  Composed composed = agent.session().compose(plan.pieces(), params);
  if (composed.branch.finish() != Finish::kRunning) agent.require_reason(source.stop_requested());
  Mirror& mirror = agent.mirrors().add_composed(std::move(composed.branch), agent.owner(), parent,
                                                plan.tokens(), plan.recipe());
  agent.say("    -> b", mirror.number);
  ++agent.counts().compositions;
}

}  // namespace dendrite::fuzz
