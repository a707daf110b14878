#include <algorithm>
#include <string>

#include "backend/backend.h"
#include "backend/checks.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/sampler.h"
#include "backend/cuda/staging.h"

namespace dendrite {
namespace cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(const Device& device, std::int64_t count)
      : count_(count), memory_(count * 4, "buffer") {
    if (count == 0) return;
    check(cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(count * 4), device.stream()),
          "make_buffer");
  }
  float* data() override { return reinterpret_cast<float*>(memory_.data()); }
  std::int64_t count() const override { return count_; }

 private:
  std::int64_t count_;
  Memory memory_;
};

const CudaWeight& own(const Weight& weight) {
  return static_cast<const CudaWeight&>(weight);
}
const CudaKvStore& own(const KvStore& store) {
  return static_cast<const CudaKvStore&>(store);
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(ComputeType type)
      : type_(type), staging_(device_), gemm_(device_), sampler_(device_) {
    info_.kind = "cuda";
    info_.name = device_.name();
    info_.kernels = "sm_" + std::to_string(device_.architecture());
    info_.memory_bytes = device_.memory_bytes();
    info_.numerics_key = "cuda/" + info_.kernels + "/" + name_of(type);
  }

  const DeviceInfo& info() const override { return info_; }
  ComputeType compute_type() const override { return type_; }

  double read_gb_per_s() override;
  LogitsSampler* sampler() override { return &sampler_; }

  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override {
    check_count("make_buffer", count);
    return std::make_unique<CudaBuffer>(device_, count);
  }
  void upload(float* device, std::span<const float> host) override {
    const float* staged = staging_.stage(host);
    check(cudaMemcpyAsync(device, staged, host.size_bytes(), cudaMemcpyDeviceToDevice,
                          device_.stream()),
          "upload");
  }
  void download(std::span<float> host, const float* device) override {
    check(cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost,
                          device_.stream()),
          "download");
    device_.synchronize("download");
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override {
    return std::make_unique<CudaKvStore>(device_, shape);
  }
  std::unique_ptr<Weight> pack(std::span<const HostMatrix> parts) override {
    return pack_weight(device_, parts, type_);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType dtype,
                                        std::uint64_t seed) override {
    if (type_ == ComputeType::kBF16) dtype = DType::kBF16;
    if (type_ == ComputeType::kF16) dtype = DType::kF16;
    return cuda::random_weight(device_, rows, cols, dtype, seed);
  }

  void begin_pass() override { staging_.begin_pass(); }
  void end_pass() override { staging_.end_pass(); }

  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    check_embed(out, tokens, weight);
    if (out.rows == 0) return;
    launch_embed(out, staging_.stage(tokens), own(weight), device_.stream());
    check(cudaGetLastError(), "embed");
  }
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    check_shape("rms_norm", "out", out, x.rows, x.cols);
    if (x.rows == 0) return;
    launch_rms_norm(out, x, weight, eps, device_.stream());
    check(cudaGetLastError(), "rms_norm");
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    check_matmul(out, x, weight);
    if (x.rows == 0) return;
    const bool add = store == Store::kAdd;
    if (type_ != ComputeType::kBF16) {
      launch_matmul_f32(out, x, own(weight), bias, add, device_.stream());
      check(cudaGetLastError(), "matmul");
      return;
    }
    const std::int64_t ld = own(weight).ld();
    grow(rounded_, x.rows * ld * 2);
    launch_round_rows(rounded_.data(), ld, x, device_.stream());
    check(cudaGetLastError(), "matmul");
    gemm_.run(out, rounded_.data(), own(weight), bias, add);
  }
  void rope_and_store(const RopeStore& args) override;
  void attention(const AttentionArgs& args) override;
  void silu_mul(Tensor out, Tensor gate_up) override {
    check_shape("silu_mul", "gate_up", gate_up, out.rows, 2 * out.cols);
    if (out.rows == 0) return;
    launch_silu_mul(out, gate_up, device_.stream());
    check(cudaGetLastError(), "silu_mul");
  }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    check_gather(out, x, rows);
    if (rows.empty()) return;
    launch_gather(out, x, staging_.stage(rows), device_.stream());
    check(cudaGetLastError(), "gather_rows");
  }

 private:
  void grow(Memory& memory, std::int64_t size_bytes) {
    if (memory.size_bytes() >= size_bytes) return;
    device_.synchronize("matmul");
    memory = Memory(size_bytes + size_bytes / 4, "activations");
  }

  ComputeType type_;
  Device device_;
  Staging staging_;
  Gemm gemm_;
  CudaSampler sampler_;
  DeviceInfo info_;
  Memory rounded_;  // activations in bf16
  Memory states_;   // partial results of attention
};

/// The best of a few passes over more memory than caches hold.
double CudaBackend::read_gb_per_s() {
  constexpr std::int64_t kBytes = std::int64_t{2} << 30;
  constexpr int kPasses = 5;
  constexpr const char* kOp = "read_gb_per_s";
  const Memory memory(kBytes, kOp);
  const Memory sink(4, kOp);
  check(cudaMemsetAsync(memory.data(), 1, static_cast<std::size_t>(kBytes), device_.stream()), kOp);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), kOp);
  check(cudaEventCreate(&end), kOp);
  float best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    check(cudaEventRecord(begin, device_.stream()), kOp);
    launch_read(memory.data(), kBytes, reinterpret_cast<std::uint32_t*>(sink.data()),
                device_.stream());
    check(cudaEventRecord(end, device_.stream()), kOp);
    device_.synchronize(kOp);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), kOp);
    best = std::max(best, static_cast<float>(kBytes) / (ms * 1e6f));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

void CudaBackend::rope_and_store(const RopeStore& args) {
  check_rope(args);
  if (args.qkv.rows == 0) return;
  RopeArguments rope;
  rope.qkv = args.qkv;
  rope.heads = args.heads;
  rope.kv_heads = args.kv_heads;
  rope.head_dim = args.head_dim;
  rope.rotary_dim = args.rotary_dim;
  rope.cos_sin = args.cos_sin;
  rope.q_norm = args.q_norm;
  rope.k_norm = args.k_norm;
  rope.norm_eps = args.norm_eps;
  rope.slots = staging_.stage(args.slots);
  rope.extra_stores = staging_.stage(args.extra_stores);
  rope.extra_count = static_cast<std::int64_t>(args.extra_stores.size());
  rope.kv = own(*args.kv).view(args.layer);
  launch_rope_and_store(rope, device_.stream());
  check(cudaGetLastError(), "rope_and_store");
}

void CudaBackend::attention(const AttentionArgs& args) {
  check_attention(args);
  const AttentionPlan& plan = *args.plan;
  AttentionArguments attention;
  attention.plan.rows = static_cast<std::int64_t>(plan.positions.size());
  attention.plan.super_block_count = static_cast<std::int64_t>(plan.super_blocks.size());
  if (attention.plan.rows == 0) return;
  attention.plan.positions = staging_.stage(std::span<const std::int64_t>(plan.positions));
  attention.plan.items = staging_.stage(std::span<const AttentionItem>(plan.items));
  attention.plan.super_blocks =
      staging_.stage(std::span<const AttentionPlan::SuperBlock>(plan.super_blocks));
  attention.plan.pages = staging_.stage(std::span<const std::int32_t>(plan.pages));
  attention.plan.window = plan.window;
  attention.out = args.out;
  attention.q = args.q;
  attention.heads = args.heads;
  attention.scale_log2e = args.scale * 1.44269504f;
  attention.kv = own(*args.kv).view(args.layer);
  grow(states_, 4 * attention_state_floats(attention.plan.super_block_count, attention.plan.rows,
                                           args.heads, attention.kv.head_dim));
  attention.states = reinterpret_cast<float*>(states_.data());
  launch_attention(attention, device_.stream());
  check(cudaGetLastError(), "attention");
}

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(ComputeType type) {
  return std::make_unique<cuda::CudaBackend>(type);
}

}  // namespace dendrite
