#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "report.h"

namespace dendrite::bench {

/// What one agent does: a tree of thoughts of a fixed shape. Its prompt is computed; on each level
/// every kept path gets `width` children of `length` sampled tokens, they are judged by the
/// log-prob of a fixed suffix, and the best `keep` go on. Prompts differ from agent to agent and
/// from trial to trial; the tokens depend on these two numbers alone.
struct AgentWork {
  std::string name;
  std::int64_t prompt_length = 1;
  int depth = 1;
  int width = 1;
  int keep = 1;
  std::int64_t length = 1;
  std::int64_t judge_length = 0;  // 0: children are judged by their own log-prob

  /// A branch without a tree. Such agents sample with parameters of their own.
  bool caller() const { return depth * width == 1; }
  Json params() const;
  static AgentWork from(const Json& params);
  /// Pages that one agent needs at most, in tokens.
  std::int64_t kv_tokens() const;
};

/// What one agent did, and when, by now_seconds(), which all processes of a machine share.
struct AgentRun {
  std::vector<Token> tokens;        // of all branches, call by call
  std::vector<double> token_times;  // of the first branch of each call
  double end = 0;

  Json json() const;
  static AgentRun from(const Json& json);
};

/// Runs these agents in this thread, in one session: one, or several whose branches share every
/// call (callers then sample like the first). `turns`, where there is one, is held during each call
/// that computes. Throws Error when KV pages run out.
std::vector<AgentRun> run_agents(const Engine& engine, const AgentWork& work,
                                 std::span<const int> agents, int trial, std::mutex* turns);

}  // namespace dendrite::bench
