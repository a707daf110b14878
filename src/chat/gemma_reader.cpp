#include "chat/gemma_reader.h"

#include "chat/blank.h"

namespace dendrite::chats {
namespace {

constexpr std::string_view kQuote = "<|\"|>";
constexpr std::size_t kMostDepth = 512;  // readers of what it passes recurse

std::string json_of_word(std::string_view word) {
  if (word == "None") return "null";
  if (word == "True") return "true";
  if (word == "False") return "false";
  return parsed_json(word).is_discarded() ? json_string(word) : std::string(word);
}

}  // namespace

CallNow GemmaReader::put(char c) {
  switch (place_) {
    case Place::kName:
      if (c == '{') return tools_->knows(name_) ? open(c) : CallNow::kNoCall;
      name_ += c;
      if (tools_->may_become(name_)) return CallNow::kMore;
      name_.pop_back();
      return CallNow::kNoCall;
    case Place::kKey:
    case Place::kBareKey:
      return put_key(c);
    case Place::kColon:
      if (is_blank(c)) return CallNow::kMore;
      if (c != ':') return CallNow::kBroken;
      arguments_ += ": ";
      at_key_ = false;
      place_ = Place::kValue;
      return CallNow::kMore;
    case Place::kValue:
    case Place::kBare:
      return put_value(c);
    case Place::kQuote:
      return put_quote(c);
    case Place::kText:
    case Place::kJsonText:
    case Place::kEscape:
      return put_text(c);
    case Place::kBehind:
      return put_behind(c);
  }
  return CallNow::kBroken;
}

CallNow GemmaReader::open(char c) {
  if (open_.size() == kMostDepth) return CallNow::kBroken;
  if (!open_.empty()) begin_item();
  open_ += c;
  arguments_ += c;
  is_first_ = true;
  at_key_ = c == '{';
  place_ = at_key_ ? Place::kKey : Place::kValue;
  return CallNow::kMore;
}

CallNow GemmaReader::close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return CallNow::kBroken;
  arguments_ += c;
  open_.pop_back();
  is_first_ = false;
  place_ = Place::kBehind;
  return open_.empty() ? CallNow::kCallEnded : CallNow::kMore;
}

/// What a comma stands before, unless it is the first.
void GemmaReader::begin_item() {
  const bool is_item = at_key_ || open_.back() == '[';
  if (is_item && !is_first_) arguments_ += ", ";
  is_first_ = false;
}

CallNow GemmaReader::put_key(char c) {
  if (place_ == Place::kKey) {
    if (is_blank(c)) return CallNow::kMore;
    if (c == '}') return close(c);
    if (c == '<' || c == '"') return put_value(c);
    bare_.clear();
    place_ = Place::kBareKey;
  }
  if (c != ':') {
    if (c == '{' || c == '}' || c == '[' || c == ']' || c == ',') return CallNow::kBroken;
    bare_ += c;
    return CallNow::kMore;
  }
  const std::string_view key = stripped(bare_);
  if (key.empty()) return CallNow::kBroken;
  begin_item();
  arguments_ += json_string(key) + ": ";
  at_key_ = false;
  place_ = Place::kValue;
  return CallNow::kMore;
}

CallNow GemmaReader::put_value(char c) {
  if (place_ != Place::kBare) {
    if (is_blank(c)) return CallNow::kMore;
    if (c == '{' || c == '[') return open(c);
    if (c == ']') return close(c);
    if (c == '"') return begin_text(Place::kJsonText), CallNow::kMore;
    bare_.clear();
    if (c == '<') {
      partial_ = c;
      place_ = Place::kQuote;
      return CallNow::kMore;
    }
    place_ = Place::kBare;
  }
  if (c != ',' && c != '}' && c != ']') {
    bare_ += c;
    return CallNow::kMore;
  }
  const std::string_view word = stripped(bare_);
  if (word.empty()) return CallNow::kBroken;
  begin_item();
  arguments_ += json_of_word(word);
  place_ = Place::kBehind;
  return put_behind(c);
}

CallNow GemmaReader::put_quote(char c) {
  if (kQuote.starts_with(partial_ + c)) {
    partial_ += c;
    if (partial_ == kQuote) begin_text(Place::kText);
    return CallNow::kMore;
  }
  bare_ = std::exchange(partial_, {});
  place_ = is_key() ? Place::kBareKey : Place::kBare;
  return put(c);
}

void GemmaReader::begin_text(Place place) {
  begin_item();
  partial_.clear();
  arguments_ += '"';
  place_ = place;
}

void GemmaReader::end_text() {
  arguments_ += '"';
  partial_.clear();
  place_ = is_key() ? Place::kColon : Place::kBehind;
}

CallNow GemmaReader::put_text(char c) {
  if (place_ == Place::kText) {
    partial_ += c;
    while (!partial_.empty() && !kQuote.starts_with(partial_)) {
      add_escaped(arguments_, partial_.front());
      partial_.erase(0, 1);
    }
    if (partial_ == kQuote) end_text();
    return CallNow::kMore;
  }
  if (place_ == Place::kEscape) {  // what is no escape of JSON is a backslash before a character
    const bool is_known = std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    arguments_ += is_known ? "\\" : "\\\\";
    if (is_known) arguments_ += c;
    if (!is_known) add_escaped(arguments_, c);
    place_ = Place::kJsonText;
  } else if (c == '"') {
    end_text();
  } else if (c == '\\') {
    place_ = Place::kEscape;
  } else {
    add_escaped(arguments_, c);
  }
  return CallNow::kMore;
}

CallNow GemmaReader::put_behind(char c) {
  if (is_blank(c)) return CallNow::kMore;
  if (c != ',') return close(c);
  at_key_ = open_.back() == '{';
  place_ = at_key_ ? Place::kKey : Place::kValue;
  return CallNow::kMore;
}

}  // namespace dendrite::chats
