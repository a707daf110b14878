#include <cmath>
#include <cstdio>

#include "machine.h"
#include "models.h"
#include "options.h"

// score: log-probs of n continuations of one prompt, as one pass over their trie, one after the
// other on the same prompt, and as n prompts that share nothing.

namespace dendrite::bench {
namespace {

struct ScoreOptions {
  CommonOptions common;
  std::int64_t prompt_length = 512;
  std::int64_t continuations = 32;
  std::int64_t length = 8;
  std::int64_t shared = 4;  // of it, tokens that groups of four continuations have in common
  bool independent = true;
  int trials = 10;
};

double total(const std::vector<Score>& scores) {
  double sum = 0;
  for (const Score& score : scores) sum += score.logprob;
  return sum;
}

void run(const ScoreOptions& options) {
  CommonOptions common = options.common;
  common.engine.prefix_index = false;
  if (common.engine.kv_tokens == 0) {
    common.engine.kv_tokens =
        2 * options.prompt_length + options.continuations * (options.length + 64) + 4096;
  }
  const Engine engine = common.load();
  Report report("score");
  report.describe(engine, common.model_name());
  const std::int64_t vocab = engine.info().vocab;
  const std::vector<Token> prompt = random_tokens(options.prompt_length, vocab, 1);
  std::vector<std::vector<Token>> continuations;
  for (std::int64_t i = 0; i < options.continuations; ++i) {
    const auto group = static_cast<std::uint64_t>(100 + i / 4);
    std::vector<Token> tokens =
        random_tokens(std::min(options.shared, options.length), vocab, group);
    const std::vector<Token> own =
        random_tokens(options.length - static_cast<std::int64_t>(tokens.size()), vocab,
                      static_cast<std::uint64_t>(1000 + i));
    tokens.insert(tokens.end(), own.begin(), own.end());
    continuations.push_back(std::move(tokens));
  }

  std::vector<double> fresh_ms, trie_ms, each_ms, alone_ms, speedups;
  double trie_sum = 0, each_sum = 0, alone_sum = 0;
  std::int64_t trie_tokens = 0, alone_tokens = 0;
  // On a GPU the first passes of a size load and record kernels: a trial that does not count.
  for (int trial = common.engine.device == "cpu" ? 0 : -1; trial < options.trials; ++trial) {
    if (trial == 0) {
      for (auto* times : {&fresh_ms, &trie_ms, &each_ms, &alone_ms, &speedups}) times->clear();
    }
    {
      Session session(engine);
      const double fresh_begin = now_seconds();
      Branch root = session.prefill(prompt);
      const double prefilled = now_seconds();
      const std::int64_t before = session.stats().tokens_computed;
      const double begin = now_seconds();
      trie_sum = total(root.score_tokens(continuations));
      trie_ms.push_back((now_seconds() - begin) * 1e3);
      fresh_ms.push_back(trie_ms.back() + (prefilled - fresh_begin) * 1e3);
      trie_tokens = session.stats().tokens_computed - before;
      const double each_begin = now_seconds();
      each_sum = 0;
      for (const std::vector<Token>& tokens : continuations)
        each_sum += total(root.score_tokens({tokens}));
      each_ms.push_back((now_seconds() - each_begin) * 1e3);
    }
    if (!options.independent) continue;
    Session session(engine);
    const double begin = now_seconds();
    alone_sum = 0;
    for (const std::vector<Token>& tokens : continuations) {
      Branch root = session.prefill(prompt);
      alone_sum += total(root.score_tokens({tokens}));
    }
    alone_ms.push_back((now_seconds() - begin) * 1e3);
    alone_tokens = session.stats().tokens_computed;
    speedups.push_back(alone_ms.back() / trie_ms.back());
  }
  const Json params{{"prompt_length", options.prompt_length},
                    {"continuations", options.continuations},
                    {"length", options.length}};
  report.add("prompt and trie", params, "ms", fresh_ms);
  report.add("trie", params, "ms", trie_ms);
  report.add("one at a time", params, "ms", each_ms);
  report.add_value("tokens, trie", params, "tokens", static_cast<double>(trie_tokens));
  if (options.independent) {
    report.add("independent prompts", params, "ms", alone_ms);
    report.add_ratio("trie_speedup", params, speedups, median(trie_ms), median(alone_ms));
    report.add_value("tokens, independent", params, "tokens", static_cast<double>(alone_tokens));
  } else {
    alone_sum = trie_sum;
  }
  // On the CPU company changes no bit of a row.
  report.add_value("difference of scores", params, "nats",
                   std::max(std::fabs(trie_sum - each_sum), std::fabs(trie_sum - alone_sum)));
  if (!common.json.empty()) report.write_json(common.json);
}

}  // namespace

void add_score(CLI::App& app) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command =
      app.add_subcommand("score", "Continuations of a prompt: as a trie, and one by one");
  options->common.add_to(*command);
  command->add_option("--prompt-length,--prefix", options->prompt_length, "Tokens of the prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--continuations", options->continuations, "How many")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--length", options->length, "Tokens of each")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--shared", options->shared, "Of them, in common to groups of four")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_flag("!--no-independent", options->independent,
                    "Do not time one prompt a continuation");
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
