#include <chrono>
#include <iostream>

#include "common.h"

namespace dendrite::cli {
namespace {

struct ScoreFlags {
  CommonFlags common;
  PromptFlags prompt;
  std::vector<std::string> texts;
  std::vector<std::string> ids;
};

int run(const ScoreFlags& flags) {
  if (flags.texts.empty() && flags.ids.empty()) {
    throw Error(
        "score: nothing to score; expected --continuation TEXT or --continuation-ids 4,5,6");
  }
  const Engine engine = flags.common.load();
  const std::vector<Token> prompt = flags.prompt.tokens(engine);
  std::vector<std::vector<Token>> continuations;
  for (const std::string& text : flags.texts) {
    continuations.push_back(engine.encode_after(prompt, text));
  }
  for (const std::string& ids : flags.ids) {
    continuations.push_back(parse_ids(ids, "--continuation-ids"));
  }
  const auto begin = std::chrono::steady_clock::now();
  Session session(engine, {.seed = flags.common.seed});
  Branch root = session.prefill(std::span<const Token>(prompt));
  const std::vector<Score> scores = root.score_tokens(continuations);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (flags.common.json) {
    Json out{{"scores", Json::array()}};
    for (const Score& score : scores) {
      out["scores"].push_back(
          {{"logprob", score.logprob}, {"tokens", score.tokens}, {"greedy", score.greedy}});
    }
    out["stats"] = to_json(session.stats(), took.count());
    print_json(out);
    return 0;
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    std::cout << scores[i].logprob << "\t";
    if (i < flags.texts.size()) {
      std::cout << flags.texts[i] << "\n";
    } else {
      std::cout << flags.ids[i - flags.texts.size()] << "\n";
    }
  }
  return 0;
}

}  // namespace

void add_score(CLI::App& app, int& status) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand(
      "score", "Log-probabilities of continuations, in one pass over their trie");
  flags->common.add_to(*command);
  flags->prompt.add_to(*command);
  command->add_option("--continuation", flags->texts, "Text to score (repeatable)")
      ->take_all()
      ->expected(1);
  command->add_option("--continuation-ids", flags->ids, "Token ids to score (repeatable)")
      ->type_name("4,5,6")
      ->take_all()
      ->expected(1);
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
