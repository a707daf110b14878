#include "chat/function_reader.h"

#include <algorithm>
#include <array>

#include "chat/blank.h"

namespace dendrite::chats {

/// What stands where.
struct FunctionReader::Tags {
  std::string_view name_end;   // empty: a blank or a tag ends the name
  std::string_view parameter;  // before a key
  std::string_view key_end;
  std::string_view value;  // behind that, blanks aside, before a value; empty: nothing
  std::string_view value_end;
  std::array<std::string_view, 3> ends;  // of the call; empty ones are none
  bool lines;                            // a value's first and last line end are not its own
};

const FunctionReader::Tags& FunctionReader::tags_of(CallStyle kind) {
  static const Tags kFunction = {
      ">", "<parameter=",  ">",
      "",  "</parameter>", {"</function>", "</tool_call>", "</seed:tool_call>"},
      true};
  static const Tags kInvoke = {"\">", "<parameter name=\"", "\">",
                               "",    "</parameter>",       {"</invoke>", "</minimax:tool_call>"},
                               true};
  static const Tags kKeys = {
      "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", {"</tool_call>"}, false};
  return kind == CallStyle::kFunction ? kFunction : kind == CallStyle::kInvoke ? kInvoke : kKeys;
}

FunctionReader::FunctionReader(CallStyle kind, std::shared_ptr<const ToolTable> tools)
    : tags_(&tags_of(kind)), tools_(std::move(tools)) {}

bool FunctionReader::is_end(std::string_view tag) const {
  return std::ranges::count(tags_->ends, tag) > 0;
}

bool FunctionReader::may_be_tag(std::string_view text) const {
  const auto begins = [&](std::string_view tag) { return tag.starts_with(text); };
  if (place_ == Place::kBehindKey && begins(tags_->value)) return true;
  return begins(tags_->parameter) || begins(tags_->value_end) ||
         std::ranges::any_of(tags_->ends, begins);
}

CallNow FunctionReader::put(char c) {
  switch (place_) {
    case Place::kName:
    case Place::kNameEnd:
      return put_name(c);
    case Place::kKey:
      key_ += c;
      if (!key_.ends_with(tags_->key_end)) return CallNow::kMore;
      key_.resize(key_.size() - tags_->key_end.size());
      if (tags_->value.empty()) {
        begin_value();
      } else {
        place_ = Place::kBehindKey;
      }
      return CallNow::kMore;
    default:
      return put_tag(c);
  }
}

CallNow FunctionReader::put_name(char c) {
  if (place_ == Place::kNameEnd) {  // behind the first of two characters
    if (c != tags_->name_end.back()) return CallNow::kNoCall;
    place_ = Place::kHead;
    return CallNow::kMore;
  }
  const bool ends = tags_->name_end.empty() ? is_blank(c) || c == '<' : c == tags_->name_end[0];
  if (!ends) {
    name_ += c;
    if (tools_->may_become(name_)) return CallNow::kMore;
    name_.pop_back();
    return CallNow::kNoCall;
  }
  if (!tools_->knows(name_)) return CallNow::kNoCall;
  place_ = tags_->name_end.size() > 1 ? Place::kNameEnd : Place::kHead;
  return tags_->name_end.empty() ? put_tag(c) : CallNow::kMore;
}

/// Where a tag may come.
CallNow FunctionReader::put_tag(char c) {
  if (partial_.empty() && c != '<') {
    if (place_ == Place::kHead && !is_blank(c)) return CallNow::kNoCall;
    if (place_ == Place::kValue) put_text(c);
    return CallNow::kMore;  // (blanks, and what has no place between parameters)
  }
  if (may_be_tag(partial_ + c)) {
    partial_ += c;
    const bool is_value = place_ == Place::kBehindKey && partial_ == tags_->value;
    const bool is_value_end = partial_ == tags_->value_end;
    const bool is_parameter = partial_ == tags_->parameter;
    if (!is_value && !is_value_end && !is_parameter && !is_end(partial_)) return CallNow::kMore;
    partial_.clear();
    has_begun_ = has_begun_ || !is_value_end;
    if (is_value) {
      begin_value();
      return CallNow::kMore;
    }
    if (place_ == Place::kValue) end_value();
    place_ = place_ == Place::kHead && is_value_end ? Place::kHead : Place::kBetween;
    if (is_parameter) begin_parameter();
    return is_parameter || is_value_end ? CallNow::kMore : end();
  }
  if (place_ == Place::kHead) return CallNow::kNoCall;
  for (const char each : std::exchange(partial_, {})) {
    if (place_ == Place::kValue) put_text(each);
  }
  return put_tag(c);
}

void FunctionReader::begin_parameter() {
  place_ = Place::kKey;
  key_.clear();
}

void FunctionReader::begin_value() {
  place_ = Place::kValue;
  arguments_ += (has_parameters_ ? ", " : "{") + json_string(key_) + ": ";
  has_parameters_ = true;
  types_ = tools_->types(name_, key_);
  is_text_ = types_ == std::vector<std::string>{"string"};
  if (is_text_) arguments_ += '"';
  value_.clear();
  at_begin_ = true;
  line_ended_ = false;
}

/// A character of a value.
void FunctionReader::put_text(char c) {
  if (!tags_->lines) return put_value(c);
  if (std::exchange(at_begin_, false) && c == '\n') return;
  if (std::exchange(line_ended_, c == '\n')) put_value('\n');
  if (c != '\n') put_value(c);
}

void FunctionReader::put_value(char c) {
  if (is_text_) {
    add_escaped(arguments_, c);
  } else {
    value_ += c;
  }
}

void FunctionReader::end_value() {
  if (is_text_) {
    arguments_ += '"';
  } else {
    arguments_ += typed(value_, types_);
  }
}

CallNow FunctionReader::end() {
  arguments_ += has_parameters_ ? "}" : "{}";
  ended_ = true;
  return CallNow::kCallEnded;
}

bool FunctionReader::finish() {
  if (place_ == Place::kName || place_ == Place::kNameEnd) return false;
  if (place_ == Place::kHead && !partial_.empty()) return false;
  if (place_ == Place::kValue) {
    for (const char each : std::exchange(partial_, {})) put_text(each);
    end_value();
  }
  has_begun_ = true;
  end();
  return true;
}

}  // namespace dendrite::chats
