#include <algorithm>
#include <cstdio>
#include <numeric>

#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "machine.h"
#include "models.h"
#include "options.h"
#include "peer.h"
#include "step_floor.h"

// decode: one step of n branches that share a prompt. Prefill is timed apart. A decode step reads
// every weight once and each distinct page of K and V once, so its floor is those bytes over the
// read bandwidth, which is measured right before and after each trial: the share of it is what to
// look at.

namespace dendrite::bench {
namespace {

struct DecodeOptions {
  CommonOptions common;
  std::vector<std::int64_t> branches = {1, 4, 8, 16};
  std::vector<std::int64_t> prompt_lengths = {512};
  std::int64_t output_length = 256;
  std::int64_t own = 0;
  int trials = 10;
  double temperature = 0;
  bool cpu_clock = false;
  double quiet = 0;
  std::string peer;
};

struct Trial {
  double step_ms = 0;         // mean
  std::vector<Token> tokens;  // of the first branch
  double bandwidth = 0;       // GB/s next to it
  double foreign = 0;         // cores that others used meanwhile
  double idle = 0;            // share of the time in which the device waited for the host
  double pages = 0;  // at the end, of each branch: its own, and its part of the shared ones
};

/// Of the layers' products and of causal attention; the output matrix has one row.
double prefill_flop(const EngineInfo& info, std::int64_t tokens) {
  const auto qkv = static_cast<double>((info.heads + 2 * info.kv_heads) * info.head_dim);
  const auto attended = static_cast<double>(info.heads * info.head_dim);
  const auto dim = static_cast<double>(info.dim);
  const auto rows = static_cast<double>(tokens);
  const double weights = dim * (qkv + attended + 3 * static_cast<double>(info.ffn_dim));
  return 2 * static_cast<double>(info.layers) * rows * (weights + rows * attended);
}

class DecodeBench {
 public:
  explicit DecodeBench(const DecodeOptions& options)
      : options_(options),
        clock_(options.cpu_clock ? Clock::kCpu : Clock::kWall),
        engine_(load(options)),
        session_(engine_),
        bandwidth_(std::max(1, engine_.info().threads), clock_),
        report_("decode") {
    if (options.cpu_clock && engine_.info().threads != 1) {
      throw Error("--cpu-clock with " + std::to_string(engine_.info().threads) +
                  " threads; expected --threads 1");
    }
    report_.describe(engine_, options.common.model_name());
    report_.set_device("clock", options.cpu_clock ? "cpu" : "wall");
    if (!options.peer.empty()) {
      peer_ = std::make_unique<Peer>(options.peer);
      std::printf("peer: %s\n", peer_->name().c_str());
    }
  }

  void run() {
    for (const std::int64_t length : options_.prompt_lengths) {
      prefill(length);
      first_step_ms_ = 0;
      for (const std::int64_t branches : options_.branches) measure(branches);
    }
    report_.add_value("read_bandwidth", Json::object(), "GB/s", median(bandwidths_));
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  static Engine load(const DecodeOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;  // every prefill is to be computed
    if (common.engine.kv_tokens == 0) {
      const std::int64_t most = *std::max_element(options.branches.begin(), options.branches.end());
      const std::int64_t longest =
          *std::max_element(options.prompt_lengths.begin(), options.prompt_lengths.end());
      common.engine.kv_tokens =
          2 * (longest + 64) + most * (options.own + options.output_length + 64);
    }
    return common.load();
  }

  bool gpu() const { return options_.common.engine.device != "cpu"; }

  /// Prompts are random tokens; the last one stays for the decode trials. Long ones are computed
  /// once on a CPU; on a GPU, whose first passes of a size load and record kernels, two more come
  /// before the trials.
  void prefill(std::int64_t length) {
    const int trials = length <= 1024 || gpu() ? options_.trials : 1;
    const int before = gpu() ? 2 : 0;
    std::vector<double> first_token_ms;
    std::vector<double> rates;
    std::vector<double> flops;
    for (int i = -before; i < trials; ++i) {
      prompt_ =
          random_tokens(length, engine_.info().vocab, static_cast<std::uint64_t>(trials - 1 - i));
      root_ = Branch();
      const double begin = now_seconds(clock_);
      root_ = session_.prefill(prompt_);
      const double prefilled = now_seconds(clock_);
      Branch first = root_.fork();
      session_.decode_step(first, {.temperature = options_.temperature});
      if (i < 0) continue;
      first_token_ms.push_back((now_seconds(clock_) - begin) * 1e3);
      rates.push_back(static_cast<double>(length) / (prefilled - begin));
      flops.push_back(prefill_flop(engine_.info(), length) / (prefilled - begin) * 1e-12);
    }
    const Json params{{"prompt_length", length}};
    report_.add("ttft", params, "ms", first_token_ms);
    report_.add("prefill", params, "tok/s", rates, Better::kHigh);
    report_.add("prefill_compute", params, "TFLOP/s", flops, Better::kHigh);
    if (peer_ == nullptr) return;
    const double peer_ms = peer_->prefill(prompt_);
    report_.add_peer(peer_->name(), "ttft", params, "ms", std::span(&peer_ms, 1));
    const double ratio = peer_ms / median(first_token_ms);
    report_.add_ratio("ttft_speedup", params, std::span(&ratio, 1), median(first_token_ms),
                      peer_ms);
  }

  std::int64_t pages_of(std::int64_t tokens) const {
    const std::int64_t page = options_.common.engine.page_tokens;
    return (tokens + page - 1) / page;
  }

  double read_gb_per_s() {
    const double device = core_of(engine_)->backend->read_gb_per_s();
    return device > 0 ? device : bandwidth_.gb_per_s();
  }

  /// Fresh branches of the prompt, each with other tokens of its own in each trial.
  Trial decode(std::int64_t branches) {
    Trial trial;
    const std::int64_t others = session_.stats().pages_used - pages_of(std::ssize(prompt_));
    std::vector<Branch> kids = root_.fork(static_cast<int>(branches));
    for (Branch& kid : kids) {
      if (options_.own > 0) kid.append(random_tokens(options_.own, engine_.info().vocab, ++seed_));
    }
    std::vector<double> times;
    DecodeParams params;
    // The first token comes from the prompt's distribution, and the first step copies shared pages.
    params.max_tokens = options_.output_length + 2;
    params.temperature = options_.temperature;
    params.ignore_eos = true;
    params.on_token = [&](const TokenEvent& event) {
      if (event.index == 0) times.push_back(now_seconds(clock_));
    };
    const double before = read_gb_per_s();
    core_of(engine_)->backend->start_timing();
    ForeignLoad load;
    std::vector<Generation> out = session_.decode(kids, params);
    trial.foreign = load.cores();
    trial.pages =
        static_cast<double>(session_.stats().pages_used - others) / static_cast<double>(branches);
    const DeviceTime time = core_of(engine_)->backend->timing();
    trial.idle = time.steps > 0 ? time.idle_ms / (time.idle_ms + time.busy_ms) : 0;
    trial.bandwidth = 0.5 * (before + read_gb_per_s());
    trial.tokens = std::move(out[0].ids);
    if (std::ssize(times) != params.max_tokens) {
      throw Error("KV pages ran out after " + std::to_string(times.size()) + " of " +
                  std::to_string(params.max_tokens) + " tokens; expected a larger --kv-tokens");
    }
    trial.step_ms = (times.back() - times[1]) * 1e3 / static_cast<double>(options_.output_length);
    return trial;
  }

  void measure(std::int64_t branches) {
    const Json params{{"branches", branches},
                      {"prompt_length", prompt_.size()},
                      {"own", options_.own},
                      {"output_length", options_.output_length}};
    const EngineInfo& info = engine_.info();
    const double step_bytes =
        weight_bytes_read(engine_, branches) +
        static_cast<double>(info.kv_token_bytes) *
            static_cast<double>(std::ssize(prompt_) +
                                branches * (options_.own + options_.output_length / 2));
    std::vector<double> steps, rates, gb_per_s, shares, foreign, idle, peer_steps, speedups;
    double pages = 0;
    std::size_t equal_tokens = 0;
    std::size_t compared_tokens = 0;
    if (gpu()) decode(branches);  // the first passes of a size load and record kernels
    for (int i = 0; i < options_.trials; ++i) {
      if (options_.quiet > 0) wait_for_quiet(options_.quiet, 60);
      Trial trial = decode(branches);
      for (int again = 0; options_.quiet > 0 && trial.foreign > options_.quiet && again < 3;
           ++again) {
        wait_for_quiet(options_.quiet, 60);
        trial = decode(branches);
      }
      const double ms = trial.step_ms;
      steps.push_back(ms);
      rates.push_back(static_cast<double>(branches) / ms * 1e3);
      gb_per_s.push_back(step_bytes / ms * 1e-6);
      shares.push_back(gb_per_s.back() / trial.bandwidth);
      foreign.push_back(trial.foreign);
      idle.push_back(trial.idle);
      pages = trial.pages;
      bandwidths_.push_back(trial.bandwidth);
      if (peer_ == nullptr) continue;
      if (options_.quiet > 0) wait_for_quiet(options_.quiet, 60);
      const Peer::Steps theirs = peer_->decode(branches, options_.output_length);
      peer_steps.push_back(mean(theirs.ms));
      speedups.push_back(peer_steps.back() / ms);
      compared_tokens = std::min(theirs.tokens.size(), trial.tokens.size());
      equal_tokens = static_cast<std::size_t>(
          std::mismatch(theirs.tokens.begin(),
                        theirs.tokens.begin() + static_cast<std::ptrdiff_t>(compared_tokens),
                        trial.tokens.begin())
              .first -
          theirs.tokens.begin());
    }
    report_.add(
        {"step", params, "ms", summarize(steps), {{"foreign_cores", median(foreign)}}, steps});
    report_.add("decode", params, "tok/s", rates, Better::kHigh);
    const double page_gb = static_cast<double>(info.kv_token_bytes) *
                           static_cast<double>(options_.common.engine.page_tokens) * 1e-9;
    const auto alone = static_cast<double>(
        pages_of(std::ssize(prompt_) + options_.own + options_.output_length + 1));
    report_.add_value("memory a branch", params, "GB", pages * page_gb,
                      {{"alone", alone * page_gb}, {"saved", 1 - pages / alone}});
    report_.add("bandwidth", params, "GB/s", gb_per_s, Better::kHigh);
    report_.add("bandwidth_share", params, "of read", shares, Better::kHigh);
    if (median(idle) > 0) report_.add("device_idle", params, "of step", idle);
    if (first_step_ms_ == 0) first_step_ms_ = median(steps);
    if (branches != options_.branches[0]) {
      report_.add_value("cost_of_branches", params, "x first", median(steps) / first_step_ms_);
    }
    if (peer_ == nullptr) return;
    report_.add_peer(peer_->name(), "step", params, "ms", peer_steps);
    report_.add_ratio("step_speedup", params, speedups, median(steps), median(peer_steps));
    report_.add_value("equal_greedy_tokens", params, "tokens", static_cast<double>(equal_tokens),
                      {{"of", compared_tokens}});
  }

  const DecodeOptions& options_;
  Clock clock_;
  Engine engine_;
  Session session_;
  ReadBandwidth bandwidth_;
  Report report_;
  std::unique_ptr<Peer> peer_;
  std::vector<Token> prompt_;
  Branch root_;
  std::vector<double> bandwidths_;
  double first_step_ms_ = 0;
  std::uint64_t seed_ = 1000;  // of branches' own tokens
};

}  // namespace

void add_decode(CLI::App& app) {
  auto options = std::make_shared<DecodeOptions>();
  CLI::App* command = app.add_subcommand("decode", "Decode steps of branches that share a prompt");
  options->common.add_to(*command);
  command->add_option("--branches", options->branches, "How many branches, one row each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--prompt-length,--prefix", options->prompt_lengths, "Shared tokens")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--own", options->own, "Tokens of each branch's own after the shared ones")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--output-length", options->output_length, "Steps a trial")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--trials", options->trials,
                   "Trials a row: fresh branches and so many steps each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->add_flag("--cpu-clock", options->cpu_clock,
                    "Time the thread's own work (--threads 1): others on the machine disturb less");
  command->add_option("--quiet", options->quiet,
                      "Wait, and repeat a trial, while others use more cores than this; 0: do not");
  command->add_option("--peer", options->peer,
                      "Another engine to measure in turns: a command (see peers/)");
  command->callback([options] { DecodeBench(*options).run(); });
}

}  // namespace dendrite::bench
