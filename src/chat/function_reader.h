#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_tags.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads a call whose parameters stand between tags by its characters, from its name on. Copyable.
class FunctionReader {
 public:
  /// `kind`: kFunction, kInvoke or kKeys.
  FunctionReader(CallStyle kind, std::shared_ptr<const ToolTable> tools);

  CallNow put(char c);
  /// It is a call. From then on it is one whatever comes.
  bool has_begun() const { return has_begun_; }
  const std::string& name() const { return name_; }
  /// What may be part of a tag.
  const std::string& unread() const { return partial_; }
  bool ended() const { return ended_; }
  /// Of the arguments as JSON, what came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  /// The text has ended, by itself, without an end tag. False: it is no call.
  bool finish();

 private:
  struct Tags;
  enum class Place { kName, kNameEnd, kHead, kKey, kBehindKey, kValue, kBetween };

  static const Tags& tags_of(CallStyle kind);
  CallNow put_name(char c);
  CallNow put_tag(char c);
  void put_value(char c);
  void put_text(char c);
  void begin_parameter();
  void begin_value();
  void end_value();
  CallNow end();
  bool may_be_tag(std::string_view text) const;
  bool is_end(std::string_view tag) const;

  const Tags* tags_;
  std::shared_ptr<const ToolTable> tools_;
  Place place_ = Place::kName;
  std::string name_, partial_, arguments_;
  bool has_begun_ = false, has_parameters_ = false, ended_ = false;
  // Of a parameter:
  std::string key_, value_;
  std::vector<std::string> types_;
  bool is_text_ = false;     // its type: told as it comes
  bool at_begin_ = true;     // nothing of its value came
  bool line_ended_ = false;  // by what may be the last line end
};

}  // namespace dendrite::chats
