// What the model of echoes copies: text of nine kinds, most of which repeat parts of themselves.
#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "document.h"
#include "random.h"

namespace train {

// The special tokens of Qwen3's chats, by the ids that they have here (jobs.py names them).
inline constexpr std::uint16_t kTurn = 259, kTurnEnd = 260, kThink = 261, kThinkEnd = 262,
                               kToolCall = 263, kToolCallEnd = 264, kToolResponse = 265,
                               kToolResponseEnd = 266;

inline constexpr std::array<std::string_view, 9> kContentKinds = {
    "letters", "characters", "words", "json", "call", "thought", "code", "repeats", "lines"};
inline constexpr int kLongestContent = 512;  // bytes, a special token being one

/// A whole number in [low, high], whose logarithm is uniform.
inline int log_between(int low, int high, Rng& rng) {
  const double share = static_cast<double>(rng.below(1 << 20)) / (1 << 20);
  return static_cast<int>(low * std::pow((high + 1.0) / low, share));
}

inline std::string utf8(int code) {
  const auto byte = [](int value) { return static_cast<char>(value); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 63))};
  if (code < 0x10000)
    return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63))};
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)),
          byte(0x80 | (code & 63))};
}

/// Latin to Georgian, Asian scripts, or emoji.
inline std::string any_character(Rng& rng) {
  switch (rng.below(6)) {
    case 0:
      return utf8(rng.between(0xA1, 0x58F));
    case 1:
      return utf8(rng.between(0x905, 0x10FF));
    case 2:
      return utf8(rng.between(0x2010, 0x27BF));
    case 3:
      return utf8(rng.between(0x4E00, 0x9FFF));
    default:
      return utf8(rng.between(0x1F300, 0x1FAFF));
  }
}

inline std::string printable(int length, Rng& rng) {
  std::string text;
  while (static_cast<int>(text.size()) < length) text += static_cast<char>(rng.between(32, 126));
  return text;
}

/// A text's few words, used again and again.
class Words {
 public:
  explicit Words(Rng& rng) : count_(rng.between(4, kMost)) {
    static constexpr std::string_view consonants = "bcdfghjklmnprstvwz", vowels = "aeiou";
    for (int i = 0; i < count_; ++i)
      for (int syllables = rng.between(1, 3); syllables > 0; --syllables) {
        words_[i] += consonants[rng.below(static_cast<int>(consonants.size()))];
        words_[i] += vowels[rng.below(static_cast<int>(vowels.size()))];
        if (rng.chance(0.3))
          words_[i] += consonants[rng.below(static_cast<int>(consonants.size()))];
      }
  }
  const std::string& any(Rng& rng) const { return words_[rng.below(count_)]; }

 private:
  static constexpr int kMost = 24;
  int count_;
  std::array<std::string, kMost> words_;
};

inline std::string sentences(int length, const Words& words, Rng& rng) {
  static constexpr std::array<std::string_view, 8> ends = {". ", ", ",   "! ", "? ",
                                                           "\n", "\n\n", ": ", " - "};
  std::string text;
  while (static_cast<int>(text.size()) < length) {
    std::string word = words.any(rng);
    if (rng.chance(0.2)) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    if (rng.chance(0.08)) word = std::to_string(rng.below(10000));
    if (rng.chance(0.06)) word = any_character(rng);
    (text += word) += rng.chance(0.8) ? " " : any_of<std::string_view>(ends, rng);
  }
  return text;
}

/// A JSON value of about `length` bytes.
inline std::string json_value(int length, const Words& words, Rng& rng) {
  if (length > 24) {
    const bool object = rng.chance(0.6);
    const std::string_view comma = rng.chance(0.5) ? ", " : ",";
    std::string text(1, object ? '{' : '[');
    while (static_cast<int>(text.size()) < length - 8) {
      if (text.size() > 1) text += comma;
      if (object) ((text += '"') += words.any(rng)) += rng.chance(0.5) ? "\": " : "\":";
      text += json_value(log_between(2, length - static_cast<int>(text.size()), rng), words, rng);
    }
    return text += object ? '}' : ']';
  }
  switch (rng.below(6)) {
    case 0:
      return std::to_string(rng.between(-999, 99999));
    case 1:
      return std::to_string(rng.below(100)) + '.' + std::to_string(rng.below(100));
    case 2:
      return rng.chance(0.5) ? "true" : rng.chance(0.5) ? "false" : "null";
    case 3:
      return '"' + any_character(rng) + any_character(rng) + '"';
    case 4:
      return '"' + words.any(rng) + (rng.chance(0.5) ? "\\n" : "\\\"") + words.any(rng) + '"';
    default:
      return '"' + words.any(rng) + ' ' + words.any(rng) + '"';
  }
}

inline std::string tool_call(int length, const Words& words, Rng& rng) {
  std::string arguments = "{";
  while (static_cast<int>(arguments.size()) < length - 40) {
    if (arguments.size() > 1) arguments += ", ";
    (((arguments += '"') += words.any(rng)) += "\": ") +=
        json_value(log_between(2, std::max(2, length - 40), rng), words, rng);
  }
  return special(kToolCall) + "\n{\"name\": \"" + words.any(rng) + '_' + words.any(rng) +
         "\", \"arguments\": " + arguments + "}}\n" + special(kToolCallEnd);
}

inline std::string code(int length, const Words& words, Rng& rng) {
  static constexpr std::array<std::string_view, 12> patterns = {
      "if (%) {",          "}",
      "% = %(%, %);",      "for % in %:",
      "return %[%] + %",   "<%>%</%>",
      "def %(%, %=0):",    "// % % %",
      "print(f\"{%} %\")", "#include <%.h>",
      "<think>%</think>",  "% += `%` && !%;"};
  std::string text;
  for (int depth = 0; static_cast<int>(text.size()) < length;) {
    depth = std::max(0, depth + rng.between(-1, 1));
    text.append(static_cast<std::size_t>(depth) * 2, ' ');
    for (const char c : any_of<std::string_view>(patterns, rng))
      c == '%' ? text += words.any(rng) : text += c;
    text += '\n';
  }
  return text;
}

/// The first `length` bytes of `text`, or fewer, so that no character is cut.
inline std::string cut(std::string text, int length) {
  if (static_cast<int>(text.size()) <= length) return text;
  auto end = static_cast<std::size_t>(length);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

/// One short piece many times over, amid words.
inline std::string repeats(int length, const Words& words, Rng& rng) {
  std::string unit = rng.chance(0.2) ? any_character(rng) : printable(log_between(1, 12, rng), rng);
  std::string text = rng.chance(0.5) ? sentences(length / 4, words, rng) : "";
  const int times = log_between(2, 32, rng);
  for (int i = 0; i < times && static_cast<int>(text.size()) < length; ++i) text += unit;
  return rng.chance(0.5) ? text + sentences(length / 4, words, rng) : text;
}

/// Lines that differ in little.
inline std::string lines(int length, const Words& words, Rng& rng) {
  const std::string head = sentences(log_between(1, 24, rng), words, rng), tail = words.any(rng);
  std::string text;
  for (int number = rng.below(20); static_cast<int>(text.size()) < length; ++number)
    text += head + (rng.chance(0.8) ? std::to_string(number) : words.any(rng)) + ' ' + tail + '\n';
  return text;
}

inline std::string draw_content(std::size_t kind, int length, Rng& rng);

inline std::string thought(int length, const Words& words, Rng& rng) {
  const int inside = rng.below(length + 1);
  std::string text = special(kThink) + '\n' + cut(sentences(inside, words, rng), inside) + '\n' +
                     special(kThinkEnd) + "\n\n";
  return text +
         draw_content(rng.chance(0.5) ? 2 : rng.between(3, 4), std::max(1, length - inside), rng);
}

/// Text of kContentKinds[kind], of about `length` bytes.
inline std::string draw_content(std::size_t kind, int length, Rng& rng) {
  const Words words(rng);
  std::string text;
  switch (kind) {
    case 0:
      text = printable(length, rng);
      break;
    case 1:
      while (static_cast<int>(text.size()) < length) text += any_character(rng);
      break;
    case 2:
      text = cut(sentences(length, words, rng), length);
      break;
    case 3:
      text = json_value(length, words, rng);
      break;
    case 4:
      text = tool_call(length, words, rng);
      break;
    case 5:
      text = thought(length, words, rng);
      break;
    case 6:
      text = cut(code(length, words, rng), length);
      break;
    case 7:
      text = repeats(length, words, rng);
      break;
    default:
      text = cut(lines(length, words, rng), length);
  }
  return cut(text, kLongestContent);
}

/// A tenth of all content, but what is so short that it must be known.
inline bool held_out_content(std::string_view content) {
  return content.size() >= 8 && hash_of(content) % 10 == 0;
}

inline std::string draw_content(std::size_t kind, int length, Split split, Rng& rng) {
  for (;;) {
    std::string content = draw_content(kind, length, rng);
    const bool short_one = content.size() < 8;
    if (!content.empty() && (short_one || held_out_content(content) == (split == Split::kHeldOut)))
      return content;
  }
}

}  // namespace train
