#include <algorithm>
#include <memory>

#include "constraint_masks.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "machine.h"
#include "models.h"
#include "options.h"
#include "peer.h"

// constraint: what it costs that text must match something. Masks by grammar and vocabulary; decode
// with a constraint next to decode without, in turns, of as many tokens; forks of a branch under
// one. A mask is made on the host while the device computes, so it costs a step nothing as long as
// the masks of all branches take less than the pass.

namespace dendrite::bench {
namespace {

struct ConstraintOptions {
  CommonOptions common;
  std::vector<std::string> tokenizers;
  std::vector<std::int64_t> branches = {1, 8, 32};
  std::int64_t prompt_length = 128;
  std::int64_t output_length = 256;
  int trials = 8;
  double temperature = 0.7;
  std::string peer;
};

/// The same by another engine.
struct PeerSide {
  std::vector<double> with, without, ratios, mask_us;

  void measure(Peer& peer, const LongText& text, std::int64_t branches, std::int64_t tokens) {
    without.push_back(peer.constrain(branches, tokens, "").ms / static_cast<double>(tokens));
    const Peer::Constrained constrained = peer.constrain(branches, tokens, text.gbnf);
    with.push_back(constrained.ms / static_cast<double>(tokens));
    ratios.push_back(with.back() / without.back());
    mask_us.insert(mask_us.end(), constrained.mask_us.begin(), constrained.mask_us.end());
  }

  void add_to(Report& report, const std::string& name, const Json& params) const {
    report.add_peer(name, "token, unconstrained", params, "ms", without);
    report.add_peer(name, "token, constrained", params, "ms", with);
    report.add_peer(name, "overhead", params, "x", ratios);
    const double us = mean(mask_us);
    report.add_peer(name, "mask, mean", params, "us", std::span(&us, 1));
  }
};

class ConstraintBench {
 public:
  explicit ConstraintBench(const ConstraintOptions& options)
      : options_(options), engine_(load(options)), session_(engine_), report_("constraint") {
    if (core_of(engine_)->tokenizer == std::nullopt) {
      throw Error("constraint: " + engine_.info().model_path +
                  " has no tokenizer.json; expected one, or --tokenizer");
    }
    report_.describe(engine_, options.common.model_name());
    if (!options.peer.empty()) peer_ = std::make_unique<Peer>(options.peer);
  }

  void run() {
    masks();
    const std::vector<Token> prompt =
        random_tokens(options_.prompt_length, engine_.info().vocab, 1);
    root_ = session_.prefill(prompt);
    if (peer_ != nullptr) peer_->prefill(prompt);
    const LongText texts[] = {free_text(), json_records()};
    for (const LongText& text : texts) {
      engine_.check(text.constraint);
      for (const std::int64_t branches : options_.branches) overhead(text, branches);
    }
    forks(texts[1]);
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  static Engine load(const ConstraintOptions& options) {
    CommonOptions common = options.common;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t most = std::ranges::max(options.branches);
      common.engine.kv_tokens = options.prompt_length + (most + 1) * (options.output_length + 64);
    }
    if (common.shape.empty() || options.tokenizers.empty()) return common.load();
    return load_shape(common.shape, common.engine, options.tokenizers[0]);
  }

  void masks() {
    const EngineCore& core = *core_of(engine_);
    masks_of(*core.tokenizer, core.vocab(), engine_.info().eos);
    const std::size_t known = options_.common.shape.empty() ? 0 : 1;
    for (std::size_t i = known; i < options_.tokenizers.size(); ++i) {
      const Tokenizer tokenizer = Tokenizer::open(std::filesystem::path(options_.tokenizers[i]));
      masks_of(tokenizer, tokenizer.vocab_size(), {tokenizer.eos_id().value_or(0)});
    }
  }

  void masks_of(const Tokenizer& tokenizer, std::int64_t vocab, const std::vector<Token>& eos) {
    const double begin = now_seconds();
    const auto vocabulary = std::make_shared<const Vocabulary>(tokenizer, vocab, eos);
    report_.add_value("vocabulary", {{"vocab", vocab}}, "ms", (now_seconds() - begin) * 1e3);
    measure_masks(report_, vocabulary, tokenizer,
                  {.trials = options_.trials, .tokens = options_.output_length});
  }

  /// Milliseconds a token of each branch.
  double decode(std::int64_t branches, const std::optional<Constraint>& constraint) {
    std::vector<Branch> kids = root_.fork(static_cast<int>(branches));
    DecodeParams params;
    params.max_tokens = options_.output_length;
    params.temperature = options_.temperature;
    params.ignore_eos = true;
    params.constraint = constraint;
    const double begin = now_seconds();
    const std::vector<Generation> out = session_.decode(kids, params);
    const double ms = (now_seconds() - begin) * 1e3;
    for (const Generation& text : out) {
      if (std::ssize(text.ids) == options_.output_length) continue;
      throw Error(std::string("decode: ended by ") + name_of(text.finish) + " after " +
                  std::to_string(text.ids.size()) + " of " +
                  std::to_string(options_.output_length) + " tokens");
    }
    return ms / static_cast<double>(options_.output_length);
  }

  void overhead(const LongText& text, std::int64_t branches) {
    const Json params{{"constraint", text.name},
                      {"branches", branches},
                      {"output_length", options_.output_length}};
    std::vector<double> with, without, ratios, steps;
    PeerSide peer;
    for (int i = -1; i < options_.trials; ++i) {  // one before
      double ms[2] = {};
      for (const int side : {i & 1, 1 - (i & 1)}) {
        const std::int64_t before = session_.stats().steps;
        ms[side] = decode(branches, side == 1 ? std::optional(text.constraint) : std::nullopt);
        if (i >= 0 && side == 1) {
          steps.push_back(static_cast<double>(session_.stats().steps - before) /
                          static_cast<double>(options_.output_length));
        }
      }
      if (i < 0) continue;
      without.push_back(ms[0]);
      with.push_back(ms[1]);
      ratios.push_back(ms[1] / ms[0]);
      if (peer_ != nullptr) peer.measure(*peer_, text, branches, options_.output_length);
    }
    report_.add("token, unconstrained", params, "ms", without);
    report_.add("token, constrained", params, "ms", with);
    report_.add("steps a token", params, "steps", steps);
    report_.add_ratio("overhead", params, ratios, median(with), median(without));
    if (peer_ != nullptr) peer.add_to(report_, peer_->name(), params);
  }

  /// The fork alone, and from the fork to the first token that the child computed itself: its
  /// parent's distribution gives one, the step after it the next.
  void forks(const LongText& text) {
    constexpr int kBatch = 64;
    std::vector<double> fork_ns[2], known_ms[2], computed_ms[2], ratios;
    Branch parents[2] = {root_.fork(), root_.fork()};
    parents[1].constrain(text.constraint);
    for (Branch& parent : parents) session_.decode(parent, sampling(32));
    for (int i = 0; i < std::max(20, 10 * options_.trials); ++i) {
      for (const int side : {i & 1, 1 - (i & 1)}) {
        Branch& parent = parents[side];
        double begin = now_seconds();
        const std::vector<Branch> children = several(parent, kBatch);
        fork_ns[side].push_back((now_seconds() - begin) * 1e9 / kBatch);
        known_ms[side].push_back(first_tokens(parent, 1));
        computed_ms[side].push_back(first_tokens(parent, 2));
      }
      ratios.push_back(computed_ms[1].back() / computed_ms[0].back());
    }
    for (const int side : {0, 1}) {
      const Json params{{"constraint", side == 1 ? text.name : "none"}};
      report_.add("fork", params, "ns", fork_ns[side]);
      report_.add("first token after fork", params, "ms", known_ms[side]);
      report_.add("second token after fork", params, "ms", computed_ms[side]);
    }
    report_.add_ratio("fork overhead", {{"constraint", text.name}}, ratios, median(computed_ms[1]),
                      median(computed_ms[0]));
  }

  static std::vector<Branch> several(Branch& parent, int count) {
    std::vector<Branch> children;
    children.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) children.push_back(parent.fork());
    return children;
  }

  /// Log-probs are asked for, so that tokens that are forced are computed, too.
  DecodeParams sampling(std::int64_t tokens) const {
    DecodeParams params;
    params.max_tokens = tokens;
    params.temperature = options_.temperature;
    params.ignore_eos = true;
    params.top_logprobs = 0;
    return params;
  }

  double first_tokens(Branch& parent, std::int64_t tokens) {
    const double begin = now_seconds();
    Branch child = parent.fork();
    session_.decode(child, sampling(tokens));
    return (now_seconds() - begin) * 1e3;
  }

  const ConstraintOptions& options_;
  Engine engine_;
  Session session_;
  Report report_;
  std::unique_ptr<Peer> peer_;
  Branch root_;
};

}  // namespace

void add_constraint(CLI::App& app) {
  auto options = std::make_shared<ConstraintOptions>();
  CLI::App* command = app.add_subcommand(
      "constraint", "Masks of grammars; decode and forks under a constraint and without");
  options->common.add_to(*command);
  command
      ->add_option("--tokenizer", options->tokenizers,
                   "Folders with a tokenizer.json (constraint_tokenizers.py): masks on these, too; "
                   "with --shape the first is the model's")
      ->delimiter(',')
      ->type_name("DIR");
  command->add_option("--branches", options->branches, "How many branches, one row each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_count(*command, "--prompt-length,--prefix", options->prompt_length, "Shared tokens");
  add_count(*command, "--output-length", options->output_length, "Tokens of a branch");
  add_count(*command, "--trials", options->trials, "Pairs of decodes, and texts, a row");
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->add_option("--peer", options->peer,
                      "Another engine to measure in turns: a command (peers/llama_cpp/grammar.sh)");
  command->callback([options] { ConstraintBench(*options).run(); });
}

}  // namespace dendrite::bench
