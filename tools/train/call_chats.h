// Chats with tools, as training documents: a request, the call that it asks for, what the tool gave
// back and the answer that tells it, then further requests:
//
//   <call>request\n{call}<eos><result>result\nThe result: result<eos><call>request\n{call}<eos>...
//
// All calls and answers are learnt but those that stand for another assistant's.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "call_results.h"
#include "document.h"
#include "packing.h"

namespace train {

inline constexpr double kChats = 0.5;  // share of documents of phase 2 that are chats
inline constexpr int kChatRowTokens = 1024;

struct Turn {
  std::string role;  // OpenAI's: user, assistant, tool
  std::string text;  // of an assistant that calls: the call
  bool calls = false;
  bool learnt = false;
};

/// A chat whose last turn is learnt.
inline std::vector<Turn> draw_chat(Split split, Rng& rng) {
  std::vector<Turn> turns;
  const auto ask = [&](bool learnt) {
    Request request = draw_request(any_of<Tool>(tools(), rng), split, rng);
    turns.push_back({"user", std::move(request.text)});
    turns.push_back({"assistant", std::move(request.call), true, learnt});
  };
  const auto close = [&](double another) {
    std::string result = draw_result(split, rng);
    // An assistant that is not satisfied calls again; what is told then is the last result.
    if (rng.chance(another)) {
      turns.push_back({"tool", std::exchange(result, draw_result(split, rng))});
      turns.push_back(
          {"assistant", draw_request(any_of<Tool>(tools(), rng), split, rng).call, true});
    }
    turns.push_back({"tool", result});
    turns.push_back({"assistant", answer_to(result), false, true});
  };
  for (int before = rng.chance(0.5) ? rng.between(1, 4) : 0; before > 0; --before) {
    if (rng.chance(0.15)) {  // talk, which nobody learns
      turns.push_back({"user", ResultWriter(rng).draw()});
      turns.push_back({"assistant", ResultWriter(rng).draw()});
      continue;
    }
    ask(true);
    if (rng.chance(0.85)) close(0.1);
  }
  ask(true);
  if (turns.size() == 2 || rng.chance(0.75)) close(0.1);
  return turns;
}

inline Document chat_document(const std::vector<Turn>& turns) {
  Document document{.text = "", .learnt_from = 0, .ends = true, .asks_for_call = true};
  const auto add = [&](const std::string& text, bool learnt) {
    document.text += text;
    document.marks.insert(document.marks.end(), text.size(), learnt ? kLearnt : 0);
  };
  for (const Turn& turn : turns) {
    const bool first = &turn == &turns.front(), last = &turn == &turns.back();
    if (turn.role == "user")
      add((first ? "" : special(kCall)) + turn.text + '\n',
          false);  // the first <call> is asks_for_call
    else if (turn.role == "tool")
      add(special(kResult) + turn.text + '\n', false);
    else
      add(turn.text + (last ? "" : special(kEos)), turn.learnt);  // the last <eos> is ends
  }
  return document;
}

/// A document of phase 2: a request and its call, or a chat.
inline Document draw_call_or_chat(Split split, Rng& rng) {
  return rng.chance(kChats) ? chat_document(draw_chat(split, rng)) : draw_call(split, rng);
}

}  // namespace train
