#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/base/device.h"
#include "backend/ops.h"

// The kernels of a mixture of experts (Backend::experts), in the order in which they run.
namespace dendrite::cuda {

/// What a pass has at most: experts of a layer with the shared one, and choices of a row.
inline constexpr std::int32_t kMostExperts = 1024;
inline constexpr std::int32_t kMostChosen = 32;
/// And groups of experts, where rows choose among groups first.
inline constexpr std::int32_t kMostGroups = 32;
/// Rows of an expert that are multiplied together, at most.
inline constexpr std::int32_t kItemRows = 64;

/// A matrix of an expert: bf16, rows of `ld` values (Weight's), or packed tiles.
struct DeviceMatrix {
  const void* data = nullptr;
  const float* bias = nullptr;  // of each row, or null
  std::int32_t kind = 0;        // of those that the layer has, each with kernels of its own
  std::uint32_t less = 0;       // of packed ones, see Packing
};

/// A gate_up [2 * ffn, dim], gates first, or without gates [ffn, dim]; and a down [dim, ffn].
struct DeviceExpert {
  DeviceMatrix gate_up{};
  DeviceMatrix down{};
  std::int32_t ffn = 0;
  std::int32_t down_ld = 0;
};

/// Some of the pairs of one expert.
struct ExpertItem {
  std::int32_t expert = 0;
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

/// A pair is a row and an expert that it takes. Pairs are in the order of experts, those of an
/// expert in the order of rows.
struct ExpertsArguments {
  std::int32_t experts = 0;  // that are chosen from
  std::int32_t chosen = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool normalised = false;
  float sum_bias = 0;
  float scale = 1;
  std::int32_t groups = 1;
  std::int32_t chosen_groups = 1;
  SharedExpert shared = SharedExpert::kNone;
  const float* correction = nullptr;  // [experts] or null
  const float* factors = nullptr;     // [experts] or null
  Activation activation{};
  bool ups = false;  // kernels of `down` compute `act` instead, see launch_ups()
  std::int32_t all_experts = 0;
  std::int32_t of_row = 0;                 // choices of a row
  const DeviceExpert* matrices = nullptr;  // device [all_experts]
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  std::int32_t rows = 0;
  std::int32_t dim = 0;
  const void* x = nullptr;  // bf16 [rows, x_ld]
  std::int32_t x_ld = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int32_t widest = 0;  // ffn of all experts
  std::int32_t act_ld = 0;

  // device scratch
  ExpertChoice* choices = nullptr;   // [rows][of_row]
  std::int32_t* pair_of = nullptr;   // [rows][of_row]
  std::int32_t* pair_row = nullptr;  // [pairs]
  ExpertItem* items = nullptr;       // [most_items(...)]
  std::int32_t* item_count = nullptr;
  void* weighed = nullptr;  // bf16 [pairs, x_ld], where inputs are weighed
  void* act = nullptr;      // bf16 [pairs, act_ld]
  float* down = nullptr;    // [pairs, dim]
};

/// Items of so many pairs, at most.
inline std::int64_t most_items(std::int64_t pairs, std::int64_t experts) {
  return (pairs + kItemRows - 1) / kItemRows + experts;
}

/// `choices`, see Backend::choose_experts; and of them pairs and items.
void launch_choose_experts(const ExpertsArguments& args, cudaStream_t stream);
/// `weighed`, each pair's row of `x` times its weight, which is 1 then. Pairs have these as rows.
void launch_weigh_inputs(const ExpertsArguments& args, cudaStream_t stream);
/// `act` of the pairs whose expert has a gate_up of bf16, which is so in the layer's `kind`.
void launch_gate_ups(const ExpertsArguments& args, int kind, const Device& device);
/// The same of experts without gates: max(up(x), 0)^2.
void launch_ups(const ExpertsArguments& args, int kind, const Device& device);
/// `down` of the pairs whose expert has such a one.
void launch_downs(const ExpertsArguments& args, int kind, const Device& device);
/// `out`: a row's pairs by ascending experts.
void launch_add_experts(const ExpertsArguments& args, cudaStream_t stream);

}  // namespace dendrite::cuda
