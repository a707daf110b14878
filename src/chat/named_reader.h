#pragma once

#include <memory>
#include <string>

#include "chat/call_tags.h"
#include "chat/json_scanner.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads a call as `f[ARGS]{...}`, also with `[CALL_ID]` and an id before, or with neither, by its
/// characters, from its name on. Copyable.
class NamedReader {
 public:
  explicit NamedReader(std::shared_ptr<const ToolTable> tools) : tools_(std::move(tools)) {}

  CallNow put(char c);
  /// The `{` of its arguments came.
  bool has_begun() const { return place_ == Place::kJson; }
  const std::string& name() const { return name_; }
  /// What may be part of a mark.
  const std::string& unread() const { return partial_; }
  bool ended() const { return has_begun() && json_.depth() == 0; }
  /// Of the arguments, what came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  /// The text has ended: it is no whole call.
  bool finish() const { return false; }

 private:
  enum class Place { kName, kId, kBehindMark, kJson };

  CallNow put_mark(char c);
  CallNow put_json(char c);

  std::shared_ptr<const ToolTable> tools_;
  Place place_ = Place::kName;
  JsonScanner json_;
  std::string name_, partial_, arguments_;
};

}  // namespace dendrite::chats
