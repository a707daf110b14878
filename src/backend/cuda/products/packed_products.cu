#include "backend/cuda/products/packed_products.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/products/packed_weight.h"
#include "backend/cuda/products/packed_wide.cuh"
#include "backend/cuda/stores/rope.h"
#include "backend/packing.h"

namespace dendrite::cuda {
namespace {

/// Host rows are written and uploaded in pieces of about this size.
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

}  // namespace

namespace packed {
namespace {

static_assert(PackedLayout::kCopyColumns == kTileColumns);

template <class... Q>
std::span<const Kernels* const> kernels_of_all(Layouts<Q...>) {
  static const std::array all{&kernels_of<Q>()...};
  return all;
}

constexpr std::array kRows = {16, 32, 64};  // that kernels are made for

/// Which kernel, and how its work and its shared memory are cut.
struct Shape {
  Arguments args{};
  void (*kernel)(CUtensorMap, Arguments) = nullptr;
  int blocks = 0;
  int shared_bytes = 0;

  Shape(const FewRowsProduct& product, const Device& device, bool wide) {
    const CudaWeight& weight = *product.weight;
    const Kernels& kernels = *weight.packed()->kernels;
    const bool silu = product.epilogue == Epilogue::kSiluMul;
    args.outputs = static_cast<int>(silu ? weight.rows() / 2 : weight.rows());
    args.ffn = silu ? args.outputs : 0;
    args.epilogue = product.epilogue;
    args.rows = static_cast<int>(product.rows);
    args.bias = product.bias;
    args.out = product.out;
    args.out_stride = product.out_stride;
    args.paired =
        product.out_stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(product.out) % 8 == 0;
    args.weight = reinterpret_cast<const std::uint8_t*>(weight.data());
    args.tiles_k = tiles_of(weight.cols());
    args.less = weight.packed()->less;
    args.unit_heads = 1;
    args.unit_pairs = 8;
    args.pairs = silu || product.epilogue == Epilogue::kRope;
    if (product.epilogue == Epilogue::kRope) args.rope = *product.rope;

    const int twos = silu ? args.ffn / 8 : (static_cast<int>(weight.rows()) + 15) / 16;
    const int tile_bytes = kernels.layout.tile_bytes();
    if (wide) {
      args.tile_rows = kWideRows;
      args.as_one = true;
      cut_wide_units(twos, device.multiprocessors());
      kernel = kernels.wide;
      cut_memory(2 * tile_bytes, device.shared_bytes(), 2);
    } else {
      const auto variant = static_cast<std::size_t>(
          std::ranges::lower_bound(kRows, static_cast<int>(product.rows)) - kRows.begin());
      args.tile_rows = kRows[variant];
      const int tiles = cut_units(twos, device.multiprocessors());
      kernel = kernels.products[tiles - 1][variant];
      cut_memory(tiles * tile_bytes, device.shared_bytes(), 3);
      while (args.slots < 2 && args.warps > 2) {  // a device with less shared memory
        args.warps -= 2;
        blocks = blocks_of(device.multiprocessors());
        cut_memory(tiles * tile_bytes, device.shared_bytes(), 3);
      }
    }
  }

 private:
  /// A warp takes one tile at a time where that leaves warps for all, else two. Returns which.
  int cut_units(int twos, int multiprocessors) {
    const int each = (twos + multiprocessors - 1) / multiprocessors;
    if (2 * each <= kMostWarps) {
      args.warps = 2 * each;
      args.units = 2 * twos;
    } else {
      args.units = twos;
      int least = 0;
      for (int warps = kMostWarps; warps >= kMostWarps / 2; --warps) {
        const int cost = (each + warps - 1) / warps * warps;
        if (least != 0 && cost >= least) continue;
        least = cost;
        args.warps = warps;
      }
    }
    blocks = blocks_of(multiprocessors);
    return args.units == twos ? 2 : 1;
  }

  /// One warpgroup a block, or two where that takes no more rounds of them.
  void cut_wide_units(int twos, int multiprocessors) {
    const int groups = (twos + 3) / 4;
    const int each = (groups + multiprocessors - 1) / multiprocessors;
    args.warps = each > 1 ? kMostWideWarps : kMostWideWarps / 2;
    args.units = twos;
    blocks = blocks_of(multiprocessors);
  }

  int blocks_of(int multiprocessors) const {
    return std::min(multiprocessors, (args.units + args.warps - 1) / args.warps);
  }

  /// As many pieces of x as leave warps a ring of so many slots.
  void cut_memory(int slot_bytes, int most_bytes, int few_slots) {
    const int exchange = args.pairs && !args.as_one ? args.warps * args.tile_rows * 32 : 0;
    const int ring_slot = args.warps * slot_bytes;
    const int room = most_bytes - kBarrierBytes - exchange;
    const int piece = piece_bytes(args.tile_rows);
    args.pieces = std::clamp((room - few_slots * ring_slot) / piece, 2, kMostPieces);
    args.slots = std::min((room - args.pieces * piece) / ring_slot, kMostSlots);
    shared_bytes = most_bytes - room + args.pieces * piece + args.slots * ring_slot;
  }
};

}  // namespace

const Kernels* find_kernels(const PackedLayout& layout) {
  for (const Kernels* kernels : kernels_of_all(Compiled{})) {
    if (kernels->layout == layout) return kernels;
  }
  return nullptr;
}

}  // namespace packed

void PackedProducts::prepare(const Device& device, const packed::Kernels& kernels) {
  const auto allow = [&](void (*kernel)(CUtensorMap, packed::Arguments)) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               device.shared_bytes()),
          "matmul");
  };
  for (const auto& of_tiles : kernels.products) {
    for (const auto kernel : of_tiles) allow(kernel);
  }
  if (multiplies_wide(device)) allow(kernels.wide);
}

std::unique_ptr<CudaWeight> PackedProducts::pack(const Device& device,
                                                 std::span<const StoredMatrix> parts,
                                                 const Numerics& numerics) {
  if (numerics.product != ComputeFormat::kBF16 || numerics.weights != DType::kBF16 ||
      !runs_on(device))
    return nullptr;
  const std::optional<PackedAs> as = packed_as(parts);
  if (!as) return nullptr;

  const std::int64_t rows = stacked_rows(parts);
  const std::int64_t row_bytes = tiles_of(parts[0].cols) * as->layout.tile_bytes();
  Memory memory(tile_rows_of(rows) * row_bytes, "weights");
  const std::int64_t piece = std::max<std::int64_t>(1, kPieceBytes / row_bytes);
  std::vector<std::byte> staged;
  for (std::int64_t first = 0; first < tile_rows_of(rows); first += piece) {
    const std::int64_t count = std::min(piece, tile_rows_of(rows) - first);
    staged.assign(static_cast<std::size_t>(count * row_bytes), std::byte{0});
    if (!write_tiles(parts, *as, first, count, staged.data())) {
      throw_not_finite(parts, DType::kBF16);
    }
    check(cudaMemcpyAsync(memory.data() + first * row_bytes, staged.data(), staged.size(),
                          cudaMemcpyHostToDevice, device.stream()),
          "pack");
  }
  device.synchronize("pack");  // products read weights before earlier kernels are done
  // 128 - lowest is at most 136, which bf16 has.
  const auto less = static_cast<std::uint32_t>(0x4300 - as->lowest);
  const Packing packing{packed::find_kernels(as->layout), less | less << 16};
  prepare(device, *packing.kernels);
  return std::make_unique<CudaWeight>(rows, parts[0].cols, packing, std::move(memory));
}

bool PackedProducts::runs_on(const Device& device) {
  return device.architecture() >= 90 && describes_tiles();
}

bool PackedProducts::multiplies_wide(const Device& device) {
  return device.architecture() / 10 == 9;
}

bool PackedProducts::takes(const CudaWeight& weight) const {
  return fits_ && weight.packed() != nullptr;
}

bool PackedProducts::rotates(const RopeArguments& rope) {
  return rotates_in_product(rope) && rope.head_dim % 16 == 0;
}

void PackedProducts::launch(const FewRowsProduct& product) const {
  const bool wide = product.rows > kMostRows;
  const packed::Shape shape(product, device_, wide);
  const CUtensorMap x = describe_tiles(product.x, product.rows, product.weight->ld(),
                                       product.x_stride, shape.args.tile_rows, packed::kPieceTiles);
  launch_early(shape.kernel, dim3(static_cast<unsigned>(shape.blocks)),
               static_cast<unsigned>((shape.args.warps + 1) * 32),
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(), x, shape.args);
}

}  // namespace dendrite::cuda
