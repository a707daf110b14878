#pragma once

#include <memory>
#include <string>

#include "chat/call_tags.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads calls as a program in Python has them, `f(key=value, ...)` or several of them in a list,
/// by their characters. Values are literals; a call is one when it is whole. Copyable.
class PythonReader {
 public:
  explicit PythonReader(std::shared_ptr<const ToolTable> tools) : tools_(std::move(tools)) {}

  CallNow put(char c);
  /// A call was read, which is told once.
  bool has_begun() const { return has_begun_; }
  const std::string& name() const { return name_; }
  std::string unread() const { return {}; }
  bool ended() const { return ended_; }
  std::string take_arguments() {
    has_begun_ = false;
    return std::exchange(arguments_, {});
  }
  /// The text has ended: it is no whole call.
  bool finish() const { return false; }

 private:
  enum class Place { kStart, kBetween, kName, kArgument };

  CallNow put_name(char c);
  CallNow put_argument(char c);
  bool end_argument();

  std::shared_ptr<const ToolTable> tools_;
  Place place_ = Place::kStart;
  bool in_list_ = false, has_begun_ = false, ended_ = false;
  std::string name_, arguments_;
  std::string argument_;  // key=value, so far
  std::string open_;      // brackets inside of it
  char quote_ = '\0';     // of the text that it is in
  bool is_escaped_ = false;
  bool has_parameters_ = false;
};

}  // namespace dendrite::chats
