#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dendrite/tool_calls.h"

namespace dendrite::chats {

/// Puts the events of one answer together: neighbours that say the same are one. Copyable.
class EventWriter {
 public:
  /// kReasoning or kContent.
  void say(ReplyEvent::Kind kind, std::string_view text);
  void begin_call(const std::string& name);
  void add_arguments(std::string_view text);
  void end_call(bool complete);

  /// A call was told that has not ended.
  bool in_call() const { return in_call_; }
  std::size_t calls() const { return calls_; }  ///< that were told
  /// What came since the last time.
  std::vector<ReplyEvent> take() { return std::exchange(events_, {}); }

 private:
  ReplyEvent& last(ReplyEvent::Kind kind);

  std::vector<ReplyEvent> events_;
  std::size_t calls_ = 0;
  bool in_call_ = false;
};

}  // namespace dendrite::chats
