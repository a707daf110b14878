#pragma once

#include <memory>
#include <string>

#include "chat/json_scanner.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads calls as JSON by their characters: one object {"name", "arguments" or "parameters"}, or an
/// array of such. Copyable.
class CallReader {
 public:
  enum class Now {
    kMore,
    kNoCall,     ///< the object, or what stands in its place, is none; the character is taken
    kCallEnded,  ///< an object that has begun as a call
    kBroken,     ///< no JSON; the character is not taken
  };

  explicit CallReader(std::shared_ptr<const ToolTable> tools) : tools_(std::move(tools)) {}

  /// The first is "{" or "[".
  Now put(char c);
  /// The name of a tool and an object of arguments are known: it is a call.
  bool has_begun() const { return knows_name_ && has_arguments_; }
  const std::string& name() const { return name_; }
  /// Of the call's arguments, what came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  /// Whether it has given its arguments once.
  bool is_clear() const { return is_clear_; }
  /// All that was opened is closed.
  bool ended() const { return scanner_.depth() == 0; }
  /// In an array, outside of its objects.
  bool is_between() const { return scanner_.depth() < inside_; }

 private:
  enum class Key { kOther, kName, kArguments };
  bool key_ended();
  bool value_begins(char c);
  bool name_ended();

  std::shared_ptr<const ToolTable> tools_;
  JsonScanner scanner_;
  std::size_t inside_ = 0;  // the depth in a call's object
  Key key_ = Key::kOther;
  bool in_value_ = false;  // of this key, at that depth
  std::string word_;       // the key, or the name, as JSON
  std::string name_, arguments_;
  bool knows_name_ = false, has_arguments_ = false, is_clear_ = true;
};

}  // namespace dendrite::chats
