#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "search/search_log.h"

namespace dendrite {

/// A sampled answer, finished or not.
struct Answer {
  Thought thought;
  Finish finish = Finish::kRunning;
  /// A stop ended it inside of what its constraint asks for: it is no answer of that form.
  bool is_cut_inside() const { return finish == Finish::kStopInside; }
  bool ended() const { return finish != Finish::kRunning && !was_cut_short(finish); }
};

/// Samples `count` answers in one batch. `on_ended`, where there is one, is told of those that
/// ended after every step, in the order of the answers, and returns whether that is enough: then
/// the rest stays unfinished. Which answers it has heard of by then does not depend on the batch or
/// on threads: all are equally long.
std::vector<Answer> sample_answers(
    Session& session, Branch root, int count, const DecodeParams& sampling, std::stop_token cancel,
    const std::function<bool(std::span<Answer* const> ended)>& on_ended);

/// Why not all answers could be finished, or kStop.
Finish finish_of(std::span<const Answer> answers);

}  // namespace dendrite
