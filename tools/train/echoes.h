// Chats in Qwen3's format, as training documents: what stands between the last two marks is said
// again. The marks are the control characters STX and ETX, one token each, which no text has.
//
//   <|im_start|>user\nPlease say \x02Hi!\x03 to me.<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>
//
// A chat has a system message and earlier turns; some end in a tool's result. All answers that are
// echoes are learnt. Other answers, and what was never marked, stand there too.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "echo_content.h"
#include "packing.h"

namespace train {

inline constexpr int kEchoRowTokens = 4096;
inline constexpr char kBegin = '\x02', kEnd = '\x03';  // the marks

/// What phases 1, 2, 3 draw: bytes of the longest content, and of a whole chat.
struct EchoSizes {
  int content, chat;
};
inline constexpr std::array<EchoSizes, 3> kEchoSizes = {
    {{48, 400}, {256, 1500}, {kLongestContent, kEchoRowTokens - 8}}};

/// A message that asks for an echo.
struct Echo {
  std::string kind, before, content, after;
  bool from_tool;
};

inline std::size_t any_kind(Rng& rng) {
  return static_cast<std::size_t>(rng.below(kContentKinds.size()));
}

/// Text of any kind around the marks, often none.
inline std::string draw_around(int most, Rng& rng) {
  if (most < 1 || rng.chance(0.4)) return "";
  const std::size_t kind = rng.chance(0.6) ? 2 : any_kind(rng);
  return cut(draw_content(kind, log_between(1, most, rng), rng), most);
}

inline Echo draw_echo(std::size_t kind, int length, Split split, Rng& rng) {
  Echo echo{std::string(kContentKinds[kind]), draw_around(80, rng),
            draw_content(kind, length, split, rng), draw_around(80, rng), rng.chance(0.25)};
  return echo;
}

/// What a client says of itself and its tools, of about `length` bytes.
inline std::string draw_system(int length, Rng& rng) {
  const Words words(rng);
  if (rng.chance(0.5)) return cut(sentences(length, words, rng), length);
  std::string text = rng.chance(0.5) ? sentences(length / 8, words, rng) + "\n\n" : "";
  text +=
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
  while (static_cast<int>(text.size()) < length)
    text += "\n{\"type\": \"function\", \"function\": {\"name\": \"" + words.any(rng) +
            "\", \"description\": \"" + words.any(rng) + ' ' + words.any(rng) +
            "\", \"parameters\": " + json_value(log_between(25, 400, rng), words, rng) + "}}";
  return text +
         "\n</tools>\n\nFor each function call, return a json object with function name and "
         "arguments within " +
         special(kToolCall) + special(kToolCallEnd) + " XML tags:\n" + special(kToolCall) +
         "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n" +
         special(kToolCallEnd);
}

/// Text with what of it is learnt.
class ChatText {
 public:
  void add(const std::string& text, bool learnt = false) {
    text_ += text;
    marks_.resize(text_.size(), learnt ? kLearnt : std::uint16_t{0});
  }
  void open(const std::string& role) { add(special(kTurn) + role + '\n'); }
  void close(bool learnt = false) { add(special(kTurnEnd), learnt), add("\n"); }
  std::size_t size() const { return text_.size(); }
  Document document() && { return {std::move(text_), 0, false, false, std::move(marks_)}; }

 private:
  std::string text_;
  std::vector<std::uint16_t> marks_;
};

inline void add_request(ChatText& chat, const Echo& echo, Rng& rng) {
  chat.open("user");
  if (echo.from_tool) chat.add(special(kToolResponse) + '\n');
  if (rng.chance(0.1))  // what is marked first does not count
    chat.add(kBegin + draw_around(40, rng) + kEnd);
  chat.add(echo.before + kBegin + echo.content + kEnd + echo.after);
  if (echo.from_tool) chat.add('\n' + special(kToolResponseEnd));
  chat.close();
}

/// Most of `content` as it is, with a place changed or an end of its own.
inline std::string changed(std::string content, Rng& rng) {
  const auto at = static_cast<std::size_t>(rng.below(static_cast<int>(content.size())));
  if (rng.chance(0.5)) content = cut(std::move(content), static_cast<int>(at));
  return cut(content + printable(log_between(1, 16, rng), rng), kLongestContent);
}

/// A chat of phase `phase` from 1 on, at most as long as that has them.
inline Document draw_echoes(int phase, Rng& rng) {
  const EchoSizes sizes = kEchoSizes[static_cast<std::size_t>(phase - 1)];
  const auto budget = static_cast<std::size_t>(log_between(60, sizes.chat, rng));
  ChatText chat;
  if (rng.chance(0.6)) {
    chat.open("system");
    chat.add(cut(draw_system(log_between(8, static_cast<int>(budget), rng), rng),
                 static_cast<int>(budget) / 4 * 3));
    chat.close();
  }
  std::string last;
  const bool thinks = rng.chance(0.7);
  do {
    const int length = log_between(1, sizes.content, rng);
    Echo echo = draw_echo(any_kind(rng), length, Split::kTrain, rng);
    if (!last.empty() && rng.chance(0.15)) {
      std::string again = changed(last, rng);
      if (!held_out_content(again)) echo.content = std::move(again);
    }
    // 40: the turns' own tokens.
    if (chat.size() + echo.before.size() + 2 * echo.content.size() + echo.after.size() + 90 >
        static_cast<std::size_t>(sizes.chat))
      break;
    if (rng.chance(0.05)) {  // not a request for an echo
      chat.open("user");
      chat.add(echo.before);
      chat.close();
      chat.open("assistant");
      chat.add(echo.after);
      chat.close();
      continue;
    }
    add_request(chat, echo, rng);
    chat.open("assistant");
    const bool learnt = rng.chance(0.9);
    if (!thinks) chat.add(special(kThink) + "\n\n" + special(kThinkEnd) + "\n\n");
    chat.add(learnt ? echo.content : draw_around(80, rng), learnt);
    chat.close(learnt);
    last = std::move(echo.content);
  } while (chat.size() < budget);
  return std::move(chat).document();
}

}  // namespace train
