// Micro-bench of the CPU backend's heavy ops: matmul, attention and recurrent layers, in GB/s,
// GFLOP/s and as shares of what the machine reads and computes at best.
//   ops_bench [matmul|attention|delta_net|mamba|rows|pack]... [--kernels PATH] [--threads N]
//             [--type bf16|f32|f16] [--weights q8_0|mxfp4|...] [--kv-dtype fp8]
//             [--reps N] [--shape NxK] [--rows M,M,...]
// Each repetition runs: read probe, arithmetic probe, kernel. Reported are medians, and the median
// of the ratio to the probes next to it: on a shared machine absolute numbers move, ratios hardly
// do.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/parallel.h"
#include "packed_weights.h"
#include "probes.h"
#include "quant/formats.h"

namespace dendrite::bench {
namespace {

/// Seconds: of this thread's CPU time when all work is done by one thread, so that other processes
/// disturb less; else of the clock on the wall.
double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Settings {
  std::string kernels;
  std::string weights;  // packed_weight_names(); else plain ones
  int threads = 1;
  Numerics numerics = Numerics::kBF16;
  int reps = 15;
  std::vector<std::int64_t> rows = {1, 2, 4, 6, 8, 12, 16, 32, 64, 512};
  std::int64_t n = 5632;
  std::int64_t k = 2048;
};

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        backend_(make_cpu_backend(settings.numerics, settings.threads, settings.kernels)),
        pool_(settings.threads),
        probe_memory_(backend_->make_buffer(std::int64_t{96} << 20)) {
    float* data = probe_memory_->data();
    const std::int64_t count = probe_memory_->count();
    for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i);
    std::printf("%s, kernels %s, %d thread(s), compute %s, K and V %s\n",
                backend_->info().name.c_str(), backend_->info().kernels.c_str(), settings.threads,
                name_of(settings.numerics).c_str(), name_of(settings.numerics.kv));
  }

  void matmul();
  void attention();
  void delta_net();
  void mamba();
  void rows();
  void pack();

 private:
  std::unique_ptr<Buffer> test_weights(std::int64_t count);
  template <class Op>
  void recurrence(Op net, const char* op, const char* shape, std::int64_t state, double flops,
                  void (Backend::*run)(const Op&));
  bool dot() const {
    const std::string& path = backend_->info().kernels;
    return settings_.numerics.product == ComputeFormat::kBF16 &&
           (path == "avx512_bf16" || path == "amx_bf16");
  }
  /// Bytes a second over a rotating 64 MB of 384 MB, which no cache holds.
  double read_rate() {
    const std::int64_t bytes = std::int64_t{64} << 20;
    probe_offset_ = (probe_offset_ + bytes) % (probe_memory_->count() * 4);
    const auto* data = reinterpret_cast<const std::byte*>(probe_memory_->data()) + probe_offset_;
    const std::int64_t part = bytes / settings_.threads / 512 * 512;
    const double start = now(settings_.threads);
    pool_.parallel_for(settings_.threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sink_ += read_probe(data + i * part, part);
    });
    return static_cast<double>(part * settings_.threads) / (now(settings_.threads) - start);
  }
  double arithmetic_rate() {
    const std::string path = backend_->info().kernels;
    const double start = now(settings_.threads);
    pool_.parallel_for(settings_.threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        sink_ += static_cast<std::uint64_t>(arithmetic_probe(path, dot()));
      }
    });
    return static_cast<double>(arithmetic_probe_flops(path, dot()) * settings_.threads) /
           (now(settings_.threads) - start);
  }

  struct Result {
    double seconds, of_read, of_peak, read, peak;
  };
  template <class Fn>
  Result measure(double bytes, double flops, const Fn& fn) {
    fn();
    std::vector<double> seconds, of_read, of_peak, reads, peaks;
    double read = read_rate();
    double peak = arithmetic_rate();
    for (int rep = 0; rep < settings_.reps; ++rep) {
      int runs = 0;
      const double start = now(settings_.threads);
      do {
        fn();
        ++runs;
      } while (now(settings_.threads) - start < 0.01);
      seconds.push_back((now(settings_.threads) - start) / runs);
      const double read_after = read_rate();
      const double peak_after = arithmetic_rate();
      reads.push_back((read + read_after) / 2);
      peaks.push_back((peak + peak_after) / 2);
      of_read.push_back(bytes / seconds.back() / reads.back());
      of_peak.push_back(flops / seconds.back() / peaks.back());
      read = read_after;
      peak = peak_after;
    }
    return {median(seconds), median(of_read), median(of_peak), median(reads), median(peaks)};
  }
  void print(const char* name, double bytes, double flops, const Result& r) const {
    std::printf("%-34s %9.1f us  %6.1f GB/s (%3.0f %% of %5.1f)  %7.1f GF/s (%3.0f %% of %6.1f)\n",
                name, r.seconds * 1e6, bytes / r.seconds / 1e9, r.of_read * 100, r.read / 1e9,
                flops / r.seconds / 1e9, r.of_peak * 100, r.peak / 1e9);
    std::fflush(stdout);
  }

  Settings settings_;
  std::unique_ptr<Backend> backend_;
  ThreadPool pool_;
  std::unique_ptr<Buffer> probe_memory_;
  std::int64_t probe_offset_ = 0;
  std::uint64_t sink_ = 0;
};

void Bench::matmul() {
  const std::int64_t n = settings_.n;
  const std::int64_t k = settings_.k;
  // Rotated, so that no cache holds the weights of the next call.
  std::vector<std::unique_ptr<Weight>> weights;
  std::int64_t total = 0;
  do {
    weights.push_back(
        settings_.weights.empty()
            ? backend_->random_weight(n, k, settings_.numerics.weights.value_or(DType::kBF16),
                                      weights.size())
            : random_packed_weight(*backend_, settings_.weights, n, k));
    total += weights.back()->size_bytes();
  } while (total < (std::int64_t{768} << 20));
  const std::int64_t most = *std::max_element(settings_.rows.begin(), settings_.rows.end());
  const auto x = backend_->make_buffer(most * k);
  const auto out = backend_->make_buffer(most * n);
  for (std::int64_t i = 0; i < most * k; ++i) x->data()[i] = std::sin(static_cast<float>(i));
  std::size_t next = 0;
  for (const std::int64_t rows : settings_.rows) {
    const double bytes = static_cast<double>(weights[0]->size_bytes());
    const double flops = 2.0 * static_cast<double>(rows * n * k);
    const auto result = measure(bytes, flops, [&] {
      backend_->matmul({out->data(), rows, n, n}, {x->data(), rows, k, k},
                       *weights[next++ % weights.size()], nullptr, Backend::Store::kOverwrite);
    });
    const std::string name =
        "matmul " + std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k);
    print(name.c_str(), bytes, flops, result);
  }
}

void Bench::attention() {
  struct Shape {
    std::int64_t rows, heads, kv_heads, head_dim, prefix;
    bool prefill;  // rows are consecutive positions at the end, else branches of the whole prefix
  };
  for (const Shape s : {Shape{16, 32, 4, 64, 8192, false}, Shape{16, 32, 8, 128, 8192, false},
                        Shape{1, 32, 4, 64, 8192, false}, Shape{16, 9, 3, 64, 512, false},
                        Shape{16, 4, 2, 64, 512, false}, Shape{1, 32, 32, 64, 2048, false},
                        Shape{128, 32, 4, 64, 1024, true}}) {
    const std::int64_t layers = 4;
    const KvFormat format = settings_.numerics.kv;
    const std::int64_t pages = s.prefix / 16;
    const auto store = backend_->make_kv_store({layers, s.kv_heads, s.head_dim, pages, 16, format});
    std::vector<float> values(static_cast<std::size_t>(16 * s.kv_heads * s.head_dim));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    for (std::int64_t page = 0; page < pages; ++page) {
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        store->write(static_cast<std::int32_t>(page), layer, 16, values, values);
      }
    }
    AttentionPlan plan;
    for (std::int64_t r = 0; r < s.rows; ++r) {
      plan.positions.push_back(s.prefill ? s.prefix - s.rows + r : s.prefix - 1);
    }
    for (std::int64_t page = 0; page < pages; ++page)
      plan.pages.push_back(static_cast<std::int32_t>(page));
    for (std::int64_t begin = 0; begin < s.prefix; begin = super_block_end(begin)) {
      const auto index = static_cast<std::int32_t>(plan.items.size());
      plan.super_blocks.push_back({index, index + 1});
      plan.items.push_back({begin, std::min(super_block_end(begin), s.prefix),
                            static_cast<std::int32_t>(begin / 16), 0,
                            static_cast<std::int32_t>(s.rows)});
    }
    const std::int64_t width = s.heads * s.head_dim;
    const auto q = backend_->make_buffer(s.rows * width);
    const auto out = backend_->make_buffer(s.rows * width);
    for (std::int64_t i = 0; i < s.rows * width; ++i)
      q->data()[i] = std::sin(static_cast<float>(i) * 0.7f);
    double pairs = 0;
    for (const std::int64_t position : plan.positions) pairs += static_cast<double>(position + 1);
    const double flops = 4.0 * pairs * static_cast<double>(width);
    const double bytes = static_cast<double>(s.prefix * store->shape().token_bytes() / layers);
    std::int64_t layer = 0;
    const auto result = measure(bytes, flops, [&] {
      AttentionArgs args;
      args.out = Tensor{out->data(), s.rows, width, width};
      args.q = {q->data(), s.rows, width, width};
      args.heads = s.heads;
      args.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
      args.kv = store.get();
      args.layer = layer++ % layers;
      args.plan = &plan;
      backend_->attention(args);
    });
    char name[96];
    std::snprintf(name, sizeof name, "attention %ldx%ld/%ld d%ld over %ld%s", s.rows, s.heads,
                  s.kv_heads, s.head_dim, s.prefix, s.prefill ? " pre" : "");
    print(name, bytes, flops, result);
  }
}

void Bench::delta_net() {
  DeltaNet net;
  net.key_heads = net.value_heads = 16;
  net.key_dim = net.value_dim = 128;
  net.taps = 4;
  net.norm_eps = 1e-6f;
  const auto weights = test_weights(net.channels() * net.taps);
  net.conv = net.decay = net.dt_bias = net.norm = weights->data();
  const std::int64_t state = net.value_heads * net.key_dim * net.value_dim;
  recurrence(net, "delta_net", "16 x 128x128", state, 4, &Backend::delta_net);
  net.by_channel = true;
  recurrence(net, "delta_net", "16 x 128x128 KDA", state, 4, &Backend::delta_net);
}

void Bench::mamba() {
  Mamba net;
  net.heads = 64;
  net.head_dim = 64;
  net.groups = 1;
  net.state_dim = 128;
  net.taps = 4;
  net.norm_eps = 1e-5f;
  const auto weights = test_weights(net.channels() * net.taps);
  net.conv = net.conv_bias = net.decay = net.dt_bias = net.skip = net.norm = weights->data();
  recurrence(net, "mamba", "64 x 128x64", net.state_values(), 2, &Backend::mamba);
}

std::unique_ptr<Buffer> Bench::test_weights(std::int64_t count) {
  auto weights = backend_->make_buffer(count);
  for (std::int64_t i = 0; i < count; ++i)
    weights->data()[i] = std::abs(std::sin(static_cast<float>(i)));
  return weights;
}

/// Rows that go on in mid-chunk: of one path, and siblings. `flops`: of a row and value of a state.
template <class Op>
void Bench::recurrence(Op net, const char* op, const char* shape, std::int64_t state, double flops,
                       void (Backend::*run)(const Op&)) {
  const std::int64_t layers = 4;  // rotated, so that L2 does not hold the states of the next call
  const std::int64_t values = net.out_columns();
  const std::int64_t width = net.in_columns();
  const auto store =
      backend_->make_state_store({layers, net.anchor_values(), net.journal_values(), 2, 32});
  net.states = store.get();
  for (const auto& [rows, siblings] :
       {std::pair<std::int64_t, bool>{1, false}, {16, true}, {16, false}, {512, false}}) {
    const auto in = backend_->make_buffer(rows * width);
    const auto out = backend_->make_buffer(rows * values);
    for (std::int64_t i = 0; i < rows * width; ++i)
      in->data()[i] = std::sin(static_cast<float>(i) * 0.7f);
    RecurrencePlan plan;
    for (std::int32_t i = 0; i < 8; ++i) plan.known.push_back(i);
    const auto count = static_cast<std::int32_t>(rows);
    const std::int32_t step = siblings ? 1 : count;
    for (std::int32_t row = 0; row < count; row += step) {
      plan.runs.push_back({row, row + step, 24, 0, 8, 0, 0});
    }
    plan.anchors.assign(static_cast<std::size_t>(RecurrencePlan::chunks_ended(plan.runs[0])), -1);
    plan.journals.assign(static_cast<std::size_t>(rows), -1);
    for (std::int32_t i = 0; i < std::min(count, 16); ++i)
      plan.journals[static_cast<std::size_t>(count - 1 - i)] = 8 + i;
    net.in = {in->data(), rows, width, width};
    net.out = Tensor{out->data(), rows, values, values};
    net.plan = &plan;
    const double bytes = static_cast<double>(4 * (state + rows * (width + values)));
    const double folded = siblings ? 0 : static_cast<double>(plan.anchors.size() * 16);
    const double all =
        static_cast<double>(state) * (flops * static_cast<double>(rows) + 2 * folded);
    const std::string name = std::string(op) + " " + std::to_string(rows) +
                             (siblings ? " siblings" : "") + " x " + shape;
    print(name.c_str(), bytes, all, measure(bytes, all, [&] {
            net.layer = (net.layer + 1) % layers;
            (backend_.get()->*run)(net);
          }));
  }
}

void Bench::rows() {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{16}, std::int64_t{512}}) {
    const std::int64_t dim = 2048;
    const std::int64_t ffn = 5632;
    const auto x = backend_->make_buffer(rows * 2 * ffn);
    const auto out = backend_->make_buffer(rows * ffn);
    const auto weight = backend_->make_buffer(dim);
    const auto cos_sin = backend_->make_buffer(rows * 64);
    for (std::int64_t i = 0; i < rows * 64; ++i) cos_sin->data()[i] = i % 64 < 32 ? 0.6f : 0.8f;
    for (std::int64_t i = 0; i < rows * 2 * ffn; ++i)
      x->data()[i] = std::sin(static_cast<float>(i));
    const double norm_bytes = static_cast<double>(rows * dim * 8);
    print(("rms_norm " + std::to_string(rows) + " x 2048").c_str(), norm_bytes, 0,
          measure(norm_bytes, 0, [&] {
            backend_->rms_norm({out->data(), rows, dim, dim}, {x->data(), rows, dim, dim},
                               weight->data(), 1e-5f);
          }));
    const double silu_bytes = static_cast<double>(rows * ffn * 12);
    print(("silu_mul " + std::to_string(rows) + " x 5632").c_str(), silu_bytes, 0,
          measure(silu_bytes, 0, [&] {
            backend_->silu_mul({out->data(), rows, ffn, ffn}, {x->data(), rows, 2 * ffn, 2 * ffn});
          }));
    const auto store =
        backend_->make_kv_store({1, 4, 64, rows / 16 + 1, 16, settings_.numerics.kv});
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < rows; ++r) slots.push_back(r);
    RopeStore args;
    args.qkv = {x->data(), rows, 40 * 64, 40 * 64};
    args.heads = 32;
    args.kv_heads = 4;
    args.head_dim = 64;
    args.rotary_dim = 64;
    args.cos_sin = cos_sin->data();
    args.slots = slots;
    args.kv = store.get();
    const double rope_bytes = static_cast<double>(rows * (36 * 64 * 8 + 8 * 64 * 6));
    print(("rope_and_store " + std::to_string(rows) + " x 32/4 x 64").c_str(), rope_bytes, 0,
          measure(rope_bytes, 0, [&] { backend_->rope_and_store(args); }));
  }
}

void Bench::pack() {
  const std::int64_t n = settings_.n;
  const std::int64_t k = settings_.k;
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    std::vector<std::byte> stored(static_cast<std::size_t>(n * k * size_of(dtype)));
    const StoredMatrix host{.format = &plain_format(dtype),
                            .data = stored.data(),
                            .rows = n,
                            .cols = k,
                            .stride = k * size_of(dtype),
                            .name = "w",
                            .file = "f"};
    const double bytes = static_cast<double>(stored.size());
    print((std::string("pack ") + name_of(dtype)).c_str(), bytes, 0, measure(bytes, 0, [&] {
            backend_->pack({&host, 1});
          }));
  }
}

}  // namespace
}  // namespace dendrite::bench

int main(int argc, char** argv) {
  using namespace dendrite;
  bench::Settings settings;
  std::vector<std::string> sections;
  bool fp8 = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--kernels") {
      settings.kernels = value;
    } else if (arg == "--weights") {
      settings.weights = value;
    } else if (arg == "--threads") {
      settings.threads = std::atoi(value);
    } else if (arg == "--reps") {
      settings.reps = std::atoi(value);
    } else if (arg == "--type") {
      settings.numerics = std::strcmp(value, "f32") == 0   ? Numerics::kF32
                          : std::strcmp(value, "f16") == 0 ? Numerics::kF16
                                                           : Numerics::kBF16;
    } else if (arg == "--kv-dtype") {
      fp8 = std::strcmp(value, "fp8") == 0;
    } else if (arg == "--shape") {
      if (std::sscanf(value, "%ldx%ld", &settings.n, &settings.k) != 2) return 2;
    } else if (arg == "--rows") {
      settings.rows.clear();
      for (const char* p = value; *p != 0; p += *p == ',') {
        char* end = nullptr;
        settings.rows.push_back(std::strtol(p, &end, 10));
        if (end == p) return 2;
        p = end;
      }
    } else {
      sections.push_back(arg);
      continue;
    }
    ++i;
  }
  if (fp8) settings.numerics.kv = KvFormat::kFP8;
  if (sections.empty()) sections = {"matmul", "attention", "delta_net", "mamba", "rows", "pack"};
  try {
    bench::Bench run(settings);
    for (const std::string& section : sections) {
      if (section == "matmul") run.matmul();
      if (section == "attention") run.attention();
      if (section == "delta_net") run.delta_net();
      if (section == "mamba") run.mamba();
      if (section == "rows") run.rows();
      if (section == "pack") run.pack();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ops_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
