#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "dendrite/search/answers.h"
#include "search/answer_sampler.h"

namespace dendrite {
namespace {

/// Counts votes in the order in which they come in.
class Ballot {
 public:
  void add(const std::string& answer) {
    const auto found =
        std::ranges::find_if(votes_, [&](const Vote& vote) { return vote.answer == answer; });
    if (found == votes_.end()) {
      votes_.push_back({answer, 1});
    } else {
      ++found->count;
    }
    ++total_;
  }

  /// Most votes first; ties: the answer that was there first.
  std::vector<Vote> ranked() const {
    std::vector<Vote> votes = votes_;
    std::ranges::stable_sort(votes, std::greater{}, &Vote::count);
    return votes;
  }

  /// Whether the leader is settled, with `open` votes still to come.
  bool settled(double confidence, int open) const {
    const std::vector<Vote> votes = ranked();
    if (votes.empty()) return false;
    const int second = votes.size() > 1 ? votes[1].count : 0;
    return votes[0].count > second + open ||
           majority_confidence(votes[0].count, second) >= confidence;
  }

  int total() const { return total_; }

 private:
  std::vector<Vote> votes_;
  int total_ = 0;
};

}  // namespace

double majority_confidence(int first, int second) {
  // The Beta distribution's tail for whole numbers: of n = first + second + 1 fair coins, at most
  // `first` show heads.
  const int n = first + second + 1;
  double log_term = -n * std::log(2.0);  // of exactly `heads` heads
  double below = 0;
  for (int heads = 0; heads <= first; ++heads) {
    below += std::exp(log_term);
    log_term += std::log(static_cast<double>(n - heads) / (heads + 1));
  }
  return below;
}

SearchResult run(Session& session, Branch root, const SelfConsistency& s) {
  if (!(s.confidence > 0 && s.confidence <= 1)) {
    throw Error("self-consistency: confidence is " + std::to_string(s.confidence) +
                "; expected more than 0 and at most 1");
  }
  SearchLog log(s.on_event);
  if (was_cut_short(root.finish())) return log.end(root.finish());
  Ballot ballot;
  std::vector<std::pair<Answer*, std::optional<std::string>>> said;
  bool settled = false;
  const auto count = [&](std::span<Answer* const> ended) {
    for (Answer* answer : ended) {
      const Thought& thought = answer->thought;
      std::optional<std::string> vote;
      if (!answer->is_cut_inside()) {
        vote = s.answer ? s.answer(thought.branch, thought.text) : std::optional(thought.text);
      }
      said.emplace_back(answer, std::move(vote));
      if (said.back().second) ballot.add(*said.back().second);
    }
    return settled = ballot.settled(s.confidence, s.n - static_cast<int>(said.size()));
  };
  std::vector<Answer> answers =
      s.confidence < 1 ? sample_answers(session, std::move(root), s.n, s.sampling, s.cancel, count)
                       : sample_answers(session, std::move(root), s.n, s.sampling, s.cancel, {});
  if (s.confidence == 1) {
    std::vector<Answer*> ended;
    for (Answer& answer : answers) {
      if (answer.ended()) ended.push_back(&answer);
    }
    // In the order in which they ended, as when votes are counted step by step.
    std::ranges::stable_sort(ended, {},
                             [](const Answer* answer) { return answer->thought.tokens; });
    count(ended);
  }
  const Finish finish = s.confidence < 1 && settled ? Finish::kStop : finish_of(answers);

  std::vector<Vote> votes = ballot.ranked();
  for (Answer& answer : answers) log.proposed(answer.thought);
  Thought* winner = nullptr;
  for (auto& [answer, vote] : said) {
    if (!vote) continue;
    const auto own = std::ranges::find(votes, *vote, &Vote::answer);
    log.judged(answer->thought, static_cast<double>(own->count) / ballot.total());
    if (winner == nullptr && own == votes.begin()) winner = &answer->thought;
  }
  for (Answer& answer : answers) {
    if (&answer.thought == winner) {
      log.kept(answer.thought);
    } else {
      log.pruned(answer.thought);
    }
  }
  SearchResult result;
  if (winner == nullptr) {
    result = log.end(finish);
  } else if (s.solved && s.solved(winner->branch, winner->text)) {
    result = log.solved(std::move(*winner));
  } else {
    result = log.end_at(std::move(*winner), finish);
  }
  result.votes = std::move(votes);
  return result;
}

}  // namespace dendrite
