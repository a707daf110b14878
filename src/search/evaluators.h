#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dendrite/search/common.h"

namespace dendrite {

/// Calls a user's evaluator in threads of its own, while the caller goes on computing. Values are
/// asked for by candidate, so that no result depends on which is ready first.
class Evaluators {
 public:
  /// No threads: submit calls the evaluator itself.
  Evaluators(std::function<double(const Candidate&)> evaluate, int threads);
  /// Waits for evaluations that have begun; those that have not are dropped.
  ~Evaluators();
  Evaluators(const Evaluators&) = delete;
  Evaluators& operator=(const Evaluators&) = delete;

  /// The future has the evaluator's value, or throws what it threw. (Without threads that comes out
  /// at once.)
  std::future<double> submit(Candidate candidate);
  bool concurrent() const { return !threads_.empty(); }

 private:
  void work();

  std::function<double(const Candidate&)> evaluate_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<double()>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

/// The values of thoughts by a Judgement: asked for first, taken later.
class Judge {
 public:
  /// Throws Error when both callables are set or a number is out of range. `fallback` where none
  /// is.
  Judge(std::string search, const Judgement& judgement, double (*fallback)(const Thought&));

  bool concurrent() const { return evaluators_.concurrent(); }
  /// What is left for take to wait for. Evaluators begin; a judge that computes is called in take.
  void ask(std::span<Thought* const> thoughts);
  /// Values of all that were asked for, in that order. NaN where a judge could not compute.
  std::vector<double> take(Session& session);

 private:
  std::string search_;
  const Judgement& judgement_;
  double (*fallback_)(const Thought&);
  std::vector<Thought*> asked_;
  std::vector<std::future<double>> values_;
  Evaluators evaluators_;
};

/// The mean log-prob of the thought's tokens.
double mean_logprob(const Thought& thought);

}  // namespace dendrite
