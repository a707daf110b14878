#include "chat/function_reader.h"

#include <algorithm>
#include <array>

#include "chat/blank.h"

namespace dendrite::chats {
namespace {

constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::array<std::string_view, 4> kTags = {kParameter, kParameterEnd, "</function>",
                                                   "</tool_call>"};

bool is_tag(std::string_view text) {
  return std::ranges::count(kTags, text) > 0;
}

bool may_be_tag(std::string_view text) {
  return std::ranges::any_of(kTags, [&](std::string_view tag) { return tag.starts_with(text); });
}

}  // namespace

FunctionReader::Now FunctionReader::put(char c) {
  switch (place_) {
    case Place::kName:
      if (c != '>') {
        name_ += c;
        if (tools_->may_become(name_)) return Now::kMore;
        name_.pop_back();
        return Now::kNoCall;
      }
      if (!tools_->knows(name_)) return Now::kNoCall;
      place_ = Place::kHead;
      return Now::kMore;
    case Place::kParameter:
      if (c == '>') {
        begin_value();
      } else {
        key_ += c;
      }
      return Now::kMore;
    default:
      return put_tag(c);
  }
}

/// Where a tag may come.
FunctionReader::Now FunctionReader::put_tag(char c) {
  if (partial_.empty() && c != '<') {
    if (place_ == Place::kHead && !is_blank(c)) return Now::kNoCall;
    if (place_ == Place::kValue) put_text(c);
    return Now::kMore;  // (blanks, and what has no place between parameters)
  }
  if (may_be_tag(partial_ + c)) {
    partial_ += c;
    if (!is_tag(partial_)) return Now::kMore;
    const std::string tag = std::exchange(partial_, {});
    has_begun_ = has_begun_ || tag != kParameterEnd;
    if (place_ == Place::kValue) end_value();
    place_ = place_ == Place::kHead && tag == kParameterEnd ? Place::kHead : Place::kBetween;
    if (tag == kParameter) begin_parameter();
    return tag == kParameter || tag == kParameterEnd ? Now::kMore : end();
  }
  if (place_ == Place::kHead) return Now::kNoCall;
  for (const char each : std::exchange(partial_, {})) {
    if (place_ == Place::kValue) put_text(each);
  }
  return put_tag(c);
}

void FunctionReader::begin_parameter() {
  place_ = Place::kParameter;
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

/// A character of a value, whose first and last line end are not its own.
void FunctionReader::put_text(char c) {
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

FunctionReader::Now FunctionReader::end() {
  arguments_ += has_parameters_ ? "}" : "{}";
  return Now::kCallEnded;
}

bool FunctionReader::finish() {
  if (place_ == Place::kName || (place_ == Place::kHead && !partial_.empty())) return false;
  if (place_ == Place::kValue) {
    for (const char each : std::exchange(partial_, {})) put_text(each);
    end_value();
  }
  has_begun_ = true;
  end();
  return true;
}

}  // namespace dendrite::chats
