#include "fuzz/submitted.h"

#include <algorithm>
#include <chrono>

#include "fuzz/draw_calls.h"

namespace dendrite::fuzz {
namespace {

/// The mirrors out of the agent's, for as long as a call has their branches.
std::vector<std::unique_ptr<Mirror>> take(Agent& agent, const std::vector<Mirror*>& mirrors) {
  std::vector<std::unique_ptr<Mirror>> out;
  for (const Mirror* mirror : mirrors) out.push_back(agent.mirrors().take(*mirror));
  return out;
}

/// What the callbacks of one decode call keep. They run in any thread, one at a time, and are over
/// when the call has ended.
struct Ear {
  Ear(std::size_t lanes, const Session& of) : heard(lanes), shown(lanes), session(of) {}

  std::vector<std::vector<Token>> heard;
  std::vector<std::string> shown;
  std::int64_t calls = 0;
  std::int64_t cancel_at = 0;  // 0: never
  std::int64_t throw_at = 0;
  std::stop_source source;
  Session session;
  Branch spare;  // in no call, and free

  void on_token(const TokenEvent& event) {
    heard[event.index].push_back(event.token);
    shown[event.index] += event.text;
    if (++calls == cancel_at) source.request_stop();
    if (calls == throw_at) throw Thrown();
    if (!spare.valid()) return;
    switch (calls % 6) {
      case 0:
        (void)spare.fork({.stream = 1});
        return;
      case 2:
        spare.append(std::vector<Token>{event.token});
        return;
      case 3:
        spare = spare.at(1 + spare.length() / 2, {.stream = 2});
        spare.unconstrain();
        return;
      case 4:  // and is dropped at once
        (void)session.submit_prefill(spare.tokens(), {.stream = 3});
        return;
      case 5:
        must_throw("a call that waits, in a callback", [&] { (void)spare.score_tokens({{1}}); });
        return;
      default:
        return;
    }
  }
};

class SubmittedDecode final : public Submitted {
 public:
  SubmittedDecode(Agent& agent, const std::vector<Mirror*>& mirrors)
      : mirrors_(take(agent, mirrors)),
        params_(draw_params(agent.engine(), agent.draws(), mirrors)) {
    for (const auto& mirror : mirrors_) lanes_.emplace_back(*mirror);
    if (agent.draws().one_in(2)) put_ear(agent);
    std::vector<Branch> branches;
    for (const auto& mirror : mirrors_) branches.push_back(std::move(mirror->branch));
    agent.say("submit decode of ", names_of(mirrors), ", at most ", params_.max_tokens, " tokens");
    pending_ = std::make_shared<PendingDecode>(
        agent.session().submit_decode(std::move(branches), params_));
    publish(agent, pending_);
  }

  void end(Agent& agent) override {
    const bool one_by_one = agent.draws().one_in(3);
    std::vector<Generation> out;
    bool thrown = false;
    try {
      while (one_by_one && hear_next()) {
      }
      out = pending_->get();
    } catch (const Thrown&) {
      thrown = true;
    }
    require(!thrown || (ear_ != nullptr && ear_->throw_at > 0), "decode: nobody threw, but get()");
    for (const StreamToken& token : pending_->take()) hear(token);
    std::vector<Branch> branches = pending_->release();
    require(branches.size() == lanes_.size(), "decode: not all branches came back");
    require(thrown || out.size() == lanes_.size(), "decode: not one result a branch");
    const bool asked = cancelled() || (ear_ != nullptr && ear_->source.stop_requested());
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      mirrors_[i]->branch = std::move(branches[i]);
      if (!thrown) check_heard(i, out[i]);
      const bool lives = thrown ? agent.settle_thrown(lanes_[i], params_)
                                : agent.settle(lanes_[i], out[i], params_, asked);
      if (lives) agent.mirrors().put(std::move(mirrors_[i]));
    }
  }

  /// Its branches go, too.
  void drop(Agent& agent) override {
    agent.say("drop the decode call");
    pending_.reset();
  }

 private:
  Pending& pending() override { return *pending_; }

  void look(Agent& agent) override {
    const auto i = static_cast<std::size_t>(agent.draws().below(std::ssize(lanes_)));
    AgentLane& lane = lanes_[i];
    Branch& branch = pending_->branches()[i];
    switch (agent.draws().below(8)) {
      case 1: {
        if (!branch.valid() || agent.full()) return;
        Branch child = branch.fork();
        const std::vector<Token> tokens = child.tokens();
        lane.forks.push_back(tokens);
        const double logprob = child.logprob();
        agent.say("fork b", lane.mirror->number, " while it is decoded, at ", tokens.size());
        agent.mirrors().add_fork(std::move(child), *lane.mirror, tokens, logprob);
        return;
      }
      case 2:
        if (!agent.draws().one_in(4)) return;
        agent.say("prune b", lane.mirror->number, " while it is decoded");
        lane.pruned = true;
        branch.prune();
        return;
      case 3:
        try {
          hear_next();
        } catch (const Thrown&) {  // and get() throws it again
        }
        return;
      case 4:
        if (!branch.valid() || pending_->done()) return;
        try {  // unless it ends meanwhile
          branch.append(std::vector<Token>{1});
          require(pending_->done(), "append to a branch that is decoded: nothing was thrown");
          lane.appended = true;
        } catch (const Error&) {
        }
        return;
      case 5:
        if (!branch.valid()) return;
        (void)branch.is_accepted();
        require(branch.constraint().has_value() == any_constrained({lane.mirror}),
                "a branch that is decoded is under another constraint than before");
        return;
      default:
        for (const StreamToken& token : pending_->take()) hear(token);
    }
  }

  void put_ear(Agent& agent) {
    ear_ = std::make_shared<Ear>(lanes_.size(), agent.session());
    if (agent.draws().one_in(6)) ear_->cancel_at = agent.draws().in(1, 8);
    if (agent.draws().one_in(12)) ear_->throw_at = agent.draws().in(1, 8);
    if (agent.draws().one_in(2)) {
      ear_->spare = mirrors_.front()->branch.fork({.stream = 0});
      ear_->spare.unconstrain();
    }
    params_.cancel = ear_->source.get_token();
    params_.on_token = [ear = ear_](const TokenEvent& event) { ear->on_token(event); };
  }

  void hear(const StreamToken& token) {
    lanes_[token.index].seen.push_back(token.token);
    lanes_[token.index].shown += token.text;
  }

  bool hear_next() {
    const std::optional<StreamToken> token = pending_->next();
    if (token) hear(*token);
    return token.has_value();
  }

  void check_heard(std::size_t i, const Generation& got) const {
    if (ear_ == nullptr) return;
    require(ear_->heard[i] == got.ids, "decode: on_token told other tokens than the handle");
    require(ear_->shown[i] == lanes_[i].shown, "decode: on_token told other text than the handle");
  }

  std::vector<std::unique_ptr<Mirror>> mirrors_;
  std::vector<AgentLane> lanes_;
  DecodeParams params_;
  std::shared_ptr<Ear> ear_;  // null: no callbacks
  std::shared_ptr<PendingDecode> pending_;
};

class SubmittedPrefill final : public Submitted {
 public:
  explicit SubmittedPrefill(Agent& agent) : prompt_(agent.prompt()) {
    if (agent.draws().one_in(8)) stream_ = agent.draws().below(4);
    before_ = agent.count_prompt(prompt_, stream_);
    agent.say("submit prefill of ", prompt_.size(), " tokens");
    pending_ = std::make_shared<PendingPrefill>(
        agent.session().submit_prefill(prompt_, {.stream = stream_}));
    publish(agent, pending_);
  }

  void end(Agent& agent) override {
    Branch branch = pending_->get();
    const Finish finish = branch.finish();
    require(finish == Finish::kRunning || finish == Finish::kBudget ||
                (finish == Finish::kCancelled && cancelled()),
            "a prefill ended for no reason");
    agent.mirrors().add_prompt(std::move(branch), agent.owner(), prompt_, before_, stream_);
  }

  void drop(Agent& agent) override {
    agent.say("drop the prefill call");
    pending_.reset();
  }

 private:
  Pending& pending() override { return *pending_; }

  std::vector<Token> prompt_;
  std::optional<std::uint64_t> stream_;
  std::uint64_t before_ = 0;
  std::shared_ptr<PendingPrefill> pending_;
};

class SubmittedScore final : public Submitted {
 public:
  SubmittedScore(Agent& agent, const std::vector<Mirror*>& mirrors)
      : mirrors_(take(agent, mirrors)),
        asked_(draw_continuations(agent.engine().info().vocab, agent.draws(), *mirrors.front())) {
    agent.say("submit score of ", asked_.size(), " continuations of ", names_of(mirrors));
    {
      Batch batch(mirrors);
      pending_ = std::make_shared<PendingScore>(
          agent.session().submit_score_tokens(batch.branches(), asked_));
    }
    publish(agent, pending_);
  }

  void end(Agent& agent) override {
    std::vector<std::vector<Score>> got = pending_->get();
    require(got.size() == mirrors_.size(), "score: not one result a branch");
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!scored(asked_, got[i])) {
        agent.require_reason(cancelled());
        continue;
      }
      agent.later([name = "score of b" + std::to_string(mirrors_[i]->number), asked = asked_,
                   before = mirrors_[i]->history(), scores = std::move(got[i])](Reference& r) {
        verify_scores(r, name, before, asked, scores);
      });
    }
    for (auto& mirror : mirrors_) agent.mirrors().put(std::move(mirror));
  }

  /// Its branches are pruned, since nobody hears when the engine has let go of them.
  void drop(Agent& agent) override {
    agent.say("drop the score call");
    pending_.reset();
    mirrors_.clear();
  }

 private:
  Pending& pending() override { return *pending_; }

  std::vector<std::unique_ptr<Mirror>> mirrors_;
  std::vector<std::vector<Token>> asked_;
  std::shared_ptr<PendingScore> pending_;
};

}  // namespace

bool Submitted::use(Agent& agent) {
  switch (agent.draws().below(8)) {
    case 0:
      (void)pending().done();
      return false;
    case 1: {
      const std::chrono::microseconds time(agent.draws().below(300));
      const bool ended = pending().wait_for(time);
      require(!ended || pending().done(), "wait_for: it has ended, and done() says it has not");
      agent.counts().timeouts += ended ? 0 : 1;
      return false;
    }
    case 2:
      pending().wait();
      require(pending().done(), "wait: it has not ended");
      return false;
    case 3:
      if (agent.draws().one_in(2)) cancel();
      return false;
    case 4:
      end(agent);
      return true;
    case 5:
      if (!agent.draws().one_in(3)) return false;
      *dropped_ = true;
      drop(agent);
      return true;
    default:
      look(agent);
      return false;
  }
}

void Submitted::listen(Agent& agent) {
  const auto told = std::make_shared<std::atomic<int>>(0);
  pending().on_done([told] { ++*told; });
  agent.later([told, dropped = dropped_](Reference&) {
    require(*told == 1 || (*told == 0 && *dropped), "on_done was not called just once");
  });
}

void Submitted::cancel() {
  *cancelled_ = true;
  pending().cancel();
}

void submit_prefill(Agent& agent) {
  if (!agent.full()) agent.submitted().push_back(std::make_unique<SubmittedPrefill>(agent));
}

void submit_decode(Agent& agent) {
  const std::vector<Mirror*> mirrors = agent.company(4);
  if (mirrors.empty()) return;
  agent.submitted().push_back(std::make_unique<SubmittedDecode>(agent, mirrors));
}

void submit_score(Agent& agent) {
  const std::vector<Mirror*> mirrors = agent.company(3);
  if (mirrors.empty()) return;
  agent.submitted().push_back(std::make_unique<SubmittedScore>(agent, mirrors));
}

}  // namespace dendrite::fuzz
