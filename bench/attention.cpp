#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "machine.h"
#include "options.h"
#include "step/attention_planner.h"

// attention: one layer's attention of branches that share a prefix, and of a prefill chunk. Each
// distinct page of K and V is read once in theory, so the floor is those bytes over the read
// bandwidth, measured before each case. Layers are taken in turns, so that no cache carries K and V
// over. On CUDA the time is that of enqueuing or of computing, whichever is longer.

namespace dendrite::bench {
namespace {

constexpr std::int64_t kPageTokens = 16;
constexpr std::int64_t kRotatedBytes = std::int64_t{400} << 20;
constexpr std::int64_t kMaxLayers = 64;

struct AttentionOptions : BackendOptions {
  std::vector<std::int64_t> head_dims = {128, 64};
  std::int64_t heads = 32;
  std::int64_t kv_heads = 8;
  std::string kv_dtype = "bf16";
  bool values_are_keys = false;
};

/// `branches` of `own` tokens each after `prefix` tokens that they share; the last `rows` tokens of
/// each are queries.
struct Case {
  std::string name;
  std::int64_t branches;
  std::int64_t prefix;
  std::int64_t own;
  std::int32_t rows;
};

const std::vector<Case> kCases = {
    {"1 x 512", 1, 496, 16, 1},        {"8 x 4096+64", 8, 4096, 64, 1},
    {"32 x 4096+64", 32, 4096, 64, 1}, {"128 x 4096+64", 128, 4096, 64, 1},
    {"16 x 8192+64", 16, 8192, 64, 1}, {"32 x 32768+64", 32, 32768, 64, 1},
    {"8 apart x 4096", 8, 0, 4096, 1}, {"prefill 2048 on 2048", 1, 2048, 2048, 2048},
};

class AttentionBench {
 public:
  explicit AttentionBench(const AttentionOptions& options)
      : options_(options), backend_(options.make()), report_("attention") {
    if (options.heads % options.kv_heads != 0) throw Error("--heads: not a multiple of --kv-heads");
    const DeviceInfo& info = backend_->info();
    report_.set_device("name", info.name);
    report_.set_device("kernels", info.kernels);
    report_.set_device("threads", info.threads);
    if (options.device == "cpu") host_bandwidth_.emplace(std::max(1, info.threads), Clock::kWall);
  }

  void run() {
    for (const std::int64_t head_dim : options_.head_dims) {
      for (const Case& c : kCases) measure(c, head_dim);
    }
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  double read_gb_per_s() {
    return host_bandwidth_ ? host_bandwidth_->gb_per_s() : backend_->read_gb_per_s();
  }

  static AttentionPlan plan_of(const Case& c) {
    std::vector<std::vector<std::int32_t>> tables(static_cast<std::size_t>(c.branches));
    std::vector<PlanSequence> sequences;
    auto page = static_cast<std::int32_t>(c.prefix / kPageTokens);
    for (auto& table : tables) {
      for (std::int32_t i = 0; i < c.prefix / kPageTokens; ++i) table.push_back(i);
      for (std::int64_t t = 0; t < c.own; t += kPageTokens) table.push_back(page++);
      sequences.push_back({table, c.prefix + c.own - c.rows, c.rows});
    }
    AttentionPlan plan;
    AttentionPlanner(kPageTokens).build(sequences, 0, plan);
    return plan;
  }

  std::unique_ptr<KvStore> store_of(std::int64_t pages, std::int64_t head_dim) {
    const bool fp8 = options_.kv_dtype == "fp8";
    KvShape shape{1,     options_.kv_heads, head_dim,
                  pages, kPageTokens,       fp8 ? KvFormat::kFP8 : KvFormat::kBF16};
    shape.values_are_keys = options_.values_are_keys;
    const std::int64_t layer_bytes = pages * shape.page_bytes();
    shape.layers = std::clamp<std::int64_t>(kRotatedBytes / layer_bytes, 2, kMaxLayers);
    auto store = backend_->make_kv_store(shape);
    std::vector<std::byte> bytes(static_cast<std::size_t>(shape.page_bytes()));
    for (std::size_t i = 0; fp8 && i < bytes.size(); ++i) {  // of magnitude 2^-3 to 2, too
      const bool scale = static_cast<std::int64_t>(i) % (head_dim + 1) == head_dim;
      bytes[i] = scale ? std::byte{120}
                       : static_cast<std::byte>((random_() & 1) << 7 | (0x58 + random_() % 0x20));
    }
    for (std::size_t i = 0; !fp8 && i < bytes.size(); i += 2) {
      const auto value =
          static_cast<std::uint16_t>((random_() & 1) << 15 | (0x3e00 + random_() % 0x0200));
      std::memcpy(&bytes[i], &value, 2);
    }
    for (std::int64_t page = 0; page < pages; ++page) {
      store->import_page(static_cast<std::int32_t>(page), bytes);
    }
    return store;
  }

  void measure(const Case& c, std::int64_t head_dim) {
    const AttentionPlan plan = plan_of(c);
    const std::int64_t pages = c.prefix / kPageTokens + c.branches * (c.own / kPageTokens);
    const auto store = store_of(pages, head_dim);
    const KvShape& shape = store->shape();
    const auto rows = std::ssize(plan.positions);
    const std::int64_t dim = options_.heads * head_dim;
    const std::int64_t qkv_dim = dim + 2 * options_.kv_heads * head_dim;
    const auto queries = backend_->make_buffer(rows * qkv_dim);
    const auto out = backend_->make_buffer(rows * dim);
    std::vector<float> host(static_cast<std::size_t>(rows * qkv_dim));
    std::normal_distribution<float> normal;
    for (float& value : host) value = normal(random_);
    backend_->upload(queries->data(), host);
    AttentionArgs args;
    args.out = Tensor{out->data(), rows, dim, dim};
    args.q = {queries->data(), rows, dim, qkv_dim};
    args.heads = options_.heads;
    args.scale = 1 / std::sqrt(static_cast<float>(head_dim));
    args.kv = store.get();
    args.plan = &plan;

    PassInputs inputs;  // no rows of a model's: just what holds the plan still
    inputs.kv = store.get();
    inputs.plans = std::span(&plan, 1);
    inputs.first_position = std::ranges::min(plan.positions);

    const double bandwidth = read_gb_per_s();
    std::vector<double> layer_us;
    for (int trial = -1; trial < options_.trials; ++trial) {  // one that is not counted
      const double begin = now_seconds();
      backend_->run_pass(inputs, [&](const PassInputs&) {
        for (args.layer = 0; args.layer < shape.layers; ++args.layer) backend_->attention(args);
      });
      backend_->download(std::span(host).first(1), out->data());
      const double us = (now_seconds() - begin) * 1e6 / static_cast<double>(shape.layers);
      if (trial >= 0) layer_us.push_back(us);
    }
    const double megabytes = static_cast<double>(pages * shape.page_bytes() / shape.layers) / 1e6;
    double flop = 0;
    for (const std::int64_t position : plan.positions) {
      flop += 4.0 * static_cast<double>((position + 1) * dim);
    }
    const double us = median(layer_us);
    const Json params{{"case", c.name}, {"head_dim", head_dim}};
    report_.add("a layer", params, "us", layer_us);
    report_.add_value("unique KV", params, "MB", megabytes);
    report_.add_value("share of read bandwidth", params, "", megabytes * 1e3 / us / bandwidth,
                      {{"read_gb_per_s", bandwidth}, {"tflop_per_s", flop / us / 1e6}});
  }

  AttentionOptions options_;
  std::unique_ptr<Backend> backend_;
  std::optional<ReadBandwidth> host_bandwidth_;
  Report report_;
  std::mt19937 random_{1};
};

}  // namespace

void add_attention(CLI::App& app) {
  auto options = std::make_shared<AttentionOptions>();
  CLI::App* command =
      app.add_subcommand("attention", "A layer's attention of branches that share a prefix");
  options->add_to(*command);
  command->add_option("--head-dim", options->head_dims, "Values a head")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--heads", options->heads, "Query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--kv-heads", options->kv_heads, "KV heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--kv-dtype", options->kv_dtype, "What K and V are kept as")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  command->add_flag("--values-are-keys", options->values_are_keys, "As of latents: V is K");
  command->callback([options] { AttentionBench(*options).run(); });
}

}  // namespace dendrite::bench
