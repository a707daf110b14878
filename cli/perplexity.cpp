#include "dendrite/perplexity.h"

#include <chrono>
#include <iomanip>
#include <iostream>

#include "common.h"
#include "progress.h"
#include "texts.h"

namespace dendrite::cli {
namespace {

struct PerplexityFlags {
  CommonFlags common;
  std::vector<std::string> files;
  PerplexityParams params;
};

int run(const PerplexityFlags& flags) {
  const std::vector<TextSample> samples = read_samples(flags.files);
  const Engine engine = flags.common.load();
  const Interrupt interrupt;
  PerplexityParams params = flags.params;
  params.cancel = interrupt.token();
  Progress progress;
  params.on_progress = [&](std::int64_t done, std::int64_t all) {
    progress.show("scoring", done, all);
  };
  const auto begin = std::chrono::steady_clock::now();
  const Perplexity got = perplexity(engine, samples, params);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  progress.clear();
  if (got.cancelled) return kExitInterrupted;
  if (flags.common.json) {
    print_json({{"perplexity", got.value()},
                {"error", got.error()},
                {"nats", got.nats},
                {"nats_a_token", got.nats / static_cast<double>(got.tokens)},
                {"tokens", got.tokens},
                {"texts", samples.size()},
                {"windows", got.windows},
                {"window", got.window},
                {"seconds", took.count()}});
    return 0;
  }
  std::cout << std::fixed << std::setprecision(4) << "perplexity  " << got.value() << " +- "
            << got.error() << "\n"
            << "nats        " << got.nats / static_cast<double>(got.tokens) << " a token\n"
            << "tokens      " << got.tokens << " of " << samples.size() << " texts, in "
            << got.windows << " windows of up to " << got.window << "\n";
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, int& status) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand(
      "perplexity",
      "How well a model foretells texts: exp of the mean of -log(probability) of their tokens.\n"
      "Try:  dendrite perplexity --text heldout.txt\n"
      "      dendrite perplexity --text heldout.txt --quantization int4\n"
      "Less is better; compare models that have the same tokens, on the same text and windows.\n"
      "Each window begins anew, behind BOS where the tokenizer puts one; else its first token is\n"
      "not scored. +- is the standard error. Two runs on the same text differ by far less than\n"
      "that when the model is nearly the same.");
  flags->common.add_to(*command);
  command
      ->add_option("--text", flags->files,
                   "UTF-8 text; of NAME.jsonl the \"text\" of each line by itself, behind the "
                   "line's \"prompt\", which is given (repeatable)")
      ->type_name("FILE")
      ->take_all()
      ->expected(1)
      ->required();
  add_windows_to(*command, flags->params);
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
