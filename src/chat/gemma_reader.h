#pragma once

#include <memory>
#include <string>

#include "chat/call_tags.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {

/// Reads a call as `f{key:value,...}` by its characters, from its name on. Values are texts between
/// <|"|>, in which nothing is escaped, or of JSON, numbers, words, {key:value} and [value]; what is
/// no JSON among the words is a text. Copyable.
class GemmaReader {
 public:
  explicit GemmaReader(std::shared_ptr<const ToolTable> tools) : tools_(std::move(tools)) {}

  CallNow put(char c);
  /// The `{` of its arguments came.
  bool has_begun() const { return place_ != Place::kName; }
  const std::string& name() const { return name_; }
  std::string unread() const { return {}; }
  bool ended() const { return has_begun() && open_.empty(); }
  /// Of the arguments as JSON, what came since the last time.
  std::string take_arguments() { return std::exchange(arguments_, {}); }
  /// The text has ended: it is no whole call.
  bool finish() const { return false; }

 private:
  enum class Place {
    kName,
    kKey,      // a key, or the end of the object
    kBareKey,  // inside of one
    kColon,    // behind a key in quotes
    kValue,    // a value, or the end of an array
    kBare,     // inside of a number or a word
    kQuote,    // inside of the mark that opens a text
    kText,
    kJsonText,
    kEscape,
    kBehind,  // a value
  };

  CallNow open(char c);
  CallNow close(char c);
  CallNow put_key(char c);
  CallNow put_value(char c);
  CallNow put_quote(char c);
  CallNow put_text(char c);
  CallNow put_behind(char c);
  void begin_item();
  void begin_text(Place place);
  void end_text();
  bool is_key() const { return open_.back() == '{' && at_key_; }

  std::shared_ptr<const ToolTable> tools_;
  Place place_ = Place::kName;
  std::string name_, arguments_;
  std::string open_;      // "{" and "["
  std::string bare_;      // a key or a value without quotes
  std::string partial_;   // what may be a mark
  bool at_key_ = true;    // what begins, or is in quotes, is a key
  bool is_first_ = true;  // of an object or an array
};

}  // namespace dendrite::chats
