#include "dendrite/quantize.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>

#include "common.h"
#include "dendrite/model_files.h"
#include "dendrite/perplexity.h"
#include "progress.h"
#include "texts.h"

namespace dendrite::cli {
namespace {

struct QuantizeFlags {
  CommonFlags common;
  QuantizeOptions options;
  std::string out;
  std::vector<std::string> calibration;
  std::vector<std::string> texts;
  PerplexityParams measure;
};

/// What a model becomes worse by.
struct Damage {
  Perplexity before, after;
  double agreement = 0;
};

/// Takes the last quarter off a text, from the beginning of a line, else of a character.
std::string take_quarter(std::string& text) {
  std::size_t at = text.size() / 4 * 3;
  if (const std::size_t line = text.find('\n', at); line + 1 < text.size()) at = line + 1;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) ++at;
  std::string rest = text.substr(at);
  text.resize(at);
  return rest;
}

/// Takes the last quarter of the texts, which is measured with then and not calibrated with; where
/// they are few, of each.
std::vector<TextSample> hold_out(std::vector<TextSample>& texts) {
  constexpr std::size_t kMany = 8;
  std::vector<TextSample> held;
  if (texts.size() >= kMany) {
    const auto first = texts.end() - static_cast<std::ptrdiff_t>(texts.size() / 4);
    held.assign(std::make_move_iterator(first), std::make_move_iterator(texts.end()));
    texts.erase(first, texts.end());
  } else {
    for (TextSample& sample : texts) held.push_back({.text = take_quarter(sample.text)});
  }
  return held;
}

double bits_a_weight(const std::string& model) {
  StoredWeights all;
  for (const StoredWeights& weights : stored_weights(model)) {
    all.bytes += weights.bytes;
    all.parameters += weights.parameters;
  }
  return 8.0 * static_cast<double>(all.bytes) / static_cast<double>(all.parameters);
}

Perplexity measure(const QuantizeFlags& flags, const std::string& model, const char* what,
                   const std::vector<TextSample>& texts, const Interrupt& interrupt,
                   Progress& progress) {
  CommonFlags common = flags.common;
  common.model = model;
  const Engine engine = common.load();
  PerplexityParams params = flags.measure;
  params.likeliest = true;
  params.cancel = interrupt.token();
  params.on_progress = [&](std::int64_t done, std::int64_t all) { progress.show(what, done, all); };
  const Perplexity got = perplexity(engine, texts, params);
  progress.clear();
  return got;
}

/// Before anything is written: texts can be measured with a model that has a tokenizer.
void check_can_measure(const QuantizeFlags& flags, const std::string& model) {
  CommonFlags common = flags.common;
  common.model = model;
  if (common.load(false).info().has_tokenizer) return;
  throw Error("--text: " + model + " has no tokenizer; expected one, to measure texts with");
}

Json damage_json(const Damage& damage) {
  return {{"before", damage.before.value()},
          {"after", damage.after.value()},
          {"ratio", damage.after.value() / damage.before.value()},
          {"tokens", damage.after.tokens},
          {"window", damage.after.window}};
}

void print(const QuantizeFlags& flags, const Quantized& done, double bits,
           const std::optional<Damage>& damage) {
  std::cout << std::fixed << std::setprecision(2) << flags.out << ": " << done.matrices
            << " matrices in " << flags.options.format;
  if (done.group > 0) std::cout << " of " << done.group;
  std::cout << ", " << bits << " bits a weight in all\n";
  if (!done.left.empty()) {
    std::cout << "left as they are, since their rows are no whole groups: " << done.left.size()
              << " matrices (" << done.left.front() << (done.left.size() > 1 ? ", ..." : "")
              << ")\n";
  }
  if (done.places > 0) {
    std::cout << "calibrated with " << done.calibration_tokens << " tokens: " << done.scaled
              << " of " << done.places << " inputs scaled, errors on average " << done.error_ratio
              << " of those without\n";
  }
  if (!damage) return;
  std::cout << std::setprecision(4) << "perplexity  " << damage->before.value() << " before, "
            << damage->after.value() << " after: " << std::showpos << std::setprecision(2)
            << 100 * (damage->after.value() / damage->before.value() - 1) << std::noshowpos
            << " % (" << damage->after.tokens << " tokens)\n"
            << "top-1       " << 100 * damage->agreement
            << " % of places have the same likeliest token\n";
}

int run(const QuantizeFlags& flags) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string model = flags.common.model.empty() ? default_model() : flags.common.model;
  QuantizeOptions options = flags.options;
  options.calibration = read_samples(flags.calibration);
  std::vector<TextSample> held = read_samples(flags.texts);
  if (held.empty() && !options.calibration.empty()) held = hold_out(options.calibration);
  if (!held.empty()) check_can_measure(flags, model);
  options.threads = flags.common.engine.threads;
  const Interrupt interrupt;
  options.cancel = interrupt.token();
  Progress progress;
  options.on_progress = [&](const std::string& what, std::int64_t at, std::int64_t all) {
    progress.show(what, at, all);
  };
  const Quantized done = quantize(model, flags.out, options);
  progress.clear();
  if (done.cancelled) return kExitInterrupted;
  const double bits = bits_a_weight(flags.out);
  std::optional<Damage> damage;
  if (!held.empty()) {
    damage.emplace();
    damage->before = measure(flags, model, "measuring before", held, interrupt, progress);
    if (!damage->before.cancelled) {
      damage->after = measure(flags, flags.out, "measuring after", held, interrupt, progress);
    }
    if (interrupt.requested()) {
      std::cerr << flags.out << " is written; what it costs was not measured to the end\n";
      return kExitInterrupted;
    }
    damage->agreement = top1_agreement(damage->before, damage->after);
  }
  if (flags.common.json) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    print_json({{"format", flags.options.format},
                {"output_quantization", flags.options.output_quantization},
                {"group", done.group > 0 ? Json(done.group) : Json()},
                {"out", flags.out},
                {"matrices", done.matrices},
                {"left", done.left},
                {"bits_a_weight", bits},
                {"calibration_tokens", done.calibration_tokens},
                {"inputs", done.places},
                {"inputs_scaled", done.scaled},
                {"error_ratio", done.error_ratio},
                {"perplexity", damage ? damage_json(*damage) : Json()},
                {"top1_agreement", damage ? Json(damage->agreement) : Json()},
                {"seconds", took.count()}});
    return 0;
  }
  print(flags, done, bits, damage);
  if (!damage) std::cerr << "--text FILE measures what it costs\n";
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, int& status) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command = app.add_subcommand(
      "quantize",
      "Writes a model with fewer bits a weight, for Dendrite and whoever reads compressed-tensors\n"
      "(transformers, vLLM), and tells what it costs.\n"
      "Try:  dendrite quantize --model DIR --format fp8 --out DIR-fp8 --text heldout.txt\n"
      "      dendrite quantize --model DIR --format int4 --out DIR-int4 --calibration texts.txt\n"
      "fp8: E4M3, a scale a row. int8: the same in whole numbers. int4: a scale for 128 "
      "neighbours,\n"
      "or fewer; the smallest, and the one that needs --calibration: texts as the model will see\n"
      "them. Embeddings, norms and, without --output-quantization, the output matrix stay as they\n"
      "are. Perplexity before and after\n"
      "and the share of equal likeliest tokens are of --text; without it of the last quarter of\n"
      "--calibration, which is then not calibrated with. Files are text; of NAME.jsonl the "
      "\"text\"\n"
      "of each line, behind its \"prompt\", if it has one.");
  flags->common.add_to(*command);
  for (const char* of_loading : {"--quantization", "--load-format"}) {
    command->remove_option(command->get_option(of_loading));
  }
  // Of the file, and not when it is loaded.
  command->remove_option(command->get_option("--output-quantization"));
  command
      ->add_option("--output-quantization", flags->options.output_quantization,
                   "What the matrix that gives the logits becomes (default: it stays); not where "
                   "it is the embeddings, too")
      ->check(CLI::IsMember({"fp8", "int8"}));
  command->add_option("--format", flags->options.format, "What matrices of layers become")
      ->check(CLI::IsMember({"fp8", "int8", "int4"}))
      ->required();
  command->add_option("--out", flags->out, "The new folder; nothing may have its name")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--group", flags->options.group,
                   "int4: neighbours that share a scale (default: the largest of these that all "
                   "rows are whole groups of)")
      ->check(CLI::IsMember({128, 64, 32}));
  command
      ->add_option("--calibration", flags->calibration,
                   "Texts of the model's work, some 10,000 tokens: inputs that matter more are "
                   "rounded less (repeatable)")
      ->type_name("FILE")
      ->take_all()
      ->expected(1);
  command->add_option("--text", flags->texts, "Texts to measure with (repeatable)")
      ->type_name("FILE")
      ->take_all()
      ->expected(1);
  add_windows_to(*command, flags->measure);
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
