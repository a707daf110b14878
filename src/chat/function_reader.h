#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads a call as `<function=f><parameter=p>value</parameter></function>` by its characters, from
/// behind `<function=`. Copyable.
class FunctionReader {
 public:
  enum class Now {
    kMore,
    kNoCall,     ///< the character, and unread() before it, are not taken
    kCallEnded,  ///< by its end tag, or that of <tool_call>
  };

  explicit FunctionReader(std::shared_ptr<const ToolTable> tools) : tools_(std::move(tools)) {}

  Now put(char c);
  /// It is a call. From then on it is one whatever comes.
  bool has_begun() const { return has_begun_; }
  const std::string& name() const { return name_; }
  /// What may be part of a tag.
  const std::string& unread() const { return partial_; }
  /// Of the arguments as JSON, what came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  /// The text has ended, by itself, without an end tag. False: it is no call.
  bool finish();

 private:
  enum class Place { kName, kHead, kParameter, kValue, kBetween };

  Now put_tag(char c);
  void put_value(char c);
  void put_text(char c);
  void begin_parameter();
  void begin_value();
  void end_value();
  Now end();

  std::shared_ptr<const ToolTable> tools_;
  Place place_ = Place::kName;
  std::string name_, partial_, arguments_;
  bool has_begun_ = false, has_parameters_ = false;
  // Of a parameter:
  std::string key_, value_;
  std::vector<std::string> types_;
  bool is_text_ = false;     // its type: told as it comes
  bool at_begin_ = true;     // nothing of its value came
  bool line_ended_ = false;  // by what may be the last line end
};

}  // namespace dendrite::chats
