#include "chat/python_reader.h"

#include "chat/blank.h"

namespace dendrite::chats {
namespace {

constexpr std::size_t kMostDepth = 100;  // readers of what it passes recurse

}  // namespace

CallNow PythonReader::put(char c) {
  switch (place_) {
    case Place::kStart:
      place_ = Place::kBetween;
      in_list_ = c == '[';
      if (in_list_) return CallNow::kMore;
      [[fallthrough]];
    case Place::kBetween:
      if (is_blank(c) || (c == ',' && !name_.empty())) return CallNow::kMore;
      if (c == ']' && in_list_ && !name_.empty()) {
        ended_ = true;
        return CallNow::kMore;
      }
      name_.clear();
      arguments_.clear();
      arguments_.push_back('{');
      has_parameters_ = false;
      place_ = Place::kName;
      [[fallthrough]];
    case Place::kName:
      return put_name(c);
    case Place::kArgument:
      return put_argument(c);
  }
  return CallNow::kNoCall;
}

CallNow PythonReader::put_name(char c) {
  if (c == '(' && tools_->knows(name_)) {
    place_ = Place::kArgument;
    argument_.clear();
    return CallNow::kMore;
  }
  name_ += c;
  if (tools_->may_become(name_)) return CallNow::kMore;
  name_.pop_back();
  return CallNow::kNoCall;
}

CallNow PythonReader::put_argument(char c) {
  if (quote_ != '\0') {
    if (!is_escaped_ && c == quote_) quote_ = '\0';
    is_escaped_ = !is_escaped_ && c == '\\';
  } else if (open_.empty() && (c == ',' || c == ')')) {
    if (!end_argument()) return CallNow::kNoCall;
    if (c == ',') return CallNow::kMore;
    arguments_ += '}';
    has_begun_ = true;
    ended_ = !in_list_;
    place_ = Place::kBetween;
    return CallNow::kCallEnded;
  } else if (c == '"' || c == '\'') {
    quote_ = c;
  } else if (c == '(' || c == '[' || c == '{') {
    if (open_.size() == kMostDepth) return CallNow::kNoCall;
    open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
  } else if (c == ')' || c == ']' || c == '}') {
    if (open_.empty() || open_.back() != c) return CallNow::kNoCall;
    open_.pop_back();
  }
  argument_ += c;
  return CallNow::kMore;
}

/// False: it is no key with a literal.
bool PythonReader::end_argument() {
  const std::string argument = std::exchange(argument_, {});
  if (is_blank(argument)) return true;
  const std::size_t at = argument.find('=');
  if (at == std::string::npos) return false;
  const std::string_view key = stripped(std::string_view(argument).substr(0, at));
  if (key.empty() || key.find_first_of("\"'([{") != std::string_view::npos) return false;
  const std::string value = json_of_literal(std::string_view(argument).substr(at + 1));
  if (value.empty()) return false;
  arguments_.append(has_parameters_ ? ", " : "").append(json_string(key)).append(": ");
  arguments_.append(value);
  has_parameters_ = true;
  return true;
}

}  // namespace dendrite::chats
