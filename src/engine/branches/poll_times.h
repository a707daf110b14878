#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace dendrite {

/// When threads called a session's SessionOptions::poll last: one that makes many short calls does
/// so no more often than one that waits in a long one.
class PollTimes {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kPeriod{50};

  /// When this thread is to call it next.
  Time due() const {
    const auto mine = std::ranges::find(last_, std::this_thread::get_id(), &Last::first);
    return mine == last_.end() ? Time::min() : mine->second + kPeriod;
  }
  /// This thread has just called it.
  void have_polled() {
    const Time now = std::chrono::steady_clock::now();
    const std::thread::id me = std::this_thread::get_id();
    std::erase_if(last_, [&](const Last& last) {
      return last.first == me || last.second + kPeriod <= now;  // those are due in any case
    });
    last_.emplace_back(me, now);
  }

 private:
  using Last = std::pair<std::thread::id, Time>;
  std::vector<Last> last_;
};

}  // namespace dendrite
