#pragma once

#include <memory>

#include "agent_work.h"
#include "peer.h"

namespace dendrite::bench {

/// Agents that started together.
struct AgentRound {
  double begin = 0;
  std::vector<AgentRun> runs;

  double seconds() const;  // until the last has ended
};

/// Each agent in a thread of its own.
AgentRound run_threads(const Engine& engine, const AgentWork& work, int agents, int trial,
                       std::mutex* turns);

/// The first `agents` agents by this thread, their branches in the same calls.
AgentRound run_one_call(const Engine& engine, const AgentWork& work, int agents, int trial);

/// Each agent in a process of its own, with an engine of its own: this program again, with the
/// arguments that this process was started with and `--serve-agent THREADS`.
class AgentProcesses {
 public:
  /// Returns when all have loaded. Throws Error when one cannot.
  AgentProcesses(int agents, int threads_each);
  AgentRound run(const AgentWork& work, int trial);

 private:
  std::vector<std::unique_ptr<Peer>> peers_;
};

/// Such a process: answers lines of standard input until it ends.
void serve_agent(const Engine& engine);

}  // namespace dendrite::bench
