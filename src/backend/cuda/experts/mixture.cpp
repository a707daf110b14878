#include "backend/cuda/experts/mixture.h"

#include <algorithm>
#include <string>

#include "backend/checks.h"
#include "backend/cuda/base/check.h"
#include "backend/cuda/products/packed_kernels.h"
#include "backend/cuda/products/packed_products.h"
#include "backend/cuda/products/weight.h"
#include "backend/packing.h"
#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

/// Kernels of one kind of matrices; null: those of bf16.
using Kind = const packed::ExpertKernels*;

/// The weight as kernels have it, of one of the kinds, to which its own is added.
DeviceMatrix matrix_of(const Weight* weight, const float* bias, std::vector<Kind>& kinds) {
  const auto& own = static_cast<const CudaWeight&>(*weight);
  if (own.packed() == nullptr && !own.is_bf16()) {
    throw Error("experts: weights are not bf16; on a GPU expected bf16, or packed ones");
  }
  const Kind kind = own.packed() == nullptr
                        ? nullptr
                        : &packed::prepare_expert_kernels(own.packed()->kernels->layout);
  auto found = std::ranges::find(kinds, kind);
  if (found == kinds.end()) found = kinds.insert(found, kind);
  return {own.data(), bias, static_cast<std::int32_t>(found - kinds.begin()),
          own.packed() == nullptr ? 0 : own.packed()->less};
}

/// Parts of one memory, each on 16 bytes.
class Parts {
 public:
  /// memory: null to learn how much is `used`.
  explicit Parts(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(std::int64_t count) {
    T* const begin = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 15) / 16 * 16;
    return begin;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::int64_t used_ = 0;
};

}  // namespace

std::unique_ptr<Weight> Mixtures::pack(const Device& device, std::span<const StoredMatrix> parts,
                                       const Numerics& numerics) {
  if (stacked_rows(parts) % (2 * PackedLayout::kRows) == 0) {
    if (auto packed = PackedProducts::pack(device, parts, numerics)) return packed;
  }
  return pack_weight(device, parts, numerics);
}

void Mixtures::add(std::span<const Expert> experts) {
  if (std::ssize(experts) > kMostExperts) {
    throw Error("experts: got " + std::to_string(experts.size()) +
                " of a layer; on a GPU expected at most " + std::to_string(kMostExperts));
  }
  Layer layer;
  std::vector<DeviceExpert> matrices;
  for (const Expert& expert : experts) {
    const auto& down = static_cast<const CudaWeight&>(*expert.down);
    matrices.push_back({matrix_of(expert.gate_up, expert.gate_up_bias, layer.gate_ups),
                        matrix_of(expert.down, expert.down_bias, layer.downs),
                        static_cast<std::int32_t>(down.cols()),
                        static_cast<std::int32_t>(down.ld())});
    layer.widest = std::max(layer.widest, down.cols());
    layer.act_ld = std::max(layer.act_ld, down.ld());
  }
  const auto bytes = static_cast<std::int64_t>(matrices.size() * sizeof(DeviceExpert));
  layer.matrices = Memory(bytes, "list of experts");
  check(cudaMemcpy(layer.matrices.data(), matrices.data(), static_cast<std::size_t>(bytes),
                   cudaMemcpyHostToDevice),
        "list of experts");
  layers_[experts.data()] = std::move(layer);
}

void Mixtures::run(const Experts& args, const Rows& x) {
  const auto found = layers_.find(args.experts.data());
  if (found == layers_.end())
    throw Error("experts: the list was not added; expected add_experts before");
  const Layer& layer = found->second;
  const Routing& routing = args.routing;
  if (routing.chosen > kMostChosen) {
    throw Error("experts: a row takes " + std::to_string(routing.chosen) +
                "; on a GPU expected at most " + std::to_string(kMostChosen));
  }
  if (routing.chosen_groups < routing.groups && routing.groups > kMostGroups) {
    throw Error("experts: a row chooses among " + std::to_string(routing.groups) +
                " groups; on a GPU expected at most " + std::to_string(kMostGroups) +
                ", on a CPU any number");
  }
  const std::int64_t rows = x.rows;
  const std::int64_t pairs = rows * routing.choices();
  ExpertsArguments launch;
  launch.experts = static_cast<std::int32_t>(routing.experts);
  launch.chosen = static_cast<std::int32_t>(routing.chosen);
  launch.score = routing.score;
  launch.normalised = routing.normalised;
  launch.sum_bias = routing.sum_bias;
  launch.scale = routing.scale;
  launch.groups = static_cast<std::int32_t>(routing.groups);
  launch.chosen_groups = static_cast<std::int32_t>(routing.chosen_groups);
  launch.shared = routing.shared;
  launch.correction = args.correction;
  launch.factors = args.factors;
  launch.activation = args.activation;
  launch.all_experts = static_cast<std::int32_t>(routing.all_experts());
  launch.of_row = static_cast<std::int32_t>(routing.choices());
  launch.matrices = reinterpret_cast<const DeviceExpert*>(layer.matrices.data());
  launch.logits = args.logits.data;
  launch.logits_stride = args.logits.stride;
  launch.rows = static_cast<std::int32_t>(rows);
  launch.dim = static_cast<std::int32_t>(args.out.cols);
  launch.x = x.data;
  launch.x_ld = static_cast<std::int32_t>(x.ld);
  launch.out = args.out.data;
  launch.out_stride = args.out.stride;
  launch.widest = static_cast<std::int32_t>(layer.widest);
  launch.act_ld = static_cast<std::int32_t>(layer.act_ld);

  const auto place = [&](Parts parts) {
    launch.choices = parts.take<ExpertChoice>(pairs);
    launch.pair_of = parts.take<std::int32_t>(pairs);
    launch.pair_row = parts.take<std::int32_t>(pairs);
    launch.items = parts.take<ExpertItem>(most_items(pairs, routing.all_experts()));
    launch.item_count = parts.take<std::int32_t>(1);
    return parts.used();
  };
  lists_.grow(place(Parts(nullptr)));
  place(Parts(lists_.data()));
  act_.grow(pairs * layer.act_ld * 2);
  launch.act = act_.data();
  if (routing.weighs_inputs) weighed_.grow(pairs * x.ld * 2);
  launch.weighed = weighed_.data();
  down_.grow(pairs * args.out.cols * 4);
  launch.down = down_.floats();

  launch_choose_experts(launch, device_.stream());
  if (routing.weighs_inputs) {
    launch_weigh_inputs(launch, device_.stream());
    launch.x = launch.weighed;
  }
  launch_products(layer, launch, args.squared_relu);
  launch_add_experts(launch, device_.stream());
  check_launch("experts", {{"rows", rows},
                           {"experts", routing.all_experts()},
                           {"dim", args.out.cols},
                           {"ffn", layer.widest}});
}

void Mixtures::launch_products(const Layer& layer, const ExpertsArguments& args,
                               bool has_no_gates) {
  const int multiprocessors = device_.multiprocessors();
  cudaStream_t stream = device_.stream();
  const auto packed_first =
      has_no_gates ? packed::launch_packed_ups : packed::launch_packed_gate_ups;
  const auto first = has_no_gates ? launch_ups : launch_gate_ups;
  for (std::size_t i = 0; i < layer.gate_ups.size(); ++i) {
    const auto kind = static_cast<int>(i);
    if (const Kind kernels = layer.gate_ups[i]) {
      packed_first(*kernels, args, kind, multiprocessors, stream);
    } else {
      first(args, kind, device_);
    }
  }
  for (std::size_t i = 0; i < layer.downs.size(); ++i) {
    const auto kind = static_cast<int>(i);
    if (const Kind kernels = layer.downs[i]) {
      launch_packed_downs(*kernels, args, kind, multiprocessors, stream);
    } else {
      launch_downs(args, kind, device_);
    }
  }
}

}  // namespace dendrite::cuda
