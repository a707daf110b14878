// What Python's ast.literal_eval reads, as JSON: models write {'a': None} where they mean JSON.
#include "chat/blank.h"
#include "chat/tool_schema.h"

namespace dendrite::chats {
namespace {

constexpr int kMostDepth = 100;

class Literal {
 public:
  explicit Literal(std::string_view text) : text_(text) {}

  /// Empty: it is none.
  std::string json() {
    std::string out;
    return value(out, 0) && (skip(), at_ == text_.size()) ? out : "";
  }

 private:
  void skip() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool value(std::string& out, int depth) {
    if (depth == kMostDepth) return false;
    skip();
    if (take('{')) return members(out, depth);
    if (take('[')) return items(out, ']', depth);
    if (take('(')) return items(out, ')', depth);
    if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"')) return string(out);
    for (const auto& [word, json] :
         {std::pair{"True", "true"}, {"False", "false"}, {"None", "null"}}) {
      if (take(word)) return (out += json, true);
    }
    return number(out);
  }

  bool members(std::string& out, int depth) {
    out += '{';
    for (bool first = true; !take('}'); first = false) {
      if (!first) out += ", ";
      skip();
      if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"') || !string(out) ||
          !take(':')) {
        return false;  // (keys of JSON are strings)
      }
      out += ": ";
      if (!value(out, depth + 1)) return false;
      if (!take(',')) return take('}') && (out += '}', true);
    }
    return (out += '}', true);
  }

  bool items(std::string& out, char end, int depth) {
    out += '[';
    bool comma = true;
    for (bool first = true; !take(end); first = false) {
      if (!comma) return false;
      if (!first) out += ", ";
      if (!value(out, depth + 1)) return false;
      comma = take(',');
      if (end == ')' && first && !comma) return false;  // (1) is 1, which models do not mean
    }
    return (out += ']', true);
  }

  bool string(std::string& out) {
    const char quote = text_[at_++];
    out += '"';
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c == '\n') return false;
      if (c != '\\') {
        add_escaped(out, c);
        continue;
      }
      if (at_ == text_.size()) return false;
      c = text_[at_++];
      constexpr std::string_view kNames = "nrtbf", kMeans = "\n\r\t\b\f";
      if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
        add_escaped(out, kMeans[known]);
      } else if (c == '\\' || c == '\'' || c == '"') {
        add_escaped(out, c);
      } else if (c == 'u' || c == 'x') {
        const std::size_t size = c == 'u' ? 4 : 2;
        const std::string_view digits = text_.substr(at_, size);
        if (digits.size() < size ||
            digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
          return false;
        }
        out += "\\u" + std::string(4 - size, '0') + std::string(digits);
        at_ += size;
      } else {
        return false;  // (rare ones are not worth their lines)
      }
    }
    if (at_ == text_.size()) return false;
    ++at_;
    return (out += '"', true);
  }

  bool number(std::string& out) {
    const std::size_t end = std::min(text_.find_first_of(",]}) \n\t\r:", at_), text_.size());
    const std::string_view digits = text_.substr(at_, end - at_);
    if (digits.empty() || digits.find_first_not_of("0123456789+-.eE") != std::string_view::npos ||
        !Json::accept(digits)) {
      return false;
    }
    at_ = end;
    out += digits;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string json_of_literal(std::string_view text) {
  const std::string_view bare = stripped(text);
  return parsed_json(bare).is_discarded() ? Literal(bare).json() : std::string(bare);
}

}  // namespace dendrite::chats
