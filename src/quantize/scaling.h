#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "io/checkpoint.h"
#include "model/info.h"
#include "quant/packed_rows.h"
#include "quantize/activations.h"
#include "quantize/matrices.h"

namespace dendrite {

/// By tensors' names.
using Vectors = std::map<std::string, std::vector<float>, std::less<>>;

/// Factors of inputs, folded into the weights that make these inputs and those that read them. A
/// model computes the same with them, but for roundings.
struct Scalings {
  Vectors columns;     // what columns of a matrix are multiplied by
  Vectors rows;        // ... and rows are divided by
  Vectors vectors;     // what a norm or a bias becomes, in its own type
  Vectors importance;  // of columns, so multiplied: what errors in them count
  std::int64_t places = 0;
  std::int64_t scaled = 0;
  double error_ratio = 1;  // the mean over places; see Quantized
};

struct ScalingParams {
  RowPacking packing;
  std::stop_token cancel{};
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
};

/// For each place where inputs of `matrices` (those that will be packed) can be scaled: the factors
/// with which packing does the least to what is computed from `activations`, none where they do not
/// do less. Source: Lin et al. 2023, arXiv:2306.00978 (AWQ): a channel's factor is a power of its
/// mean activation, which power is tried out.
///
/// What packing does is the sum over weights of error^2 * mean(input^2), as if errors of a row were
/// independent, beside the same sum of the weights themselves.
Scalings find_scalings(const Checkpoint& files, const ModelInfo& info, const Matrices& matrices,
                       const Activations& activations, const ThreadPool& workers,
                       const ScalingParams& params);

}  // namespace dendrite
