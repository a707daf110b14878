#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/parallel.h"
#include "dendrite/error.h"
#include "machine.h"
#include "model/angle_blocks.h"
#include "options.h"

// moves: K and V of many tokens to other pages and positions (Backend::move_kv), beside a plain
// copy of as many bytes right after it. Each byte is read and written once by both, so the copy is
// the floor. Pages lie in a random order; `offset`: where in its page the first token goes, others
// than 0 cut every page in two runs. On CUDA the time is that of the whole call and the device's
// work.

namespace dendrite::bench {
namespace {

constexpr std::int64_t kNewPosition = 1000;

struct MovesOptions : BackendOptions {
  std::vector<std::string> shapes = {"8b", "1b"};
  std::vector<std::int64_t> offsets = {0, 5};
  std::int64_t tokens = 32768;
  std::int64_t page_tokens = 16;
};

struct MovesShape {
  std::int64_t layers, kv_heads, head_dim;
};
MovesShape shape_named(const std::string& name) {
  if (name == "8b") return {32, 8, 128};
  if (name == "1b") return {16, 8, 64};
  return {2, 2, 64};  // tiny
}

/// Copies within a device's memory, the bytes of `half` of it to the other half.
class CopyProbe {
 public:
  CopyProbe(Backend& backend, std::int64_t bytes, int threads)
      : backend_(backend), memory_(backend.make_buffer(2 * count_of(bytes))) {
    const bool host = !backend.takes_pages_at_once();
    if (!host) return;
    pool_.emplace(threads);
    std::fill_n(memory_->data(), memory_->count(), 1.0f);  // so that there is memory to read
  }
  void copy() {
    const std::int64_t count = memory_->count() / 2;
    float* from = memory_->data();
    if (!pool_) {
      const std::int64_t rows = count / kCols;
      backend_.copy({from + count, rows, kCols, kCols}, {from, rows, kCols, kCols});
      return;
    }
    pool_->parallel_for(count, kCols, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(from + count + begin, from + begin, static_cast<std::size_t>(end - begin) * 4);
    });
  }
  /// Waits for what was enqueued.
  void finish() {
    float last = 0;
    backend_.download({&last, 1}, memory_->data());
  }

 private:
  static constexpr std::int64_t kCols = 4096;
  static std::int64_t count_of(std::int64_t bytes) {
    return (bytes / 4 + kCols - 1) / kCols * kCols;
  }

  Backend& backend_;
  std::unique_ptr<Buffer> memory_;
  std::optional<ThreadPool> pool_;  // of a CPU
};

class MovesBench {
 public:
  explicit MovesBench(const MovesOptions& options)
      : options_(options), backend_(options.make()), report_("moves") {
    const DeviceInfo& info = backend_->info();
    report_.set_device("name", info.name);
    report_.set_device("kernels", info.kernels);
    report_.set_device("threads", info.threads);
  }

  void run() {
    for (const std::string& shape : options_.shapes) measure(shape);
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  static constexpr std::int64_t kRotaryTheta = 500'000;

  void measure(const std::string& name) {
    const MovesShape s = shape_named(name);
    const std::int64_t pages = (options_.tokens + options_.page_tokens - 1) / options_.page_tokens;
    KvShape shape{s.layers,      s.kv_heads,           s.head_dim,
                  2 * pages + 1, options_.page_tokens, KvFormat::kBF16};
    const auto store = backend_->make_kv_store(shape);
    fill(*store, pages);
    RopeTable table(inv_freq({.theta = kRotaryTheta}, s.head_dim), 1.0f);
    AngleBlocks angles(table, *backend_);
    const std::int64_t bytes = options_.tokens * shape.token_bytes();
    CopyProbe probe(*backend_, bytes, std::max(1, backend_->info().threads));
    for (const std::int64_t offset : options_.offsets) {
      const std::vector<KvMove> runs = runs_of(pages, offset);
      KvMoves moves;
      moves.runs = runs;
      moves.rotary_dim = s.head_dim;
      moves.angles = angles.of(runs);
      moves.kv = store.get();
      const double gigabytes = 2 * static_cast<double>(bytes) / 1e9;
      std::vector<double> moved;
      std::vector<double> copied;
      std::vector<double> shares;
      for (int trial = -1; trial < options_.trials; ++trial) {  // one that is not counted
        const double begin = now_seconds();
        backend_->move_kv(moves);
        probe.finish();
        const double between = now_seconds();
        probe.copy();
        probe.finish();
        const double end = now_seconds();
        if (trial < 0) {
          check(*store, runs);
          continue;
        }
        moved.push_back(gigabytes / (between - begin));
        copied.push_back(gigabytes / (end - between));
        shares.push_back(moved.back() / copied.back());
      }
      const Json params{{"shape", name},
                        {"tokens", options_.tokens},
                        {"page_tokens", options_.page_tokens},
                        {"offset", offset},
                        {"runs", runs.size()}};
      report_.add("moves", params, "GB/s", moved, Better::kHigh);
      report_.add("copy", params, "GB/s", copied, Better::kHigh);
      report_.add_ratio("share of copy bandwidth", params, shares, median(moved), median(copied));
    }
  }

  /// Random bf16 of magnitude 2^-3 to 2 in the first pages.
  void fill(KvStore& store, std::int64_t pages) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(store.shape().page_bytes() / 2));
    for (std::uint16_t& value : values) {
      value = static_cast<std::uint16_t>((random_() & 1) << 15 | (0x3e00 + random_() % 0x0200));
    }
    for (std::int64_t page = 0; page < pages; ++page) {
      values[static_cast<std::size_t>(page) % values.size()] ^= 1;
      store.import_page(static_cast<std::int32_t>(page), std::as_bytes(std::span(values)));
    }
  }

  /// All tokens of the first `pages` pages, to the pages behind them.
  std::vector<KvMove> runs_of(std::int64_t pages, std::int64_t offset) {
    std::vector<std::int64_t> sources(static_cast<std::size_t>(pages));
    std::vector<std::int64_t> targets(static_cast<std::size_t>(pages + 1));
    std::iota(sources.begin(), sources.end(), 0);
    std::iota(targets.begin(), targets.end(), pages);
    std::shuffle(sources.begin(), sources.end(), random_);
    std::shuffle(targets.begin(), targets.end(), random_);
    const std::int64_t n = options_.page_tokens;
    const auto slot = [n](const std::vector<std::int64_t>& table, std::int64_t at) {
      return table[static_cast<std::size_t>(at / n)] * n + at % n;
    };
    std::vector<KvMove> runs;
    for (std::int64_t at = 0; at < options_.tokens; at += runs.back().count) {
      KvMove run;
      run.from_slot = slot(sources, at);
      run.to_slot = slot(targets, at + offset);
      run.count = static_cast<std::int32_t>(
          std::min({options_.tokens - at, n - at % n, n - (at + offset) % n}));
      run.old_position = at;
      run.new_position = at + kNewPosition;
      runs.push_back(run);
    }
    return runs;
  }

  /// V of the last token of the last layer. (What moves do is tests' to check.)
  void check(const KvStore& store, const std::vector<KvMove>& runs) const {
    const std::int64_t n = options_.page_tokens;
    const std::int64_t values = store.shape().kv_heads * store.shape().head_dim;
    const auto read = [&](std::int64_t slot) {
      std::vector<float> k(static_cast<std::size_t>(n * values));
      std::vector<float> v(k.size());
      store.read(static_cast<std::int32_t>(slot / n), store.shape().layers - 1,
                 static_cast<std::int32_t>(n), k, v);
      const auto begin = v.begin() + slot % n * values;
      return std::vector<float>(begin, begin + values);
    };
    const std::int64_t last = runs.back().count - 1;
    if (read(runs.back().from_slot + last) != read(runs.back().to_slot + last)) {
      throw Error("moves: a moved token has another V than before");
    }
  }

  MovesOptions options_;
  std::unique_ptr<Backend> backend_;
  Report report_;
  std::mt19937 random_{1};
};

}  // namespace

void add_kv_moves(CLI::App& app) {
  auto options = std::make_shared<MovesOptions>();
  CLI::App* command =
      app.add_subcommand("moves", "K and V of many tokens to other pages and positions");
  options->add_to(*command);
  command->add_option("--shapes", options->shapes, "Whose layers and heads")
      ->delimiter(',')
      ->check(CLI::IsMember({"8b", "1b", "tiny"}))
      ->capture_default_str();
  command->add_option("--offsets", options->offsets, "Where in its page the first token goes")
      ->delimiter(',')
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Moved")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--page-tokens", options->page_tokens, "Tokens a page")
      ->check(CLI::IsMember({8, 16, 32}))
      ->capture_default_str();
  command->callback([options] { MovesBench(*options).run(); });
}

}  // namespace dendrite::bench
