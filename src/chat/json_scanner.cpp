#include "chat/json_scanner.h"

#include <string_view>

namespace dendrite::chats {
namespace {

constexpr std::size_t kMostDepth = 512;  // readers of what it passes recurse

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

JsonScanner::Now JsonScanner::put(char c) {
  switch (place_) {
    case Place::kString:
      if (c == '\\') {
        place_ = Place::kEscape;
      } else if (c == '"') {
        place_ = is_key_ ? Place::kColon : Place::kBehindValue;
      }
      return Now::kMore;
    case Place::kEscape:
      if (c == 'u') {
        hex_ = 4;
        place_ = Place::kHex;
      } else if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
        place_ = Place::kString;
      } else {
        return Now::kBroken;
      }
      return Now::kMore;
    case Place::kHex:
      if (!is_hex(c)) return Now::kBroken;
      if (--hex_ == 0) place_ = Place::kString;
      return Now::kMore;
    case Place::kWord:
      if (c != *word_) return Now::kBroken;
      if (*++word_ == '\0') place_ = Place::kBehindValue;
      return Now::kMore;
    case Place::kNumber:
      if (in_number(c)) return Now::kMore;
      if (number_ == Number::kMinus || number_ == Number::kDot || number_ == Number::kE ||
          number_ == Number::kSign) {
        return Now::kBroken;
      }
      place_ = Place::kBehindValue;
      break;
    default:
      break;
  }
  if (is_space(c) && !open_.empty()) return Now::kMore;
  switch (place_) {
    case Place::kFirstValue:
      if (c == ']') return close(c) ? taken() : Now::kBroken;
      [[fallthrough]];
    case Place::kValue:
      return begin_value(c) ? Now::kMore : Now::kBroken;
    case Place::kFirstKey:
      if (c == '}') return close(c) ? taken() : Now::kBroken;
      [[fallthrough]];
    case Place::kKey:
      if (c != '"') return Now::kBroken;
      is_key_ = true;
      place_ = Place::kString;
      return Now::kMore;
    case Place::kColon:
      if (c != ':') return Now::kBroken;
      place_ = Place::kValue;
      return Now::kMore;
    default:  // behind a value
      if (c == ',' && !open_.empty()) {
        place_ = open_.back() == '{' ? Place::kKey : Place::kValue;
        return Now::kMore;
      }
      return close(c) ? taken() : Now::kBroken;
  }
}

bool JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() == kMostDepth) return false;
    open_ += c;
    place_ = c == '{' ? Place::kFirstKey : Place::kFirstValue;
    return true;
  }
  if (open_.empty()) return false;
  if (c == '"') {
    is_key_ = false;
    place_ = Place::kString;
  } else if (c == '-' || is_digit(c)) {
    number_ = c == '-' ? Number::kMinus : c == '0' ? Number::kZero : Number::kDigits;
    place_ = Place::kNumber;
  } else if (c == 't' || c == 'f' || c == 'n') {
    word_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    place_ = Place::kWord;
  } else {
    return false;
  }
  return true;
}

/// Whether it belongs to the number.
bool JsonScanner::in_number(char c) {
  const bool digit = is_digit(c);
  const bool e = c == 'e' || c == 'E';
  const auto go = [&](Number next) {
    number_ = next;
    return true;
  };
  switch (number_) {
    case Number::kMinus:
      return digit && go(c == '0' ? Number::kZero : Number::kDigits);
    case Number::kDigits:
      if (digit) return true;
      [[fallthrough]];
    case Number::kZero:
      if (c == '.') return go(Number::kDot);
      return e && go(Number::kE);
    case Number::kDot:
      return digit && go(Number::kDecimals);
    case Number::kDecimals:
      return digit || (e && go(Number::kE));
    case Number::kE:
      if (c == '+' || c == '-') return go(Number::kSign);
      return digit && go(Number::kExponent);
    case Number::kSign:
      return digit && go(Number::kExponent);
    case Number::kExponent:
      return digit;
  }
  return false;
}

bool JsonScanner::close(char c) {
  if (open_.empty() || c != (open_.back() == '{' ? '}' : ']')) return false;
  open_.pop_back();
  place_ = Place::kBehindValue;
  return true;
}

}  // namespace dendrite::chats
