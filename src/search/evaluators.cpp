#include "search/evaluators.h"

#include "dendrite/error.h"
#include "search/search_log.h"

namespace dendrite {

Evaluators::Evaluators(std::function<double(const Candidate&)> evaluate, int threads)
    : evaluate_(std::move(evaluate)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Evaluators::~Evaluators() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::future<double> Evaluators::submit(Candidate candidate) {
  if (threads_.empty()) {
    std::promise<double> known;
    known.set_value(evaluate_(candidate));
    return known.get_future();
  }
  std::packaged_task<double()> task(
      [this, candidate = std::move(candidate)] { return evaluate_(candidate); });
  std::future<double> value = task.get_future();
  {
    const std::scoped_lock lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  wake_.notify_one();
  return value;
}

void Evaluators::work() {
  for (;;) {
    std::packaged_task<double()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (ending_) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task();
  }
}

Judge::Judge(std::string search, const Judgement& judgement, double (*fallback)(const Thought&))
    : search_(std::move(search)),
      judgement_(judgement),
      fallback_(fallback),
      evaluators_(judgement.evaluate, judgement.evaluate ? judgement.evaluator_threads : 0) {
  if (judgement.judge && judgement.evaluate) {
    throw Error(search_ + ": judge and evaluate are both set; expected at most one of them");
  }
}

void Judge::ask(std::span<Thought* const> thoughts) {
  for (Thought* thought : thoughts) {
    asked_.push_back(thought);
    if (!judgement_.evaluate) continue;
    values_.push_back(evaluators_.submit(
        {thought->node, thought->depth, thought->text, thought->branch.text(), thought->logprob}));
  }
}

std::vector<double> Judge::take(Session& session) {
  const std::vector<Thought*> asked = std::exchange(asked_, {});
  std::vector<double> values;
  if (asked.empty()) return values;
  if (judgement_.evaluate) {
    for (std::future<double>& value : std::exchange(values_, {})) values.push_back(value.get());
  } else if (judgement_.judge) {
    std::vector<Branch> branches;
    for (Thought* thought : asked) branches.push_back(std::move(thought->branch));
    values = judgement_.judge(session, branches);
    check_count(search_, "judge", "values", values.size(), asked.size());
    for (std::size_t i = 0; i < asked.size(); ++i) asked[i]->branch = std::move(branches[i]);
  } else {
    for (const Thought* thought : asked) values.push_back(fallback_(*thought));
  }
  return values;
}

double mean_logprob(const Thought& thought) {
  return thought.tokens > 0 ? thought.logprob / static_cast<double>(thought.tokens) : 0;
}

}  // namespace dendrite
