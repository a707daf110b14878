#include <algorithm>
#include <set>

#include "dendrite/search/answers.h"
#include "search/answer_sampler.h"
#include "search/evaluators.h"

namespace dendrite {

SearchResult run(Session& session, Branch root, const BestOfN& s) {
  SearchLog log(s.on_event);
  Judge judge("best-of-n", s.judgement, mean_logprob);
  if (was_cut_short(root.finish())) return log.end(root.finish());
  const auto solves = [&](const Answer& answer) {
    return s.solved && answer.ended() && !answer.is_cut_inside() &&
           s.solved(answer.thought.branch, answer.thought.text);
  };
  const Answer* first = nullptr;
  std::function<bool(std::span<Answer* const>)> on_ended;
  if (s.first_success) {
    on_ended = [&](std::span<Answer* const> ended) {
      const auto found =
          std::ranges::find_if(ended, [&](const Answer* answer) { return solves(*answer); });
      if (found != ended.end()) first = *found;
      return first != nullptr;
    };
  }
  std::vector<Answer> answers =
      sample_answers(session, std::move(root), s.n, s.sampling, s.cancel, on_ended);
  const Finish finish = first == nullptr ? finish_of(answers) : Finish::kStop;

  std::vector<Thought*> ended;
  std::set<const Thought*> solutions;
  std::set<const Thought*> cut;  // inside of what a constraint asks for
  for (Answer& answer : answers) {
    log.proposed(answer.thought);
    if (!answer.ended()) continue;
    if (s.first_success ? &answer == first : solves(answer)) solutions.insert(&answer.thought);
    if (answer.is_cut_inside()) cut.insert(&answer.thought);
    ended.push_back(&answer.thought);
  }
  judge.ask(ended);
  const std::vector<double> values = judge.take(session);
  for (std::size_t i = 0; i < ended.size(); ++i) log.judged(*ended[i], values[i]);
  std::ranges::stable_sort(ended, [&](const Thought* a, const Thought* b) {
    if (solutions.contains(a) != solutions.contains(b)) return solutions.contains(a);
    if (cut.contains(a) != cut.contains(b)) return cut.contains(b);
    return rank(a->value) > rank(b->value);
  });
  for (Answer& answer : answers) {
    if (!ended.empty() && &answer.thought == ended.front()) {
      log.kept(answer.thought);
    } else {
      log.pruned(answer.thought);
    }
  }
  if (ended.empty()) return log.end(finish);
  SearchResult result = solutions.empty() ? log.end_at(std::move(*ended.front()), finish)
                                          : log.solved(std::move(*ended.front()));
  for (std::size_t i = 1; i < ended.size(); ++i) result.others.push_back(std::move(*ended[i]));
  return result;
}

}  // namespace dendrite
