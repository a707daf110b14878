#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/checks.h"
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/base/pass_arrays.h"
#include "backend/cuda/base/passes.h"
#include "backend/cuda/base/read_speed.h"
#include "backend/cuda/base/scratch.h"
#include "backend/cuda/base/staging.h"
#include "backend/cuda/draws/sampler.h"
#include "backend/cuda/experts/mixture.h"
#include "backend/cuda/on_one_gpu.h"
#include "backend/cuda/padded_inputs.h"
#include "backend/cuda/pass_bytes.h"
#include "backend/cuda/products/head_products.h"
#include "backend/cuda/products/matmul_f32.h"
#include "backend/cuda/products/product_inputs.h"
#include "backend/cuda/products/products.h"
#include "backend/cuda/products/rows.h"
#include "backend/cuda/recurrence/recurrence.h"
#include "backend/cuda/stores/kv_move.h"
#include "backend/cuda/stores/move_clock.h"
#include "backend/cuda/stores/rope_staging.h"
#include "backend/cuda/stores/state_store.h"

namespace dendrite::cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(const Device& device, std::int64_t count)
      // (To whole 16 bytes, as FetchList copies.)
      : count_(count), memory_((count + 3) / 4 * 16, "buffer") {
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

/// Whatever calls CUDA opens the scope of its device first: threads come from the caller.
class CudaBackend final : public Backend {
 public:
  CudaBackend(Numerics numerics, const CudaOptions& options, int index)
      : numerics_(numerics),
        device_(index),
        graphs_(options.graphs),
        host_tables_(options.host_tables.value_or(device_.shares_memory())),
        staging_(device_, host_tables_),
        products_(device_, options.deterministic),
        timeline_(device_),
        move_clock_(device_),
        sampler_(device_, timeline_),
        passes_(device_, staging_, timeline_, host_tables_) {
    info_.kind = "cuda";
    info_.name = device_.name();
    if (device_.index() > 0) info_.name += " (cuda:" + std::to_string(device_.index()) + ")";
    info_.kernels = "sm_" + std::to_string(device_.architecture());
    info_.numerics_key = "cuda/" + info_.kernels + "/" + key_of(numerics);
    if (!options.deterministic) info_.numerics_key += "/fast";
    info_.numerics_key += "/cublasLt" + std::to_string(cublasLtGetVersion());
  }

  const Device& device() const { return device_; }
  std::int32_t* kept_draws() const { return sampler_.kept(); }
  const DeviceInfo& info() const override { return info_; }
  Numerics numerics() const override { return numerics_; }

  double read_gb_per_s() override {
    const DeviceScope here = device_.scope();
    return cuda::read_gb_per_s(device_);
  }
  LogitsSampler* sampler() override { return &sampler_; }
  void start_timing() override {
    const DeviceScope here = device_.scope();
    timeline_.start();
  }
  DeviceTime timing() const override { return timeline_.time(); }

  DeviceMemory memory() const override { return device_.memory(); }
  bool takes_pages_at_once() const override { return true; }
  std::int64_t pass_bytes(const PassSizes& sizes) const override {
    return cuda::pass_bytes(sizes, multiplies_bf16());
  }
  std::unique_ptr<Buffer> make_buffer(std::int64_t count) override {
    const DeviceScope here = device_.scope();
    check_count("make_buffer", count);
    return std::make_unique<CudaBuffer>(device_, count);
  }
  void upload(float* device, std::span<const float> host) override {
    const DeviceScope here = device_.scope();
    const float* staged = staging_.stage(host);
    check(cudaMemcpyAsync(device, staged, host.size_bytes(), cudaMemcpyDefault, device_.stream()),
          "upload");
  }
  void download(std::span<float> host, const float* device) override {
    const DeviceScope here = device_.scope();
    check(cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost,
                          device_.stream()),
          "download");
    device_.synchronize("download");
  }
  std::unique_ptr<KvStore> make_kv_store(const KvShape& shape) override {
    const DeviceScope here = device_.scope();
    return std::make_unique<CudaKvStore>(device_, shape);
  }
  std::unique_ptr<StateStore> make_state_store(const StateShape& shape) override {
    const DeviceScope here = device_.scope();
    return std::make_unique<CudaStateStore>(device_, shape);
  }
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    const DeviceScope here = device_.scope();
    if (auto scaled = E4m3Products::pack(device_, parts, numerics_)) {
      note_numerics("/e4m3_inputs");
      return scaled;
    }
    if (auto scaled = block_scaled_.pack(parts, numerics_)) {
      note_numerics("/block_scaled_inputs");
      return scaled;
    }
    info_.warnings = block_scaled_.warnings();
    if (auto packed = PackedProducts::pack(device_, parts, numerics_)) {
      products_.expect_packed(*packed);
      note_numerics("/packed_tiles");
      return packed;
    }
    return pack_weight(device_, parts, numerics_);
  }
  bool rounds_inputs(const StoredMatrix& matrix) const override {
    return E4m3Products::takes(device_, matrix, numerics_) ||
           block_scaled_.takes(matrix, numerics_);
  }
  std::unique_ptr<Weight> random_weight(std::int64_t rows, std::int64_t cols, DType number,
                                        std::uint64_t seed) override {
    const DeviceScope here = device_.scope();
    return cuda::random_weight(device_, rows, cols, number, numerics_.product, seed);
  }

  void run_pass(const PassInputs& inputs, const PassOps& ops) override;
  std::vector<FirstPass> first_passes() const override { return padded_.first_passes(graphs_); }
  PassKind pass_kind(const KvShape& kv) const override;

  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    const DeviceScope here = device_.scope();
    check_embed(out, tokens, weight, sampler_.kept_draws());
    if (out.rows == 0) return;
    launch_embed(out, staging_.stage(tokens), sampler_.kept(), own(weight), device_.stream());
    check_launch("embed", {{"rows", out.rows}, {"cols", out.cols}});
  }
  static void declare_embed(const PassInputs& inputs, PassArrays& arrays) {
    arrays.stage(inputs.tokens);
  }
  void rms_norm(Tensor out, Tensor x, const float* weight, float eps) override {
    const DeviceScope here = device_.scope();
    check_shape("rms_norm", "out", out, x.rows, x.cols);
    if (x.rows == 0) return;
    launch_rms_norm(out, x, weight, eps, device_.stream());
    check_launch("rms_norm", {{"rows", x.rows}, {"cols", x.cols}});
  }
  void matmul(Tensor out, Tensor x, const Weight& weight, const float* bias, Store store) override {
    const DeviceScope here = device_.scope();
    check_matmul(out, x, weight);
    if (x.rows == 0) return;
    const bool add = store == Store::kAdd;
    if (multiplies_bf16()) {
      Product product;
      product.weight = &weight;
      product.bias = bias;
      product.in = inputs_.round(x, own(weight));
      product.epilogue = add ? Epilogue::kAdd : Epilogue::kStore;
      product.out = out;
      products_.run(product, {.codes = inputs_.codes(own(weight), x.rows),
                              .blocks = inputs_.blocks(own(weight), x.rows)});
      return;
    }
    launch_matmul_f32(out, x, own(weight), bias, add, device_.stream());
    check_launch("matmul", {{"rows", x.rows}, {"n", weight.rows()}, {"k", weight.cols()}});
  }
  void rope_and_store(const RopeStore& args) override;
  void move_kv(const KvMoves& args) override {
    const DeviceScope here = device_.scope();
    check_move_kv(args);
    move_clock_.begin();
    cuda::move_kv(device_, staging_, args);
    move_clock_.end(args.bytes());
  }
  MoveTotals move_totals() override {
    const DeviceScope here = device_.scope();
    return move_clock_.totals();
  }
  void attention(const AttentionArgs& args) override;
  void delta_net(const DeltaNet& args) override {
    const DeviceScope here = device_.scope();
    recurrence_.delta_net(args);
  }
  void short_conv(const ShortConv& args) override {
    const DeviceScope here = device_.scope();
    recurrence_.short_conv(args);
  }
  void mamba(const Mamba& args) override {
    const DeviceScope here = device_.scope();
    recurrence_.mamba(args);
  }
  void squared_relu(Tensor x) override {
    const DeviceScope here = device_.scope();
    recurrence_.squared_relu(x);
  }
  void gate(const Rows& out, Tensor x, Tensor gate) override {
    const DeviceScope here = device_.scope();
    recurrence_.gate(out, x, gate);
  }
  bool has_experts() const override { return multiplies_bf16(); }
  std::unique_ptr<Weight> pack_expert(std::span<const StoredMatrix> parts) override {
    const DeviceScope here = device_.scope();
    return Mixtures::pack(device_, parts, numerics_);
  }
  void add_experts(std::span<const Expert> experts) override {
    const DeviceScope here = device_.scope();
    mixtures_.add(experts);
  }
  void experts(const Experts& args) override {
    const DeviceScope here = device_.scope();
    check_experts(args);
    if (args.x.rows == 0) return;
    const bool is_bf16 = args.x.format == RowFormat::kBF16;
    mixtures_.run(args, is_bf16
                            ? args.x
                            : inputs_.round(args.x.tensor(), own(*args.experts.front().gate_up)));
  }
  void silu_mul(Tensor out, Tensor gate_up) override {
    const DeviceScope here = device_.scope();
    check_shape("silu_mul", "gate_up", gate_up, out.rows, 2 * out.cols);
    if (out.rows == 0) return;
    launch_activate(out, gate_up, {}, device_.stream());
    check_launch("silu_mul", {{"rows", out.rows}, {"cols", out.cols}});
  }
  void activate(Tensor out, Tensor gate_up, const Activation& activation) override {
    const DeviceScope here = device_.scope();
    check_activate(out, gate_up, activation);
    if (out.rows == 0) return;
    launch_activate(out, gate_up, activation, device_.stream());
    check_launch("activate", {{"rows", out.rows}, {"cols", out.cols}});
  }
  void scale(Tensor x, float factor, float cap) override {
    const DeviceScope here = device_.scope();
    check_scale(x, factor, cap);
    if (x.rows == 0) return;
    launch_scale(x, factor, cap, device_.stream());
    check_launch("scale", {{"rows", x.rows}, {"cols", x.cols}});
  }
  void scale_rows(Tensor x, const float* factors) override {
    const DeviceScope here = device_.scope();
    check_shape("scale_rows", "x", x, x.rows, x.cols);
    if (x.rows == 0) return;
    launch_scale_rows(x, factors, device_.stream());
    check_launch("scale_rows", {{"rows", x.rows}, {"cols", x.cols}});
  }
  void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) override {
    const DeviceScope here = device_.scope();
    check_shape("add_normed", "out", out, x.rows, x.cols);
    if (x.rows == 0) return;
    launch_add_normed(out, x, weight, eps, factor, device_.stream());
    check_launch("add_normed", {{"rows", x.rows}, {"cols", x.cols}});
  }
  void head_products(const HeadProducts& args) override {
    const DeviceScope here = device_.scope();
    check_head_products(args);
    if (!multiplies_bf16() || !fits_head_products(args)) return Backend::head_products(args);
    if (args.x.rows == 0) return;
    launch_head_products(args, device_.stream());
    check_launch("head_products", {{"rows", args.x.rows}, {"heads", std::ssize(args.weights)}});
  }
  void copy_heads(const HeadCopies& args) override {
    const DeviceScope here = device_.scope();
    check_copy_heads(args);
    if (args.x.rows == 0) return;
    launch_copy_heads(args, device_.stream());
    check_launch("copy_heads", {{"rows", args.x.rows}, {"heads", args.heads}});
  }
  void copy(Tensor out, Tensor x) override {
    const DeviceScope here = device_.scope();
    check_shape("copy", "out", out, x.rows, x.cols);
    if (x.rows == 0) return;
    if (out.cols == out.stride && x.cols == x.stride) {
      check(cudaMemcpyAsync(out.data, x.data, static_cast<std::size_t>(x.rows * x.cols * 4),
                            cudaMemcpyDeviceToDevice, device_.stream()),
            "copy");
      return;
    }
    const auto pitch = [](const Tensor& tensor) {
      return static_cast<std::size_t>(tensor.stride * 4);
    };
    check(cudaMemcpy2DAsync(out.data, pitch(out), x.data, pitch(x),
                            static_cast<std::size_t>(x.cols * 4), static_cast<std::size_t>(x.rows),
                            cudaMemcpyDeviceToDevice, device_.stream()),
          "copy");
  }
  void gather_rows(Tensor out, Tensor x, std::span<const std::int32_t> rows) override {
    const DeviceScope here = device_.scope();
    check_gather(out, x, rows);
    if (rows.empty()) return;
    launch_gather(out, x, staging_.stage(rows), device_.stream());
    check_launch("gather_rows", {{"rows", out.rows}, {"cols", x.cols}});
  }
  /// Also for products with Product::gather.
  static void declare_gather(const PassInputs& inputs, PassArrays& arrays) {
    arrays.stage(inputs.logit_rows);
  }
  void product(const Product& args) override;

 private:
  /// In the numerics key: how some products are computed.
  void note_numerics(const char* how) {
    if (info_.numerics_key.find(how) == std::string::npos) info_.numerics_key += how;
  }
  bool multiplies_bf16() const { return numerics_.product == ComputeFormat::kBF16; }
  /// Whether attention of a pass runs on tensor cores, so that all of it may be recorded.
  bool takes_tree_attention(const PassInputs& inputs) const {
    return multiplies_bf16() && fits_tree_attention(inputs.kv->shape());
  }
  void run_directly(const PassInputs& inputs, const PassOps& ops);
  void run_recorded(const PassInputs& inputs, std::int64_t rows, std::int64_t logit_rows,
                    const PassOps& ops);
  bool takes_tree_attention(const AttentionArgs& args) const {
    return multiplies_bf16() && fits_tree_attention(args.out, args.q, args.kv->shape());
  }
  Numerics numerics_;
  Device device_;
  bool graphs_;
  bool host_tables_;
  Staging staging_;
  Products products_;
  BlockScaledProducts block_scaled_{device_};
  Timeline timeline_;
  MoveClock move_clock_;
  CudaSampler sampler_;
  Passes passes_;
  Attention attention_{device_, staging_, passes_};
  RopeStaging rope_{staging_};
  Recurrence recurrence_{device_, staging_, passes_};
  Mixtures mixtures_{device_, passes_};
  // CUDA then waits for every kernel, and an op that failed is told by name, which a graph can't
  // do.
  bool names_failed_op_ = std::getenv("CUDA_LAUNCH_BLOCKING") != nullptr;
  DeviceInfo info_;
  ProductInputs inputs_{device_, passes_};
  Scratch attended_{device_, passes_};              // attention in f32, before it is rounded
  PaddedInputs padded_{multiplies_tiles(device_)};  // of a recorded pass
  PassArrays arrays_;
};

void CudaBackend::run_pass(const PassInputs& inputs, const PassOps& ops) {
  const DeviceScope here = device_.scope();
  const std::int64_t rows = padded_.size_for(std::ssize(inputs.tokens));
  const std::int64_t logit_rows = padded_.size_for(std::ssize(inputs.logit_rows));
  const Attention::Pass pass(attention_, inputs);
  const Recurrence::Pass recurrence(recurrence_, inputs.recurrence);
  const bool tensor_cores = takes_tree_attention(inputs);
  const bool recorded = tensor_cores && graphs_ && !names_failed_op_ && rows > 0 &&
                        rows <= inputs.max_rows && logit_rows >= 0 &&
                        logit_rows <= inputs.max_logit_rows;
  ++pass_counts_.passes;
  if (!tensor_cores) ++pass_counts_.without_tensor_cores;
  if (!recorded) ++pass_counts_.without_graph;
  if (recorded) {
    run_recorded(inputs, rows, logit_rows, ops);
  } else {
    run_directly(inputs, ops);
  }
}

PassKind CudaBackend::pass_kind(const KvShape& kv) const {
  PassKind kind;
  if (!multiplies_bf16()) {
    kind.slow = "compute type " + name_of(numerics_);
  } else if (!fits_tree_attention(kv)) {
    kind.slow = "head_dim " + std::to_string(kv.head_dim);
    if (kv.wide.layers > 0)
      kind.slow += ", " + std::to_string(kv.wide.head_dim) + " in some layers";
  }
  kind.attention = kind.slow.empty() ? "tensor cores" : "simt: " + kind.slow;
  if (!kind.slow.empty()) {
    kind.graphs = "none: " + kind.slow;
  } else if (!graphs_) {
    kind.graphs = "none: devices that do not reach each other";
  } else if (names_failed_op_) {
    kind.graphs = "none: CUDA_LAUNCH_BLOCKING is set";
  } else {
    kind.graphs = "passes of up to " + std::to_string(kPaddedSizes.back()) + " rows";
  }
  return kind;
}

void CudaBackend::run_directly(const PassInputs& inputs, const PassOps& ops) {
  const Staging::Pass pass(staging_);
  timeline_.pass_begins();
  for (const PassTable& table : inputs.tables) upload(table.device, table.values);
  ops(inputs);
}

void CudaBackend::run_recorded(const PassInputs& inputs, std::int64_t rows, std::int64_t logit_rows,
                               const PassOps& ops) {
  const PassInputs padded = padded_.pad(inputs, rows, logit_rows);
  arrays_.clear();
  for (const PassTable& table : inputs.tables) arrays_.upload(table.device, table.values);
  declare_embed(padded, arrays_);
  rope_.declare(padded, arrays_);
  attention_.declare(padded, arrays_);
  declare_gather(padded, arrays_);
  Passes::Key key{inputs.model, own(inputs.kv->part(0)).view(0).data, inputs.kv->shape().pages,
                  rows, logit_rows};
  if (inputs.recurrence != nullptr) {
    recurrence_.declare(arrays_);
    key.recurrence = recurrence_.fixed();
  }
  passes_.run(key, arrays_.all(), [&] { ops(padded); });
}

void CudaBackend::rope_and_store(const RopeStore& args) {
  const DeviceScope here = device_.scope();
  const RopeArguments rope = rope_.arguments(args);
  if (args.qkv.rows == 0) return;
  launch_rope_and_store(rope, device_.stream());
  check_rope_launch(rope);
}

void CudaBackend::product(const Product& args) {
  const DeviceScope here = device_.scope();
  if (!multiplies_bf16()) return Backend::product(args);
  check_product(args);
  if (args.out.rows == 0) return;
  Product product = args;
  if (args.norm != nullptr && !Products::takes_norm(args)) {
    // In f32, for which the scratch has room, and rounded below.
    const Tensor normed{static_cast<float*>(args.in.data), args.in.rows, args.in.cols,
                        args.in.cols};
    norm_before(args, normed);
    product.norm = nullptr;
    product.gather = {};
    product.in = normed;
  }
  if (product.norm == nullptr && product.in.format == RowFormat::kF32) {
    product.in = inputs_.round(product.in.tensor(), own(*args.weight));
  }
  Products::Staged staged;
  staged.codes = inputs_.codes(own(*args.weight), args.out.rows);
  staged.blocks = inputs_.blocks(own(*args.weight), args.out.rows);
  if (!product.gather.empty()) staged.gather = staging_.stage(product.gather);
  RopeArguments rope;
  if (args.rope != nullptr) {
    rope = rope_.arguments(*args.rope);
    staged.rope = &rope;
  }
  const bool silu_apart = args.epilogue == Epilogue::kSiluMul && args.act.format == RowFormat::kF32;
  if (silu_apart) product.epilogue = Epilogue::kStore;
  products_.run(product, staged);
  if (silu_apart) silu_mul(args.act.tensor(), args.out);
}

void CudaBackend::attention(const AttentionArgs& args) {
  const DeviceScope here = device_.scope();
  check_attention(args);
  if (takes_tree_attention(args)) return attention_.run_on_tensor_cores(args);
  if (args.out.format == RowFormat::kF32) return attention_.run_plain(args, args.out.tensor());
  attended_.grow(args.out.rows * args.out.cols * 4);
  const Tensor out{attended_.floats(), args.out.rows, args.out.cols, args.out.cols};
  attention_.run_plain(args, out);
  launch_round_rows(args.out.data, args.out.ld, out, device_.stream());
  check_attention_launch(args);
}

}  // namespace

OnOneGpu make_on_one_gpu(Numerics numerics, const CudaOptions& options, int index) {
  const DeviceScope here(Device::checked(index));
  auto backend = std::make_unique<CudaBackend>(numerics, options, index);
  const Device* const device = &backend->device();
  std::int32_t* const kept_draws = backend->kept_draws();
  return {std::move(backend), device, kept_draws};
}

}  // namespace dendrite::cuda
