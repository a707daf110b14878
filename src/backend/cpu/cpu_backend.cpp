#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/checks.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/delta_net.h"
#include "backend/cpu/dispatch.h"
#include "backend/cpu/expert_choice.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_move.h"
#include "backend/cpu/kv_store.h"
#include "backend/cpu/mamba.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/short_conv.h"
#include "backend/cpu/state_store.h"
#include "backend/cpu/weight.h"
#include "backend/host_cores.h"
#include "core/parallel.h"
#include "dendrite/error.h"

namespace dendrite {
namespace cpu {
namespace {

/// A region of threads costs 1-20 us; work that one thread does in less than this stays with it.
constexpr double kSerialMicroseconds = 12;
/// What one thread reads from memory or a far cache, and what it does to f32 values in row-wise
/// ops, for that decision only.
constexpr double kReadBytesPerMicrosecond = 20e3;
constexpr double kRowValuesPerMicrosecond = 1500;
/// Activations of a row block stay below this, so that they live in L2 while weights stream by.
constexpr std::int64_t kRowBlockBytes = std::int64_t{512} << 10;
/// The same where tiles multiply: machines that have them have an L2 of 2 MB.
constexpr std::int64_t kTiledBlockBytes = std::int64_t{1536} << 10;
/// Rows from which grouped weights are multiplied by tiles where there are some: so many pay for
/// widening a panel's codes.
constexpr std::int64_t kTiledGroupsFrom = 48;

constexpr Gating gating_of(Activation::Kind kind) {
  switch (kind) {
    case Activation::Kind::kSilu:
      return Gating::kSilu;
    case Activation::Kind::kGelu:
      return Gating::kGelu;
    case Activation::Kind::kClamped:
      return Gating::kClamped;
  }
  return Gating::kSilu;
}

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(std::int64_t count) : count_(count), memory_(count * 4) {}
  float* data() override { return reinterpret_cast<float*>(memory_.data()); }
  std::int64_t count() const override { return count_; }

 private:
  std::int64_t count_;
  Memory memory_;
};

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname system{};
  return uname(&system) == 0 ? system.machine : "cpu";
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Numerics numerics, int threads, const std::string& path)
      : numerics_(numerics),
        kernels_(select_kernels(path)),
        pool_(threads),
        packer_(numerics_, kernels_, pool_),
        attention_(kernels_, pool_),
        delta_nets_(kernels_, pool_),
        short_convs_(kernels_, pool_),
        mambas_(kernels_, pool_) {
    info_.kind = "cpu";
    info_.name = processor_name();
    info_.kernels = kernels_.name;
    info_.threads = threads;
    info_.numerics_key = std::string("cpu/") + numerics_of(kernels_) + "/" + key_of(numerics);
  }

  const DeviceInfo& info() const override { return info_; }
  Numerics numerics() const override { return numerics_; }

  DeviceMemory memory() const override { return host_memory(); }
  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override {
    check_count("make_buffer", count);
    return std::make_unique<CpuBuffer>(count);
  }
  void upload(float* device, std::span<const float> host) override {
    std::copy(host.begin(), host.end(), device);
  }
  void download(std::span<float> host, const float* device) override {
    std::copy_n(device, host.size(), host.begin());
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override {
    return std::make_unique<CpuKvStore>(shape);
  }
  std::unique_ptr<StateStore> make_state_store(const StateShape& shape) override {
    return std::make_unique<CpuStateStore>(shape);
  }
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    return packer_.pack(parts);
  }
  bool rounds_inputs(const StoredMatrix& matrix) const override {
    return packer_.rounds_inputs(matrix);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    return packer_.random(rows, cols, number, seed);
  }

  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    const auto& packed = static_cast<const CpuWeight&>(weight);
    const auto rows = static_cast<std::int64_t>(tokens.size());
    check_embed(out, tokens, packed);
    for_rows(rows, packed.cols() * 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        packed.read_row(tokens[static_cast<std::size_t>(row)], out.data + row * out.stride);
      }
    });
  }

  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    check_shape("rms_norm", "out", out, x.rows, x.cols);
    const NormArgs args{out.data, out.stride, x.data, x.stride, weight, x.cols, eps};
    for_rows(x.rows, x.cols,
             [&](std::int64_t begin, std::int64_t end) { kernels_.rms_norm(args, begin, end); });
  }

  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override;
  void rope_and_store(const RopeStore& args) override;
  void move_kv(const KvMoves& args) override {
    check_move_kv(args);
    const auto begin = std::chrono::steady_clock::now();
    cpu::move_kv(args, pool_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    move_totals_.bytes += args.bytes();
    move_totals_.seconds += took.count();
  }
  void attention(const AttentionArgs& args) override;

  void delta_net(const DeltaNet& args) override {
    check_delta_net(args);
    delta_nets_.run(args);
  }
  void short_conv(const ShortConv& args) override {
    check_short_conv(args);
    short_convs_.run(args);
  }
  void mamba(const Mamba& args) override {
    check_mamba(args);
    mambas_.run(args);
  }
  void gate(const Rows& out, Tensor x, Tensor gate) override {
    check_gate(out, x, gate);
    const Tensor to = out.tensor();
    const GateArgs args{.out = to.data,
                        .out_stride = to.stride,
                        .x = x.data,
                        .x_stride = x.stride,
                        .gate = gate.data,
                        .gate_stride = gate.stride,
                        .cols = x.cols,
                        .of_gate = x.cols / gate.cols};
    for_rows(x.rows, x.cols * 2,
             [&](std::int64_t begin, std::int64_t end) { kernels_.gate(args, begin, end); });
  }

  bool has_experts() const override { return true; }
  void choose_experts(std::span<ExpertChoice> out, Tensor logits, const Routing& routing,
                      const float* correction, const float* factors) override {
    check_choose_experts(out, logits, routing);
    const std::int64_t stride = routing.logits();
    route_weights_.resize(static_cast<std::size_t>(logits.rows * stride));
    const RouteArgs args{.out = route_weights_.data(),
                         .out_stride = stride,
                         .logits = logits.data,
                         .stride = logits.stride,
                         .experts = routing.experts,
                         .sigmoid = routing.score == RouterScore::kSigmoid,
                         .gate = routing.shared == SharedExpert::kGated};
    for_rows(logits.rows, 8 * stride, [&](std::int64_t begin, std::int64_t end) {
      kernels_.route(args, begin, end);
      for (std::int64_t row = begin; row < end; ++row) {
        cpu::choose_experts({args.out + row * stride, static_cast<std::size_t>(stride)}, routing,
                            correction, factors, out.data() + row * routing.choices());
      }
    });
  }
  void add_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows,
                std::span<const float> factors) override {
    check_add_rows(out, x, rows, factors);
    const AddRowsArgs args{.out = out.data,
                           .out_stride = out.stride,
                           .x = x.data,
                           .x_stride = x.stride,
                           .rows = rows.data(),
                           .factors = factors.data(),
                           .cols = x.cols};
    for_rows(x.rows, x.cols,
             [&](std::int64_t begin, std::int64_t end) { kernels_.add_rows(args, begin, end); });
  }

  void silu_mul(Tensor out, Tensor gate_up) override {
    check_shape("silu_mul", "gate_up", gate_up, out.rows, 2 * out.cols);
    run_activation(out, gate_up, {});
  }

  void activate(Tensor out, Tensor gate_up, const Activation& activation) override {
    check_activate(out, gate_up, activation);
    run_activation(out, gate_up, activation);
  }
  void squared_relu(Tensor x) override {
    check_squared_relu(x);
    const ScaleArgs args{.x = x.data, .stride = x.stride, .cols = x.cols};
    for_rows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      kernels_.squared_relu(args, begin, end);
    });
  }
  void scale(Tensor x, float factor, float cap) override {
    check_scale(x, factor, cap);
    const ScaleArgs args{x.data, x.stride, x.cols, factor, cap};
    for_rows(x.rows, x.cols,
             [&](std::int64_t begin, std::int64_t end) { kernels_.scale(args, begin, end); });
  }
  void scale_rows(Tensor x, const float* factors) override {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      const ScaleArgs args{x.data + row * x.stride, x.stride, x.cols, factors[row], 0};
      kernels_.scale(args, 0, 1);
    }
  }
  void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) override {
    check_shape("add_normed", "out", out, x.rows, x.cols);
    const AddNormedArgs args{out.data, out.stride, x.data, x.stride, weight, x.cols, eps, factor};
    for_rows(x.rows, x.cols * 2,
             [&](std::int64_t begin, std::int64_t end) { kernels_.add_normed(args, begin, end); });
  }

  void copy(Tensor out, Tensor x) override {
    check_shape("copy", "out", out, x.rows, x.cols);
    for (std::int64_t row = 0; row < x.rows; ++row) {
      std::copy_n(x.data + row * x.stride, x.cols, out.data + row * out.stride);
    }
  }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    check_gather(out, x, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(x.data + rows[i] * x.stride, x.cols,
                  out.data + static_cast<std::int64_t>(i) * out.stride);
    }
  }

 private:
  /// Runs fn over rows, on several threads when that pays.
  template <class Fn>
  void for_rows(std::int64_t rows, std::int64_t values_a_row, const Fn& fn) {
    if (rows <= 0) return;
    const double total = static_cast<double>(rows * values_a_row) / kRowValuesPerMicrosecond;
    if (pool_.threads() == 1 || rows == 1 || total < kSerialMicroseconds) return fn(0, rows);
    pool_.parallel_for(rows, 1, [&](std::int64_t begin, std::int64_t end) { fn(begin, end); });
  }

  void run_activation(Tensor out, Tensor gate_up, const Activation& activation) {
    const ActivateArgs args{.out = out.data,
                            .out_stride = out.stride,
                            .gate_up = gate_up.data,
                            .gate_up_stride = gate_up.stride,
                            .ffn = out.cols,
                            .kind = gating_of(activation.kind),
                            .limit = activation.limit,
                            .alpha = activation.alpha};
    for_rows(out.rows, out.cols * 2,
             [&](std::int64_t begin, std::int64_t end) { kernels_.activate(args, begin, end); });
  }
  Tensor ordered(Tensor x, const Panels& panels);
  void multiply(Tensor out, Tensor x, const Panels& panels, const float* bias, Store store);

  StepFormat format_of(KvFormat format) const {
    if (format == KvFormat::kF32) return StepFormat::kF32;
    const bool dot = kernels_.dot_bf16 && numerics_.product == ComputeFormat::kBF16;
    return dot ? StepFormat::kDotBF16 : StepFormat::kBF16;
  }

  Numerics numerics_;
  const Kernels& kernels_;
  ThreadPool pool_;
  Packer packer_;
  Attention attention_;
  DeltaNets delta_nets_;
  ShortConvs short_convs_;
  Mambas mambas_;
  DeviceInfo info_;
  Memory activations_;  // packed
  Memory ordered_;      // activations whose columns a weight has in another order
  std::vector<float> route_weights_;
};

void CpuBackend::matmul(Tensor out, Tensor x, const Weight& weight, const float* bias,
                        Store store) {
  check_matmul(out, x, weight);
  if (x.rows == 0) return;
  std::int64_t first = 0;
  for (const Panels& run : static_cast<const CpuWeight&>(weight).runs()) {
    multiply(out.columns(first, run.rows()), x, run, bias == nullptr ? nullptr : bias + first,
             store);
    first += run.rows();
  }
}

/// The columns of x in the order that the panels have theirs in.
Tensor CpuBackend::ordered(Tensor x, const Panels& panels) {
  const std::vector<std::int32_t>& order = panels.column_order();
  if (order.empty()) return x;
  ordered_.grow(x.rows * x.cols * 4);
  const Tensor out{reinterpret_cast<float*>(ordered_.data()), x.rows, x.cols, x.cols};
  for_rows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* const from = x.data + row * x.stride;
      float* to = out.data + row * out.stride;
      for (const std::int32_t k : order) *to++ = from[k];
    }
  });
  return out;
}

void CpuBackend::multiply(Tensor out, Tensor x, const Panels& panels, const float* bias,
                          Store store) {
  x = ordered(x, panels);
  const StepFormat format = panels.format();
  const bool groups = format == StepFormat::kGroups;
  const bool tiled = groups && kernels_.tile_rows > 1 && x.rows >= kTiledGroupsFrom &&
                     panels.groups().size == kUnit;
  const std::int64_t chunk_steps = groups ? kChunkUnits : kChunkSteps;
  const std::int64_t chunk_words = tiled    ? kTiledGroupedWords
                                   : groups ? kGroupedWords
                                            : kChunkSteps * info_of(format).words;
  const std::int64_t row_words = (panels.steps() + chunk_steps - 1) / chunk_steps * chunk_words;
  const std::int64_t tile_rows = tiled || format == StepFormat::kDotBF16 ? kernels_.tile_rows : 1;
  const auto fitting = [&](std::int64_t bytes) { return bytes / (row_words * 4); };
  const std::int64_t block_limit =
      tile_rows > 1
          ? std::clamp<std::int64_t>(fitting(kTiledBlockBytes) / 32 * 32, 128, kMaxTiledRows)
          : std::clamp<std::int64_t>(fitting(kRowBlockBytes) / 6 * 6, 24, kMaxRowBlock);
  const std::int64_t blocks = (x.rows + block_limit - 1) / block_limit;
  const auto whole_tiles = [&](std::int64_t rows) {
    return (rows + tile_rows - 1) / tile_rows * tile_rows;
  };
  const auto block_begin = [&](std::int64_t block) {
    return std::min(x.rows, whole_tiles(x.rows * block / blocks));
  };
  const std::int64_t packed_rows = whole_tiles(x.rows);
  if (activations_.size_bytes() < packed_rows * row_words * 4) {
    activations_ = Memory(packed_rows * row_words * 5);
  }
  auto* words = reinterpret_cast<std::uint32_t*>(activations_.data());

  const auto pack_rows = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = block_begin(block);
      const std::int64_t last = block_begin(block + 1);
      const std::int64_t from = std::max(begin, first);
      const std::int64_t to = std::min(end, last);
      if (from >= to) continue;
      kernels_.pack_rows(
          {format, x.data + first * x.stride, x.stride, x.cols, whole_tiles(last - first),
           words + first * row_words, panels.groups(), tiled},
          from - first, to - first);
    }
  };
  // Units of work: panels of each row block, block by block, so that a thread's run of panels is
  // one stream through the weights.
  const std::int64_t count = panels.count();
  const auto run_panels = [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t block = begin / count;
      const std::int64_t first = block_begin(block);
      const std::int64_t stop = std::min(end, (block + 1) * count);
      MatmulArgs args;
      args.format = format;
      args.weight = panels.data();
      args.rows_of_weight = panels.rows();
      args.steps = panels.steps();
      args.packed = words + first * row_words;
      args.block_rows = block_begin(block + 1) - first;
      args.packed_rows = whole_tiles(args.block_rows);
      args.out = out.data + first * out.stride;
      args.out_stride = out.stride;
      args.bias = bias;
      args.add = store == Store::kAdd;
      args.groups = panels.groups();
      args.tiled = tiled;
      kernels_.matmul(args, begin - block * count, stop - block * count);
      begin = stop;
    }
  };

  for_rows(x.rows, x.cols / 2, pack_rows);
  const double memory_time = static_cast<double>(panels.size_bytes()) / kReadBytesPerMicrosecond;
  const double arithmetic_time =
      2.0 * static_cast<double>(x.rows * panels.rows() * panels.cols()) / (kernels_.gflops * 1e3);
  if (pool_.threads() == 1 || std::max(memory_time, arithmetic_time) < kSerialMicroseconds) {
    run_panels(0, blocks * count);
  } else {
    pool_.parallel_for(blocks * count, 1, run_panels);
  }
}

void CpuBackend::rope_and_store(const RopeStore& args) {
  check_rope(args);
  const auto& store = static_cast<const CpuKvStore&>(*args.kv);
  std::vector<std::int64_t> extra;
  extra.reserve(2 * args.extra_stores.size());
  for (const ExtraStore& store_to : args.extra_stores) {
    extra.push_back(store_to.row);
    extra.push_back(store_to.slot);
  }
  RopeArgs rope{args};
  rope.qkv = args.qkv.data;
  rope.stride = args.qkv.stride;
  rope.slots = args.slots.data();
  rope.extra_rows_slots = extra.data();
  rope.extra_count = static_cast<std::int64_t>(args.extra_stores.size());
  rope.pages = store.layer_data(args.layer);
  rope.layout = store.layout();
  for_rows(args.qkv.rows, args.qkv.cols * 2, [&](std::int64_t begin, std::int64_t end) {
    kernels_.rope_and_store(rope, begin, end);
  });
}

void CpuBackend::attention(const AttentionArgs& args) {
  check_attention(args);
  attention_.run(args, format_of(args.kv->shape().format));
}

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(Numerics numerics, int threads,
                                          const std::string& kernels) {
  if (threads < 0 || threads > 1024) {
    throw Error("make_cpu_backend: threads is " + std::to_string(threads) +
                ", expected 0 (one a core) to 1024");
  }
  if (threads == 0) threads = usable_cores();
  return std::make_unique<cpu::CpuBackend>(numerics, threads, kernels);
}

}  // namespace dendrite
