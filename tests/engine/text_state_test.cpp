// The text that a branch goes on with: after cuts, where it is found when it is asked for, and
// forks.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::Tokens;

/// Decoding after a cut gives the text that a replay gives, which never was longer.
TEST(TextAfterACut, IsThatOfAReplay) {
  for (const char* model : {"llama2", "qwen2", "mistral_swa", "tinyllama"}) {
    SCOPED_TRACE(model);
    const Engine engine = load(model);
    if (!engine.info().has_tokenizer) continue;
    Session session(engine);
    const Tokens prompt = engine.encode("The");
    // Characters of several tokens, so that cuts come inside of them.
    const Tokens rest =
        engine.encode(" \xE2\x82\xAC \xF0\x9F\x8C\xB3 x\xC3\xA9\xE4\xBD\xA0", false);
    Branch branch = session.prefill(prompt);
    branch.append(rest);
    const auto length = static_cast<std::size_t>(branch.length());
    for (std::size_t cut = 1; cut <= length; ++cut) {
      const std::size_t in_rest = cut - std::min(cut, prompt.size());
      const auto begin = std::span(rest).subspan(0, in_rest);
      const auto more =
          std::span(rest).subspan(in_rest, std::min<std::size_t>(1, rest.size() - in_rest));
      Branch past = branch.at(static_cast<std::int64_t>(cut));
      past.append(more);
      Branch fork = past.fork();
      Branch replay = session.prefill(std::span(prompt).first(std::min(cut, prompt.size())));
      replay.append(begin);
      replay.append(more);
      for (const Token next : {rest[rest.size() - 1], rest[rest.size() / 2], rest[1]}) {
        DecodeParams params{.max_tokens = 2, .logit_bias = {{next, 1e4f}}, .ignore_eos = true};
        const auto text = [&](Branch& of) {
          Branch copy = of.fork();
          return session.decode(copy, params).text;
        };
        EXPECT_EQ(text(past), text(replay)) << cut;
        EXPECT_EQ(text(fork), text(replay)) << cut;
      }
    }
  }
}

/// Whoever hears of a token may fork any branch of the call, with all of its text.
TEST(TextAfterAFork, IsWholeWhoeverForks) {
  const Engine engine = load("llama2");
  Session session(engine);
  const Tokens bytes = engine.encode("\xE2\x82\xAC", false);
  ASSERT_GE(bytes.size(), 3u);
  std::vector<Branch> branches = session.prefill(engine.encode("a")).fork(2);
  Branch forked;
  DecodeParams params{.max_tokens = 1, .logit_bias = {{bytes[bytes.size() - 3], 1e4f}}};
  params.on_token = [&](const TokenEvent& event) {
    if (event.index == 0) forked = branches[1].fork();
  };
  session.decode(branches, params);
  forked.append(std::span(bytes).subspan(bytes.size() - 2, 1));
  const Generation out =
      session.decode(forked, {.max_tokens = 1, .logit_bias = {{bytes.back(), 1e4f}}});
  EXPECT_EQ(out.text, "\xE2\x82\xAC");
}

}  // namespace
}  // namespace dendrite
