#include "agent_work.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "machine.h"
#include "models.h"

namespace dendrite::bench {
namespace {

/// The branches of all agents of a call, agent by agent: each has equally many.
using Branches = std::vector<Branch>;

class AgentThread {
 public:
  AgentThread(const Engine& engine, const AgentWork& work, std::span<const int> agents, int trial,
              std::mutex* turns)
      : work_(work),
        agents_(agents),
        seed_(static_cast<std::uint64_t>(trial) << 16),
        turns_(turns),
        vocab_(engine.info().vocab),
        session_(engine, {.seed = seed_}),
        runs_(agents.size()) {}

  std::vector<AgentRun> run() {
    Branches kept = prefill();
    for (int level = 0; level < work_.depth; ++level) {
      Branches children;
      for (Branch& path : kept) {
        for (Branch& child : path.fork(work_.width)) children.push_back(std::move(child));
      }
      decode(children);
      kept = best(std::move(children));
    }
    for (AgentRun& run : runs_) run.end = now_seconds();
    return std::move(runs_);
  }

 private:
  std::unique_lock<std::mutex> turn() const {
    return turns_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*turns_);
  }

  Branches prefill() {
    Branches roots;
    for (const int agent : agents_) {
      const auto stream = static_cast<std::uint64_t>(agent);
      const std::vector<Token> prompt =
          random_tokens(work_.prompt_length, vocab_, seed_ + stream + 1);
      const auto lock = turn();
      roots.push_back(session_.prefill(prompt, {.stream = stream}));
    }
    return roots;
  }

  DecodeParams params() const {
    DecodeParams out{.max_tokens = work_.length, .temperature = 0.7, .ignore_eos = true};
    if (work_.caller()) {
      out.temperature = 0.25 * (agents_[0] % 5);
      out.top_k = agents_[0] % 3 == 0 ? 0 : 50;
    }
    return out;
  }

  void decode(Branches& children) {
    const std::size_t each = children.size() / agents_.size();
    DecodeParams decode_params = params();
    decode_params.on_token = [&](const TokenEvent& event) {
      if (event.index % each == 0) {
        runs_[event.index / each].token_times.push_back(now_seconds());
      }
    };
    std::vector<Generation> made;
    {
      const auto lock = turn();
      made = session_.decode(children, decode_params);
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (std::ssize(made[i].ids) != work_.length) {
        throw Error("a branch ended (" + std::string(name_of(made[i].finish)) + ") after " +
                    std::to_string(made[i].ids.size()) + " of " + std::to_string(work_.length) +
                    " tokens; expected a larger --kv-tokens");
      }
      std::vector<Token>& tokens = runs_[i / each].tokens;
      tokens.insert(tokens.end(), made[i].ids.begin(), made[i].ids.end());
    }
  }

  std::vector<double> judge(Branches& children) {
    std::vector<double> values;
    if (work_.judge_length == 0) {
      for (const Branch& child : children) values.push_back(child.logprob());
      return values;
    }
    const auto lock = turn();
    for (const std::vector<Score>& scores :
         session_.score_tokens(children, {random_tokens(work_.judge_length, vocab_, seed_)})) {
      values.push_back(scores[0].logprob);
    }
    return values;
  }

  /// The best of each agent's; of equals the first.
  Branches best(Branches children) {
    const std::vector<double> values = judge(children);
    const std::size_t each = children.size() / agents_.size();
    Branches kept;
    for (std::size_t first = 0; first < children.size(); first += each) {
      std::vector<std::size_t> order(each);
      std::iota(order.begin(), order.end(), first);
      std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return values[i]; });
      order.resize(std::min(each, static_cast<std::size_t>(work_.keep)));
      for (const std::size_t i : order) kept.push_back(std::move(children[i]));
    }
    return kept;
  }

  const AgentWork& work_;
  std::span<const int> agents_;
  std::uint64_t seed_;
  std::mutex* turns_;
  std::int64_t vocab_;
  Session session_;
  std::vector<AgentRun> runs_;
};

}  // namespace

Json AgentWork::params() const {
  Json out{{"work", name}, {"prompt_length", prompt_length}, {"length", length}};
  if (!caller()) {
    out.update(
        {{"depth", depth}, {"width", width}, {"keep", keep}, {"judge_length", judge_length}});
  }
  return out;
}

AgentWork AgentWork::from(const Json& params) {
  return {.name = params.at("work"),
          .prompt_length = params.at("prompt_length"),
          .depth = params.value("depth", 1),
          .width = params.value("width", 1),
          .keep = params.value("keep", 1),
          .length = params.at("length"),
          .judge_length = params.value("judge_length", std::int64_t{0})};
}

std::int64_t AgentWork::kv_tokens() const {
  constexpr std::int64_t kPage = 32;  // what a run of tokens may leave of its last page, at most
  return prompt_length + kPage + depth * width * keep * (length + judge_length + kPage);
}

Json AgentRun::json() const {
  return {{"tokens", tokens}, {"token_times", token_times}, {"end", end}};
}

AgentRun AgentRun::from(const Json& json) {
  return {json.at("tokens"), json.at("token_times"), json.at("end")};
}

std::vector<AgentRun> run_agents(const Engine& engine, const AgentWork& work,
                                 std::span<const int> agents, int trial, std::mutex* turns) {
  return AgentThread(engine, work, agents, trial, turns).run();
}

}  // namespace dendrite::bench
