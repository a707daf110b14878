#include "dendrite/reasoning.h"

#include "chat/blank.h"

namespace dendrite {

using chats::is_blank;

ReasoningSplitter::ReasoningSplitter(ReasoningTags tags, bool inside)
    : tags_(std::move(tags)), place_(Place::kStart), inside_(inside) {}

ReasoningSplit ReasoningSplitter::feed(std::string_view text) {
  ReasoningSplit out;
  for (const char c : text) put(c, out);
  return out;
}

ReasoningSplit ReasoningSplitter::feed(Token token, std::string_view text) {
  ReasoningSplit out = feed(text);  // (what came with a special token was said before it)
  const bool begins = token == tags_.begin_token && place_ == Place::kStart;
  const bool ends = token == tags_.end_token &&
                    (place_ == Place::kThoughts || (place_ == Place::kStart && inside_));
  const std::string& tag = begins ? tags_.begin : tags_.end;
  if ((begins || ends) && text.find(tag) == std::string_view::npos) {
    for (const char c : tag) put(c, out);
  }
  return out;
}

ReasoningSplit ReasoningSplitter::finish() {
  ReasoningSplit out;
  if (place_ == Place::kStart && !inside_) {
    out.content = blanks_ + partial_;
  } else if (place_ == Place::kStart || place_ == Place::kThoughts) {
    if (!partial_.empty()) out.reasoning = (thought_ ? blanks_ : "") + partial_;
  }
  return out;
}

void ReasoningSplitter::put(char c, ReasoningSplit& out) {
  switch (place_) {
    case Place::kStart:
      return put_start(c, out);
    case Place::kThoughts:
      return put_thought(c, out);
    case Place::kBehind:
      if (is_blank(c)) return;
      place_ = Place::kContent;
      [[fallthrough]];
    case Place::kContent:
      out.content += c;
  }
}

void ReasoningSplitter::put_start(char c, ReasoningSplit& out) {
  if (partial_.empty() && is_blank(c)) {
    blanks_ += c;
    return;
  }
  partial_ += c;
  const std::string opening = tags_.begin + tags_.label;
  if (partial_ == opening) {
    place_ = Place::kThoughts;
    blanks_.clear();
    partial_.clear();
  } else if (!opening.starts_with(partial_)) {  // no tag
    const std::string text = std::exchange(partial_, {});
    if (inside_) {
      place_ = Place::kThoughts;
      blanks_.clear();
      for (const char each : text) put(each, out);
    } else {
      place_ = Place::kContent;
      out.content += std::exchange(blanks_, {}) + text;
    }
  }
}

void ReasoningSplitter::put_thought(char c, ReasoningSplit& out) {
  partial_ += c;
  if (partial_ == tags_.end) {
    place_ = Place::kBehind;
    blanks_.clear();
    partial_.clear();
    return;
  }
  while (!partial_.empty() && !tags_.end.starts_with(partial_)) {
    const char each = partial_.front();
    partial_.erase(0, 1);
    if (is_blank(each)) {
      blanks_ += each;
      continue;
    }
    if (thought_) out.reasoning += blanks_;
    blanks_.clear();
    thought_ = true;
    out.reasoning += each;
  }
}

}  // namespace dendrite
