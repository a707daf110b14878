#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dendrite::chats {

/// Follows one JSON object or array by its characters: where in it the text is, and where it breaks
/// the rules. As models write it: control characters may stand in strings. Copyable.
class JsonScanner {
 public:
  enum class Now { kMore, kEnded, kBroken };
  /// What comes next.
  enum class Place : std::uint8_t {
    kValue,       ///< a value
    kFirstValue,  ///< ... or the end of the array
    kFirstKey,    ///< a key, or the end of the object
    kKey,
    kColon,
    kBehindValue,  ///< a comma, or an end
    kString,       ///< inside of one, a key's or a value's; so the next four
    kEscape,
    kHex,
    kNumber,
    kWord,  ///< true, false, null
  };

  /// The next character; the first is "{" or "[". A broken one is not taken.
  Now put(char c);

  Place place() const { return place_; }
  /// Whether the string that it is in is a key.
  bool in_key() const { return is_key_; }
  bool in_string() const {
    return place_ == Place::kString || place_ == Place::kEscape || place_ == Place::kHex;
  }
  /// Objects and arrays that are open.
  std::size_t depth() const { return open_.size(); }

 private:
  enum class Number : std::uint8_t {
    kMinus,
    kZero,
    kDigits,
    kDot,
    kDecimals,
    kE,
    kSign,
    kExponent
  };

  bool begin_value(char c);
  bool in_number(char c);
  bool close(char c);
  Now taken() const { return open_.empty() ? Now::kEnded : Now::kMore; }

  std::string open_;  // "{" and "["
  Place place_ = Place::kValue;
  Number number_ = Number::kMinus;
  bool is_key_ = false;
  int hex_ = 0;            // digits that lack
  const char* word_ = "";  // what lacks
};

}  // namespace dendrite::chats
