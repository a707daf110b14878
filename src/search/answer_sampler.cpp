#include "search/answer_sampler.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite {
namespace {

/// One sampling of answers. Token by token it decodes in calls of one token each: the same steps
/// as one call, and between them what has ended can be looked at.
class Sampling {
 public:
  Sampling(Session& session, Branch root, int count, const DecodeParams& sampling,
           std::stop_token cancel)
      : session_(session),
        sampling_(sampling),
        root_length_(root.length()),
        root_logprob_(root.logprob()),
        root_text_(root.text()) {
    sampling_.cancel = std::move(cancel);
    for (const std::string& stop : sampling_.stop) {
      longest_stop_ = std::max(longest_stop_, static_cast<std::int64_t>(stop.size()));
    }
    answers_.resize(static_cast<std::size_t>(count));
    std::vector<Branch> forks = root.fork(count);
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      answers_[i].thought.branch = std::move(forks[i]);
      answers_[i].thought.depth = 1;
    }
  }

  void in_one_call() {
    std::vector<Answer*> running;
    for (Answer& answer : answers_) running.push_back(&answer);
    decode(running, sampling_);
  }

  void token_by_token(const std::function<bool(std::span<Answer* const>)>& on_ended) {
    DecodeParams one = sampling_;
    one.constraint.reset();  // which is of all these calls together
    if (sampling_.constraint) {
      for (Answer& answer : answers_) answer.thought.branch.constrain(*sampling_.constraint);
    }
    one.max_tokens = std::min<std::int64_t>(1, sampling_.max_tokens);
    std::vector<Answer*> running;
    for (Answer& answer : answers_) running.push_back(&answer);
    for (std::int64_t token = 1; !running.empty(); ++token) {
      decode(running, one);
      std::vector<Answer*> ended;
      for (Answer* answer : running) {
        if (answer->finish == Finish::kLength) {
          const Finish finish = finish_across_tokens(*answer);
          const bool ends = finish != Finish::kRunning;
          if (ends || token < sampling_.max_tokens) answer->finish = finish;
        }
        if (answer->ended()) ended.push_back(answer);
      }
      std::erase_if(running, [](const Answer* a) { return a->finish != Finish::kRunning; });
      for (Answer* answer : ended) measure(answer->thought);
      if (!ended.empty() && on_ended(ended)) break;
    }
    if (sampling_.constraint) {
      for (Answer& answer : answers_) answer.thought.branch.unconstrain();
    }
  }

  std::vector<Answer> take() {
    for (Answer& answer : answers_) measure(answer.thought);
    return std::move(answers_);
  }

 private:
  void decode(std::span<Answer* const> running, const DecodeParams& params) {
    std::vector<Branch> branches;
    for (Answer* answer : running) branches.push_back(std::move(answer->thought.branch));
    const std::vector<Generation> out = session_.decode(branches, params);
    for (std::size_t i = 0; i < running.size(); ++i) {
      running[i]->thought.branch = std::move(branches[i]);
      running[i]->finish = out[i].finish;
    }
  }

  /// Whether a stop string ends with the last token that began in an earlier one.
  bool stop_across_tokens(const Answer& answer) const {
    if (longest_stop_ < 2) return false;
    const std::string text = added_text(answer.thought.branch, root_text_);
    return std::ranges::any_of(sampling_.stop, [&](const std::string& stop) {
      return text.find(stop) != std::string::npos;
    });
  }

  /// How it ended where each token was a call of its own, if it did.
  Finish finish_across_tokens(Answer& answer) const {
    if (!stop_across_tokens(answer)) return Finish::kRunning;
    measure(answer.thought);
    Thought& thought = answer.thought;
    const bool whole = may_end_at_stop(thought.branch, root_text_, thought.text);
    return whole ? Finish::kStop : Finish::kStopInside;
  }

  void measure(Thought& thought) const {
    thought.tokens = thought.branch.length() - root_length_;
    thought.logprob = thought.branch.logprob() - root_logprob_;
    thought.text = added_text(thought.branch, root_text_);
    std::size_t end = thought.text.size();
    for (const std::string& stop : sampling_.stop) end = std::min(end, thought.text.find(stop));
    thought.text.resize(end);
  }

  Session& session_;
  DecodeParams sampling_;
  std::int64_t longest_stop_ = 0;  // bytes
  std::int64_t root_length_;
  double root_logprob_;
  std::string root_text_;
  std::vector<Answer> answers_;
};

}  // namespace

std::vector<Answer> sample_answers(
    Session& session, Branch root, int count, const DecodeParams& sampling, std::stop_token cancel,
    const std::function<bool(std::span<Answer* const> ended)>& on_ended) {
  if (count < 1) throw Error("answers: n is " + std::to_string(count) + "; expected >= 1");
  Sampling run(session, std::move(root), count, sampling, std::move(cancel));
  if (on_ended) {
    run.token_by_token(on_ended);
  } else {
    run.in_one_call();
  }
  return run.take();
}

Finish finish_of(std::span<const Answer> answers) {
  for (const Answer& answer : answers) {
    if (was_cut_short(answer.finish)) return answer.finish;
  }
  return Finish::kStop;
}

}  // namespace dendrite
