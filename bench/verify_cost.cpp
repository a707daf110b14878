#include "verify_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "models.h"
#include "oracle_drafter.h"
#include "step_floor.h"

namespace dendrite::bench {
namespace {

constexpr auto kDeepest = static_cast<std::int64_t>(kDraftDepth);
/// Steps at the begin of a call that are not timed: pages are copied, drafts of more rows come.
constexpr std::int64_t kFirst = 2;

/// Every place has the same choices.
class AlikeEverywhere final : public Lattice {
 public:
  explicit AlikeEverywhere(const OracleOptions& options) {
    for (const double chance : chances_of(options)) {
      out_.push_back({0, static_cast<float>(std::log(chance))});
    }
  }
  std::span<const DraftChild> children(std::int32_t /*key*/) override { return out_; }

 private:
  std::vector<DraftChild> out_;
};

/// Of so many nodes; none: there is no such.
std::vector<DraftNode> shape_of(const std::string& name, std::int64_t nodes) {
  std::vector<DraftNode> shape;
  if (name == "tree") {
    AlikeEverywhere places({.tree = true});
    return build_draft(places, {.nodes = nodes, .depth = OracleOptions{}.depth});
  }
  if (name == "chain" && nodes > kDeepest) return shape;
  for (std::int32_t i = 0; i < nodes; ++i) {
    const std::int32_t parent = name == "chain" ? i - 1 : i / 2 - 1;  // two below each
    const std::int32_t above = parent < 0 ? 0 : shape[static_cast<std::size_t>(parent)].depth;
    shape.push_back({.parent = parent, .depth = above + 1});
  }
  return shape;
}

class VerifyCost {
 public:
  VerifyCost(const Engine& engine, const VerifyOptions& options, Clock clock, int trials,
             Report& report)
      : engine_(engine), options_(options), clock_(clock), trials_(trials), report_(report) {}

  void measure(std::int64_t branches, const std::string& name, std::int64_t nodes) {
    std::vector<DraftNode> shape = shape_of(name, nodes);
    if (shape.empty()) return;
    std::vector<double> plain, waiting, verifying, ratios, ratios_waiting;
    double rows = 0;  // verified a step
    depth_ = std::ranges::max_element(shape, {}, &DraftNode::depth)->depth;
    for (int trial = -2; trial < trials_; ++trial) {  // (the first passes of a size record kernels)
      const Steps as_it_is = decode(branches, trial, Speculate::kOff, {});
      const Steps not_early = decode(branches, trial, Speculate::kDraftModel, {});
      const Steps with = decode(branches, trial, Speculate::kDraftModel, shape);
      if (trial < 0) continue;
      plain.push_back(as_it_is.ms);
      waiting.push_back(not_early.ms);
      verifying.push_back(with.ms);
      ratios.push_back(with.ms / as_it_is.ms);
      ratios_waiting.push_back(with.ms / not_early.ms);
      rows = with.rows;
    }
    const Json params{{"shape", name}, {"nodes", nodes}, {"branches", branches}};
    report_.add("step, plain", params, "ms", plain);
    report_.add("step, plain, not early", params, "ms", waiting);
    report_.add(
        {"step, verifying", params, "ms", summarize(verifying), {{"rows", rows}}, verifying});
    report_.add("verify", params, "x", ratios);
    report_.add("verify, by not early", params, "x", ratios_waiting);
    tell_waits(params, branches, shape);
    if (rows < 0.99 * static_cast<double>(nodes)) {
      report_.add_value("verified a step", params, "tokens", rows);
    }
    tell_floor(params, branches, nodes, median(verifying));
  }

 private:
  struct Steps {
    double ms = 0;    // the median
    double rows = 0;  // of drafts, of each branch, in each
  };

  /// How long the device stands still between two steps, by its own clock.
  void tell_waits(const Json& params, std::int64_t branches, const std::vector<DraftNode>& shape) {
    Backend& backend = *core_of(engine_)->backend;
    const auto waits = [&](const std::vector<DraftNode>& drafted) {
      backend.start_timing();
      decode(branches, trials_, Speculate::kDraftModel, drafted);
      const DeviceTime time = backend.timing();
      return time.steps == 0 ? 0 : 1e3 * time.idle_ms / static_cast<double>(time.steps);
    };
    const double plain = waits({});
    const double verifying = waits(shape);
    if (plain == 0) return;  // a device that tells none
    report_.add_value("device waits, plain, not early", params, "us", plain);
    report_.add_value("device waits, verifying", params, "us", verifying);
  }

  /// Each step gives each branch one token, whatever is drafted.
  Steps decode(std::int64_t branches, int trial, Speculate speculate,
               std::vector<DraftNode> shape) {
    auto drafter = std::make_unique<WrongDrafter>(*core_of(engine_), texts_);
    const auto budget = std::max<std::int64_t>(1, std::ssize(shape));
    drafter->shape = std::move(shape);
    std::unique_ptr<DraftProvider> provider = std::move(drafter);
    const DraftModelInPlace in_place(engine_, provider);
    Session session(engine_, {.seed = static_cast<std::uint64_t>(trial)});
    Branch root = session.prefill(random_tokens(options_.prompt_length, engine_.info().vocab, 1));
    std::vector<Branch> wanted = root.fork(static_cast<int>(branches));
    std::vector<double> times;
    DecodeParams params{.max_tokens = kFirst + options_.steps + depth_ + 1,
                        .temperature = 0.7,
                        .ignore_eos = true,
                        .slack = std::numeric_limits<double>::infinity(),
                        .speculate = speculate,
                        .speculate_budget = budget};
    std::int64_t rows_before = 0, rows_after = 0;
    params.on_token = [&](const TokenEvent& event) {
      if (event.index != 0) return;
      times.push_back(now_seconds(clock_));
      const auto steps = std::ssize(times) - 1;
      if (steps == kFirst) rows_before = session.stats().tokens_drafted;
      if (steps == kFirst + options_.steps) rows_after = session.stats().tokens_drafted;
    };
    const std::vector<Generation> texts = session.decode(wanted, params);
    if (std::ssize(times) < params.max_tokens) {
      throw Error("KV pages ran out after " + std::to_string(times.size()) + " of " +
                  std::to_string(params.max_tokens) + " tokens; expected a larger --kv-tokens");
    }
    if (speculate == Speculate::kOff) texts_.clear();
    for (const Branch& branch : wanted) texts_.add(branch);
    std::vector<double> steps;
    for (auto i = static_cast<std::size_t>(kFirst); std::ssize(steps) < options_.steps; ++i) {
      steps.push_back((times[i + 1] - times[i]) * 1e3);
    }
    const auto each = static_cast<double>(options_.steps * branches);
    return {median(steps), static_cast<double>(rows_after - rows_before) / each};
  }

  /// Each weight and each token's K and V once, or all operations, at the machine's rates.
  void tell_floor(const Json& params, std::int64_t branches, std::int64_t nodes, double took_ms) {
    const EngineInfo& info = engine_.info();
    const std::int64_t text = options_.prompt_length + options_.steps / 2;
    double floor_ms = 0;
    if (options_.bandwidth_gbs > 0) {
      const std::int64_t tokens = text + branches * (options_.steps / 2 + nodes);
      const double bytes = weight_bytes_read(engine_, branches * (1 + nodes)) +
                           static_cast<double>(tokens * info.kv_token_bytes);
      floor_ms = bytes / options_.bandwidth_gbs * 1e-6;
      report_.add_value("floor, bytes", params, "ms", floor_ms);
    }
    if (options_.tflops > 0) {
      const auto rows = static_cast<double>(branches * (1 + nodes));
      const double ms = rows * flop_of_row(engine_, text) / options_.tflops * 1e-9;
      report_.add_value("floor, operations", params, "ms", ms);
      floor_ms = std::max(floor_ms, ms);
    }
    if (floor_ms > 0) report_.add_value("verify, by floor", params, "x", took_ms / floor_ms);
  }

  const Engine engine_;
  const VerifyOptions& options_;
  const Clock clock_;
  const int trials_;
  Report& report_;
  KnownTexts texts_;
  std::int64_t depth_ = 0;  // of the shape: so many tokens before a call's end there is room for it
};

}  // namespace

void VerifyOptions::add_to(CLI::App& app) {
  app.add_option("--nodes", nodes, "Drafted tokens of a step that is verified")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--verify-branches", branches, "... of so many branches, as many nodes each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--verify-shapes", shapes,
                 "... of these shapes: a chain (32 tokens at most), a tree as DDTree draws it (15 "
                 "deep), or bushy: two after each token, so that none shares a fork with the next")
      ->delimiter(',')
      ->check(CLI::IsMember({"chain", "tree", "bushy"}))
      ->capture_default_str();
  app.add_option("--verify-prompt", prompt_length, "... after a prompt of so many tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--verify-steps", steps, "... and so many steps a trial")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--bandwidth-gbs", bandwidth_gbs,
                 "What the device reads a second, to tell the least that a step can take")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--tflops", tflops, "... and what it computes")->check(CLI::NonNegativeNumber);
}

/// A fork copies its branch's last page.
std::int64_t VerifyOptions::kv_tokens() const {
  constexpr std::int64_t kPage = 32;
  const std::int64_t most = *std::ranges::max_element(branches);
  const std::int64_t each = *std::ranges::max_element(nodes) * kPage + steps + kDeepest + 4 * kPage;
  return prompt_length + 2 * kPage + most * each;
}

void measure_verification(const Engine& engine, const VerifyOptions& options, Clock clock,
                          int trials, Report& report) {
  VerifyCost cost(engine, options, clock, trials, report);
  for (const std::int64_t branches : options.branches) {
    for (const std::string& shape : options.shapes) {
      for (const std::int64_t nodes : options.nodes) cost.measure(branches, shape, nodes);
    }
  }
}

}  // namespace dendrite::bench
