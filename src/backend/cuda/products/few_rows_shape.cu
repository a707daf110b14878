#include "backend/cuda/products/few_rows_shape.h"

#include <algorithm>
#include <numeric>

namespace dendrite::cuda {
namespace few_rows {
namespace {

// As measured on an H200.
constexpr int kChunkBytes = 8 << 10;   // of x, with at most 16 tiles
constexpr int kMostStageX = 32 << 10;  // bytes of x that go with a stage of weights
/// Of weights, on their way to a multiprocessor while rings are filled for few rows. x, which is
/// asked for once earlier kernels are done, comes behind them: behind all of a ring 3 us later.
constexpr int kBytesUnderWay = 48 << 10;
constexpr int kBytesOfPairsUnderWay = 64 << 10;  // of blocks that work on two units at once
constexpr int kMostRowsBehind = 32;              // of those that do not

}  // namespace

Shape::Shape(const FewRowsProduct& product, const Kernels& kernels, int multiprocessors) {
  const CudaWeight& weight = *product.weight;
  const bool silu = product.epilogue == Epilogue::kSiluMul;
  args.outputs = static_cast<int>(silu ? weight.rows() / 2 : weight.rows());
  args.ffn = silu ? args.outputs : 0;
  args.epilogue = product.epilogue;
  if (product.epilogue == Epilogue::kRope) args.rope = *product.rope;
  args.rows = static_cast<int>(product.rows);
  args.bands = static_cast<int>((product.rows + kernels.band_rows - 1) / kernels.band_rows);
  args.tile_rows = args.bands > 1 ? static_cast<int>(kernels.band_rows) : (args.rows + 7) / 8 * 8;
  args.tiles = static_cast<int>(weight.cols() * kernels.value_bytes / kTileRowBytes);
  args.bias = product.bias;
  args.out = product.out;
  args.out_stride = product.out_stride;
  args.paired =
      product.out_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(product.out) % 8 == 0;
  const int sharing = args.rows <= kernels.sharing_rows ? 2 : 1;
  shared_bytes = kSharedBytes / sharing - (sharing - 1) * 1024;  // the system takes 1 KB a block
  choose_variant(static_cast<int>(weight.rows()), kernels, sharing > 1, sharing * multiprocessors);
  const auto of_outputs = [&](int (*what)(int), int otherwise) {
    return what != nullptr ? what(outputs) : otherwise;
  };
  if (const int tile_rows = of_outputs(kernels.tile_rows, 0); tile_rows > 0) {
    args.tile_rows = tile_rows;
  }
  int reserved = of_outputs(kernels.reserved, 0);
  if (reserved == 0 && args.rows <= kSixteenRows) {
    reserved = kernels.units * sixteen_rows_bytes(outputs);
  }
  cut(shared_bytes - kBarrierBytes - reserved, sharing > 1 ? 16 << 10 : 32 << 10, kernels,
      of_outputs(kernels.batch, 1));
  args.under_way = args.stages;
  const bool pairs = kernels.units > 1;
  if (pairs || args.rows <= kMostRowsBehind) {
    const int bytes = pairs ? kBytesOfPairsUnderWay : kBytesUnderWay / sharing;
    const int stage = kernels.units * args.stage_tiles * outputs * kTileRowBytes;
    args.under_way = std::min(args.stages, (bytes + stage - 1) / stage);
  }
}

CUtensorMap Shape::describe_weight(const CudaWeight& weight, const Kernels& kernels) const {
  // (As rows of so many pairs of bytes.)
  const std::int64_t cols = weight.cols() * kernels.value_bytes / 2;
  const std::int64_t stride = weight.ld() * kernels.value_bytes / 2;
  if (args.epilogue == Epilogue::kRope) {
    return describe_pairs(weight.data(), weight.rows() / args.rope.head_dim, args.rope.head_dim,
                          cols, stride, args.unit_pairs, args.unit_heads, args.stage_tiles);
  }
  const bool silu = args.ffn > 0;
  return describe_tiles(weight.data(), weight.rows(), cols, stride, silu ? outputs / 2 : outputs,
                        silu ? 1 : args.stage_tiles);
}

CUtensorMap Shape::describe_x(const FewRowsProduct& product, const Kernels& kernels) const {
  return describe_tiles(product.x, product.rows, product.weight->cols() * kernels.value_bytes / 2,
                        product.x_stride * kernels.value_bytes / 2, args.tile_rows,
                        args.chunk_tiles);
}

/// The widest block does the least; of equals, the one with the fewest units reads x least often.
void Shape::choose_variant(int rows, const Kernels& kernels, bool sharing, int most_blocks) {
  const auto at_once = [&](int units) { return (units + kernels.units - 1) / kernels.units; };
  double least = 0;
  for (std::size_t i = 0; i < kernels.outputs.size(); ++i) {
    const int candidate = kernels.outputs[i];
    if (args.ffn > 0 && candidate % 16 != 0) continue;
    if (sharing && candidate > kernels.most_sharing) continue;
    const int units = at_once(cut_units(candidate, rows)) * args.bands;
    const int rounds = (units + most_blocks - 1) / most_blocks;
    const double cost = rounds * (kernels.units * candidate + 0.25 * args.tile_rows);
    if (outputs != 0 && cost >= least) continue;
    variant = i;
    outputs = candidate;
    least = cost;
  }
  args.units = at_once(cut_units(outputs, rows));
  blocks = std::min(args.units * args.bands, most_blocks);
}

/// How many units there are of so many of the weight's rows.
int Shape::cut_units(int of_outputs, int rows) {
  if (args.epilogue != Epilogue::kRope) return (rows + of_outputs - 1) / of_outputs;
  const int head_eights = static_cast<int>(args.rope.head_dim) / 8;
  const int eights = std::gcd(of_outputs / 8, head_eights);
  args.unit_pairs = 4 * eights;
  args.unit_heads = of_outputs / 8 / eights;
  const int heads = rows / static_cast<int>(args.rope.head_dim);
  return (heads + args.unit_heads - 1) / args.unit_heads * (head_eights / eights);
}

void Shape::cut(int room, int stage_bytes, const Kernels& kernels, int batch) {
  const int tile_bytes = kernels.units * outputs * kTileRowBytes;
  const int x_bytes = args.tile_rows * kTileRowBytes;
  const int x_room = x_bytes + args.tile_rows * kernels.scale_bytes;
  if (kernels.scale_bytes > 0) room -= kSwizzleBytes;  // weights begin on whole ones behind scales
  args.stage_tiles = batch;
  while (args.stage_tiles < 8 && 2 * args.stage_tiles * tile_bytes <= stage_bytes &&
         2 * args.stage_tiles * x_bytes <= kMostStageX) {
    args.stage_tiles *= 2;
  }
  for (;; args.stage_tiles /= 2) {
    args.chunk_tiles = args.stage_tiles;
    while (args.chunk_tiles < 16 && 2 * args.chunk_tiles * x_bytes <= kChunkBytes) {
      args.chunk_tiles *= 2;
    }
    const int chunks = (args.tiles + args.chunk_tiles - 1) / args.chunk_tiles;
    const int as_deep = room / (tile_bytes + x_room) / args.chunk_tiles;  // as the weights' ring
    args.chunks = std::clamp(as_deep, 2, std::clamp(chunks, 2, kMostSlots));
    const int left = room - args.chunks * args.chunk_tiles * x_room;
    args.stages = std::min(left / (args.stage_tiles * tile_bytes), kMostSlots);
    if (args.stages >= 3 || args.stage_tiles == batch) return;
  }
}

}  // namespace few_rows

bool multiplies_tiles(const Device& device) {
  return device.architecture() / 10 == 9 && device.shared_bytes() >= few_rows::kSharedBytes &&
         describes_tiles();
}

}  // namespace dendrite::cuda
