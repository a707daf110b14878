#include "agent_modes.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <latch>
#include <numeric>
#include <thread>

#include "machine.h"

namespace dendrite::bench {
namespace {

/// One word, whatever is in it.
std::string for_shell(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

/// What started this process; the shell must not look for the program in the PATH.
std::string own_command() {
  std::string out = for_shell(std::filesystem::read_symlink("/proc/self/exe").string());
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0')) out += ' ' + for_shell(word);
  return out;
}

}  // namespace

double AgentRound::seconds() const {
  return std::ranges::max(runs, {}, &AgentRun::end).end - begin;
}

AgentRound run_threads(const Engine& engine, const AgentWork& work, int agents, int trial,
                       std::mutex* turns) {
  const auto count = static_cast<std::size_t>(agents);
  AgentRound round{.begin = 0, .runs = std::vector<AgentRun>(count)};
  std::vector<std::exception_ptr> errors(count);
  std::latch ready(agents);
  std::latch go(1);
  std::vector<std::jthread> threads;
  for (int agent = 0; agent < agents; ++agent) {
    threads.emplace_back([&, agent, index = static_cast<std::size_t>(agent)] {
      ready.count_down();
      go.wait();
      try {
        round.runs[index] = std::move(run_agents(engine, work, {&agent, 1}, trial, turns)[0]);
      } catch (...) {
        errors[index] = std::current_exception();
      }
    });
  }
  ready.wait();
  round.begin = now_seconds();
  go.count_down();
  threads.clear();  // joins
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return round;
}

AgentRound run_one_call(const Engine& engine, const AgentWork& work, int agents, int trial) {
  std::vector<int> numbers(static_cast<std::size_t>(agents));
  std::iota(numbers.begin(), numbers.end(), 0);
  const double begin = now_seconds();
  return {begin, run_agents(engine, work, numbers, trial, nullptr)};
}

AgentProcesses::AgentProcesses(int agents, int threads_each) {
  const std::string command =
      "exec " + own_command() + " --serve-agent " + std::to_string(threads_each);
  for (int i = 0; i < agents; ++i) peers_.push_back(std::make_unique<Peer>(command));
}

AgentRound AgentProcesses::run(const AgentWork& work, int trial) {
  AgentRound round{.begin = now_seconds(), .runs = {}};
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    peers_[i]->tell(Json{{"work", work.params()}, {"agent", i}, {"trial", trial}}.dump());
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    round.runs.push_back(AgentRun::from(Json::parse(peer->answer())));
  }
  return round;
}

void serve_agent(const Engine& engine) {
  for (std::string line; std::getline(std::cin, line);) {
    Json answer{{"ready", true}};
    if (line != "hello") {
      const Json asked = Json::parse(line);
      const int agent = asked.at("agent");
      answer = run_agents(engine, AgentWork::from(asked.at("work")), {&agent, 1}, asked.at("trial"),
                          nullptr)[0]
                   .json();
    }
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace dendrite::bench
