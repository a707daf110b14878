// Requests and the tool calls that they ask for, as training documents:
//
//   <call>What will the weather be in Oslo tomorrow?\n{"name":"get_weather","arguments":{...}}<eos>
//
// What is learnt is the call. Arguments stand in the order of the tool's slots, without spaces.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "call_tools.h"
#include "document.h"
#include "random.h"

namespace train {

inline constexpr double kInventedNames = 0.25;  // share of names and texts that are on no list
inline constexpr double kNoise = 0.15;          // share of requests that are not said cleanly

/// Whether a call, as JSON, is held out: no training document then asks for it, in any wording. A
/// tenth of all combinations of a tool and its values is; the hash alone decides.
inline bool held_out(std::string_view call) {
  return hash_of(call) % 10 == 0;
}

struct Request {
  std::string text;
  std::string call;
  bool invented = false;  // has a value that was made up
};

/// A word of one to four syllables that is on no list but by chance.
inline std::string invented_word(bool capital, Rng& rng) {
  static constexpr std::string_view kStarts[] = {
      "b", "br", "c", "ch", "d", "dr", "f",  "fl", "g",  "gr", "h", "j", "k", "kl", "l", "m", "n",
      "p", "pr", "q", "r",  "s", "sh", "st", "t",  "th", "tr", "v", "w", "x", "y",  "z", ""};
  static constexpr std::string_view kVowels[] = {"a", "e", "i", "o", "u", "ai", "ea", "ou"};
  static constexpr std::string_view kEnds[] = {"",  "",  "",   "n",  "l", "r",
                                               "s", "m", "ck", "nd", "t"};
  std::string word;
  for (int syllables = rng.between(1, 4); syllables > 0; --syllables) {
    word += any_of<std::string_view>(kStarts, rng);
    word += any_of<std::string_view>(kVowels, rng);
    word += any_of<std::string_view>(kEnds, rng);
  }
  if (capital) word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return word;
}

/// One request while it is said: its text, which characters values said, and the values as JSON by
/// slot.
class Speaker {
 public:
  Speaker(const Tool& tool, Rng& rng) : tool_(tool), rng_(rng), values_(tool.slots.size()) {}

  Request say_any() {
    say(any_of<std::string_view>(tool_.wordings, rng_));
    if (rng_.chance(kNoise)) add_noise();
    return {text_, call(), invented_};
  }

 private:
  /// See call_tools.h for the language of wordings.
  void say(std::string_view wording) {
    for (std::size_t i = 0; i < wording.size(); ++i) {
      const char c = wording[i];
      if (c != '{' && c != '[' && c != '(') {
        add(wording.substr(i, 1), false);
        continue;
      }
      const std::size_t end = closing(wording, i);
      const std::string_view inner = wording.substr(i + 1, end - i - 1);
      if (c == '{') say_slot(inner);
      if (c == '[' && rng_.chance(0.5)) say(inner);
      if (c == '(') say(one_of(inner));
      i = end;
    }
  }

  static std::size_t closing(std::string_view wording, std::size_t open) {
    int depth = 0;
    for (std::size_t i = open;; ++i) {
      if (std::string_view("{[(").find(wording[i]) != std::string_view::npos) ++depth;
      if (std::string_view("}])").find(wording[i]) != std::string_view::npos && --depth == 0)
        return i;
    }
  }

  /// Alternatives do not nest.
  std::string_view one_of(std::string_view alternatives) {
    int pick = rng_.below(static_cast<int>(std::ranges::count(alternatives, '|')) + 1);
    for (; pick > 0; --pick) alternatives.remove_prefix(alternatives.find('|') + 1);
    return alternatives.substr(0, alternatives.find('|'));
  }

  void say_slot(std::string_view name) {
    const auto slot = std::ranges::find(tool_.slots, name, &Slot::name);
    const auto [said, value] = draw(*slot);
    values_[slot - tool_.slots.begin()] = value;
    add(said, true);
  }

  struct Value {
    std::string said, json;
  };

  Value draw(const Slot& slot) {
    switch (slot.kind) {
      case Kind::kName:
        return quoted(name(slot));
      case Kind::kText:
        return quoted(phrase());
      case Kind::kChoice: {
        const Choice& choice = any_of(slot.choices, rng_);
        return {std::string(choice.said), std::string(choice.value)};
      }
      case Kind::kInteger:
        return plain(std::to_string(rng_.between(slot.low, slot.high)));
      case Kind::kNumber: {
        std::string number = std::to_string(rng_.between(slot.low, slot.high));
        // No trailing zero: 12.0 would be another text for the same number.
        if (rng_.chance(0.4)) (number += '.') += std::to_string(rng_.between(1, 9));
        return plain(number);
      }
      case Kind::kTime:
        return time();
      case Kind::kDigits: {
        std::string digits;
        for (int i = rng_.between(slot.low, slot.high); i > 0; --i)
          digits += static_cast<char>('0' + rng_.below(10));
        return quoted(digits);
      }
    }
    return {};
  }

  static Value plain(const std::string& text) { return {text, text}; }
  static Value quoted(const std::string& text) { return {text, '"' + text + '"'}; }

  std::string name(const Slot& slot) {
    const std::string_view listed = any_of(slot.names, rng_);
    if (!rng_.chance(kInventedNames)) return std::string(listed);
    invented_ = true;
    const bool capital = listed[0] < 'a';
    std::string made = invented_word(capital, rng_);
    if (rng_.chance(0.3)) (made += ' ') += invented_word(capital, rng_);
    return made;
  }

  std::string phrase() {
    if (!rng_.chance(kInventedNames)) return std::string(any_of<std::string_view>(kPhrases, rng_));
    invented_ = true;
    std::string words;
    for (int left = rng_.between(2, 6); left > 0; --left) {
      if (!words.empty()) words += ' ';
      words += rng_.chance(0.8) ? std::string(any_of<std::string_view>(kWords, rng_))
                                : invented_word(false, rng_);
    }
    return words;
  }

  Value time() {
    const int hour = rng_.below(24);
    const int minute = rng_.chance(0.4) ? 0 : 5 * rng_.below(12);
    const std::string minutes = (minute < 10 ? "0" : "") + std::to_string(minute);
    const std::string full = (hour < 10 ? "0" : "") + std::to_string(hour) + ':' + minutes;
    std::string said = full;
    if (rng_.chance(0.5)) {
      said = std::to_string(hour % 12 == 0 ? 12 : hour % 12);
      if (minute > 0 || rng_.chance(0.3)) (said += ':') += minutes;
      said += hour < 12 ? " am" : " pm";
    }
    return {said, '"' + full + '"'};
  }

  std::string call() const {
    std::string json = R"({"name":")" + std::string(tool_.name) + R"(","arguments":{)";
    std::string_view open;  // the inner object that is being written
    bool first = true;      // in what is being written
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!values_[i]) continue;
      const Slot& slot = tool_.slots[i];
      if (slot.inside != open) {
        if (!open.empty()) json += '}';
        open = slot.inside;
        if (!open.empty()) {
          if (!first) json += ',';
          ((json += '"') += open) += R"(":{)";
          first = true;
        }
      }
      if (!first) json += ',';
      (((json += '"') += slot.name) += R"(":)") += *values_[i];
      first = false;
    }
    if (!open.empty()) json += '}';
    return json + "}}";
  }

  // ---- noise: what surrounds the values, never the values themselves ----

  void add_noise() {
    static constexpr std::string_view kOpeners[] = {
        "please ",          "hey, ",       "hi, ", "ok, ", "um, ",
        "could you help? ", "quick one: ", "so, ", "now ", "one more thing: "};
    static constexpr std::string_view kClosers[] = {
        " please", " thanks", ", thank you", ", if you can", " ok?", "!!", "...", ", quickly"};
    switch (rng_.below(5)) {
      case 0: {
        lower_case(1);
        const std::string_view opener = any_of<std::string_view>(kOpeners, rng_);
        text_.insert(0, opener);
        said_by_value_.insert(0, opener.size(), '0');
        return;
      }
      case 1:
        drop_stop();
        return add(any_of<std::string_view>(kClosers, rng_), false);
      case 2:
        return drop_stop();
      case 3:
        return lower_case(text_.size());
      default:
        for (int typos = rng_.between(1, 2); typos > 0; --typos) mistype();
    }
  }

  void lower_case(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      if (said_by_value_[i] == '0' && text_[i] >= 'A' && text_[i] <= 'Z')
        text_[i] = static_cast<char>(text_[i] - 'A' + 'a');
  }

  void drop_stop() {
    if (said_by_value_.back() == '1' || (text_.back() != '.' && text_.back() != '?')) return;
    text_.pop_back();
    said_by_value_.pop_back();
  }

  /// Swaps two neighbouring letters, doubles a letter or leaves one out.
  void mistype() {
    const int at = rng_.below(static_cast<int>(text_.size()) - 1);
    const auto letter = [&](int i) {
      return said_by_value_[i] == '0' && text_[i] >= 'a' && text_[i] <= 'z';
    };
    if (!letter(at) || !letter(at + 1)) return;
    switch (rng_.below(3)) {
      case 0:
        return std::swap(text_[at], text_[at + 1]);
      case 1:
        text_.insert(at, 1, text_[at]);
        said_by_value_.insert(at, 1, '0');
        return;
      default:
        text_.erase(at, 1);
        said_by_value_.erase(at, 1);
    }
  }

  void add(std::string_view text, bool value) {
    text_ += text;
    said_by_value_.append(text.size(), value ? '1' : '0');
  }

  const Tool& tool_;
  Rng& rng_;
  std::string text_;
  std::string said_by_value_;  // '1' for each character that a value said
  std::vector<std::optional<std::string>> values_;
  bool invented_ = false;
};

/// A request for `tool` whose call is on this side of the split.
inline Request draw_request(const Tool& tool, Split split, Rng& rng) {
  for (;;) {
    Request request = Speaker(tool, rng).say_any();
    if (held_out(request.call) == (split == Split::kHeldOut)) return request;
  }
}

/// A document that asks for a call of any tool.
inline Document draw_call(Split split, Rng& rng) {
  const Request request = draw_request(any_of<Tool>(tools(), rng), split, rng);
  const std::string head = request.text + '\n';
  return {
      .text = head + request.call, .learnt_from = head.size(), .ends = true, .asks_for_call = true};
}

}  // namespace train
