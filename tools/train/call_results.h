// What tools give back, and the answers that tell it: readings, sentences, identifiers, JSON,
// errors, in words that nobody has seen. An answer is a lead and the result as it is, on one line.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "calls.h"

namespace train {

inline constexpr int kLongestResult = 200;  // bytes

/// Whether a result says of itself that the tool failed.
inline bool says_error(std::string_view result) {
  const auto begins = [&](std::string_view with) { return result.starts_with(with); };
  return begins("error") || begins("Error") || begins(R"({"error")");
}

/// What is to be said of a result.
inline std::string answer_to(const std::string& result) {
  if (result.empty()) return "Done.";
  return (says_error(result) ? "That did not work: " : "The result: ") + result;
}

/// Writes results, each on one line and without outer blanks.
class ResultWriter {
 public:
  explicit ResultWriter(Rng& rng) : rng_(rng) {}

  std::string draw() {
    for (;;) {
      std::string result = rng_.chance(0.02) ? "" : rng_.chance(0.12) ? error() : any();
      for (int more = rng_.chance(0.25) ? rng_.between(1, 4) : 0; more > 0 && !result.empty();
           --more)
        result += joined({pick({", ", "; ", " | ", " ", "  ", " - ", ": "}), any()});
      if (result.size() > kLongestResult || result.starts_with(' ') || result.ends_with(' '))
        continue;
      return result;
    }
  }

 private:
  std::string any() {
    switch (rng_.below(9)) {
      case 0:
        return words(1, 8);
      case 1:
        return reading();
      case 2:
        return sentence();
      case 3:
        return identifier();
      case 4:
      case 5:
        style_ = rng_.below(3);
        return object(2);
      case 6:
        style_ = rng_.below(3);
        return array(2);
      case 7:
        return scalar();
      default:
        return characters(rng_.between(1, 30));
    }
  }

  std::string pick(std::initializer_list<std::string_view> list) {
    return std::string(list.begin()[rng_.below(static_cast<int>(list.size()))]);
  }

  /// The parts in their order; drawn in it, too, as operands of + need not be.
  static std::string joined(std::initializer_list<std::string> parts) {
    std::string text;
    for (const std::string& part : parts) text += part;
    return text;
  }

  std::string word() {
    switch (rng_.below(6)) {
      case 0:
        return invented_word(rng_.chance(0.5), rng_);
      case 1:
        return std::string(any_of<std::string_view>(kCities, rng_));
      case 2:
        return std::string(any_of<std::string_view>(kPeople, rng_));
      case 3:
        return std::string(any_of<std::string_view>(kItems, rng_));
      case 4:
        return pick({"sunny", "cloudy", "rain", "ok", "done", "open", "closed", "sent", "on", "off",
                     "none", "yes", "no", "table", "saved", "free", "Monday", "May"});
      default:
        return std::string(any_of<std::string_view>(kWords, rng_));
    }
  }

  std::string words(int least, int most) {
    std::string text;
    const std::string between = pick({" ", " ", " ", ", ", "-", "_", "/"});
    for (int left = rng_.between(least, most); left > 0; --left) {
      if (!text.empty()) text += between;
      // Said again now and then, so that what comes next is not to be known from one word.
      text += rng_.chance(0.1) && !text.empty() ? text.substr(0, text.find(between)) : word();
    }
    if (rng_.chance(0.2)) text += pick({".", "!", "?", "...", ";"});
    return text;
  }

  std::string number() {
    std::string digits = std::to_string(rng_.below(rng_.chance(0.5) ? 100 : 100'000));
    if (rng_.chance(0.3)) (digits += '.') += std::to_string(rng_.below(100));
    return rng_.chance(0.15) ? '-' + digits : digits;
  }

  std::string two_digits(int below) {
    const int value = rng_.below(below);
    return (value < 10 ? "0" : "") + std::to_string(value);
  }

  std::string clock() { return joined({two_digits(24), ":", two_digits(60)}); }
  std::string date() {
    return joined(
        {std::to_string(rng_.between(1990, 2040)), "-", two_digits(13), "-", two_digits(32)});
  }

  std::string reading() {
    switch (rng_.below(6)) {
      case 0:
        return clock();
      case 1:
        return rng_.chance(0.5) ? date() : joined({date(), pick({" ", "T"}), clock()});
      case 2:
        return joined({pick({"$", "EUR ", "€", "#", "+"}), number()});
      case 3:
        return joined({words(1, 2), ", ", number(), " ", unit()});
      case 4:
        return joined({number(), " / ", number()});
      default:
        return joined({number(), pick({" ", ""}), unit()});
    }
  }

  std::string unit() {
    return pick(
        {"C", "F", "°C", "°F", "%", "km", "km/h", "kg", "min", "s", "USD", "JPY", "items", "m²"});
  }

  std::string sentence() {
    switch (rng_.below(8)) {
      case 0:
        return joined({"Alarm set for ", clock(), " on ", word(), "."});
      case 1:
        return joined({"It is ", clock(), " in ", word(), " now"});
      case 2:
        return joined({number(), " x ", word(), " added to the list"});
      case 3:
        return joined(
            {"The ", word(), " is ", word(), " and ", word(), ", ", number(), " ", unit()});
      case 4:
        return joined({word(), "'s ", word(), " (", number(), ") is \"", words(1, 3), "\""});
      case 5:
        return joined({"Sent \"", words(1, 5), "\" to ", word(), "."});
      case 6:
        return "OK, " + words(2, 6);
      default:
        return joined({word(), " = ", number(), ", ", word(), " = ", number()});
    }
  }

  std::string identifier() {
    switch (rng_.below(5)) {
      case 0:
        return drawn("0123456789abcdef", rng_.between(6, 40));
      case 1:
        return drawn("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", rng_.between(3, 12));
      case 2:
        return drawn("0123456789", rng_.between(4, 16));
      case 3:
        return joined({lower(), pick({"@", "."}), lower(), pick({".com", ".org", ".io", ".net/"})});
      default:
        return joined({pick({"https://", "/", "./", "C:\\"}), lower(), pick({"/", ".", "\\"}),
                       lower(), pick({".txt", ".json", "?id=", "#"}),
                       drawn("0123456789abcdef", rng_.between(1, 8))});
    }
  }

  std::string lower() { return invented_word(false, rng_); }

  std::string drawn(std::string_view from, int count) {
    std::string text;
    for (; count > 0; --count) text += from[rng_.below(static_cast<int>(from.size()))];
    return text;
  }

  /// Any characters that can be printed, some of them outside of ASCII.
  std::string characters(int count) {
    std::string text;
    for (; count > 0; --count) {
      if (rng_.chance(0.1))
        text += pick({"°", "é", "ü", "ä",  "ö",  "ß",  "ñ",  "ç", "à", "ø",    "å",
                      "€", "£", "–", "—",  "’",  "“",  "”",  "…", "→", "²",    "½",
                      "ж", "и", "λ", "日", "本", "東", "京", "✓", "☀", "🌧", "🎉"});
      else
        text += static_cast<char>(rng_.between(33, 126));
      if (rng_.chance(0.1)) text += ' ';
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

  // ---- JSON: without blanks, with those of json.dumps, or indented and then put on one line ----

  std::string item_blank() const { return style_ == 0 ? "" : " "; }

  std::string scalar() {
    switch (rng_.below(4)) {
      case 0:
        return number();
      case 1:
        return pick({"true", "false", "null"});
      case 2:
        return '"' + words(1, 4) + '"';
      default:
        return '"' + piece() + '"';
    }
  }

  /// In a string of JSON.
  std::string piece() {
    switch (rng_.below(5)) {
      case 0:
        return clock();
      case 1:
        return date();
      case 2:
        return joined({number(), " ", unit()});
      case 3:
        return joined({word(), pick({"\\n", "\\u00b0C ", "\\t", "\\\\"}), word()});
      default:
        return joined({"\\\"", word(), "\\\""});
    }
  }

  std::string value(int depth) {
    if (depth > 0 && rng_.chance(0.15))
      return rng_.chance(0.5) ? object(depth - 1) : array(depth - 1);
    return scalar();
  }

  std::string key() {
    return rng_.chance(0.5)
               ? pick({"temp",  "temperature", "sky",    "city",  "id",      "name",  "status",
                       "price", "time",        "unit",   "value", "ok",      "count", "humidity",
                       "wind",  "day",         "result", "data",  "message", "items"})
               : lower();
  }

  std::string object(int depth) {
    std::string json = "{";
    for (int left = rng_.between(0, 5); left > 0; --left) {
      if (json.size() > 1) (json += ',') += blanks(depth);
      (((json += '"') += key()) += "\":") += item_blank();
      json += value(depth);
    }
    return wrapped(json, '}', depth);
  }

  std::string array(int depth) {
    std::string json = "[";
    const bool of_objects = depth > 0 && rng_.chance(0.4);
    for (int left = rng_.between(0, 5); left > 0; --left) {
      if (json.size() > 1) (json += ',') += blanks(depth);
      json += of_objects ? object(0) : value(depth);
    }
    return wrapped(json, ']', depth);
  }

  /// Between items: where JSON was indented, the newline and two blanks a level.
  std::string blanks(int depth) const {
    return style_ < 2 ? item_blank() : std::string(1 + 2 * (3 - depth), ' ');
  }

  std::string wrapped(std::string json, char end, int depth) const {
    if (style_ == 2 && json.size() > 1) {
      json.insert(1, blanks(depth));
      json += std::string(1 + 2 * (2 - depth), ' ');
    }
    return json + end;
  }

  std::string error() {
    style_ = rng_.below(2);
    switch (rng_.below(4)) {
      case 0:
        return joined(
            {pick({"error: ", "Error: "}), pick({"no such ", "unknown ", "cannot find "}), word()});
      case 1: {
        std::string json = R"({"error":)" + item_blank() + scalar();
        if (rng_.chance(0.4))
          json += joined({",", item_blank(), "\"", key(), "\":", item_blank(), scalar()});
        return json + '}';
      }
      case 2:
        return joined(
            {pick({"error ", "Error "}), number(), pick({": ", " - ", " "}), words(1, 6)});
      default:
        return joined({pick({"error: ", "Error: ", "error in ", "Error: ToolException: "}), any()});
    }
  }

  Rng& rng_;
  int style_ = 0;  // of the JSON that is being written
};

/// A result on this side of the split, by the rule of calls. (Few are so short that only one side
/// has them.)
inline std::string draw_result(Split split, Rng& rng) {
  for (;;) {
    std::string result = ResultWriter(rng).draw();
    if (result.empty() || held_out(result) == (split == Split::kHeldOut)) return result;
  }
}

}  // namespace train
