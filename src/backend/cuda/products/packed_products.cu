#include "backend/cuda/products/packed_products.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/products/packed_kernel.cuh"
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
  dim3 blocks;  // of each band of tile_rows rows
  int threads = 0;
  int shared_bytes = 0;

  Shape(const FewRowsProduct& product, const Device& device) {
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
    if (product.rows > FewRowsKernel::kMostRows) {
      cut_wide(kernels, twos, device);
      threads = args.warps * 32 + kBringThreads;
    } else {
      cut_few(kernels, twos, device);
      threads = args.warps * 32 + 32;
    }
  }

 private:
  /// A warp takes two tiles at a time, or one where two would leave multiprocessors without work.
  void cut_few(const Kernels& kernels, int twos, const Device& device) {
    const auto variant =
        static_cast<std::size_t>(std::ranges::lower_bound(kRows, args.rows) - kRows.begin());
    args.tile_rows = kRows[variant];
    // Of more rows than 32, two tiles at a time cannot be decoded early.
    const int few = device.multiprocessors() * (args.tile_rows > 32 ? kMostWarps / 2 : 1);
    const int tiles = !args.pairs && 2 * twos <= few ? 1 : 2;
    args.units = tiles == 1 ? 2 * twos : twos;
    kernel = kernels.products[tiles - 1][variant];
    const int most_team = !decodes_early(tiles, args.tile_rows / 16) ? 1
                          : args.tile_rows > 32                      ? 2
                                                                     : 4;
    const int each = (args.units + device.multiprocessors() - 1) / device.multiprocessors();
    const int slot_bytes = tiles * kernels.layout.tile_bytes();
    const int team_bytes = tiles * args.tile_rows * 32;  // of sums
    int most = kMostWarps;
    do {
      int teams = std::min(each, most);
      for (int fewer = teams; fewer > most / 2; --fewer) {  // as many, in rounds that are full
        if (rounds(each, fewer) * fewer < rounds(each, teams) * teams) teams = fewer;
      }
      cut_teams(teams, std::min(most_team, most / teams), 1);
      cut_memory(slot_bytes, teams * team_bytes, device.shared_bytes(), 3);
      most -= 2;
    } while (args.slots < 2 && most >= 2);
    cut_blocks(device.multiprocessors(), 1, 1);
  }

  /// Bands of 64 rows where that takes few enough blocks: each reads and decodes all weights.
  void cut_wide(const Kernels& kernels, int twos, const Device& device) {
    const int groups = rounds(twos, 4);
    const bool narrow = groups * rounds(args.rows, 64) <= device.multiprocessors();
    args.tile_rows = narrow ? 64 : 128;
    const int bands = rounds(args.rows, args.tile_rows);
    args.units = twos;
    kernel = kernels.wide[narrow ? 0 : 1];
    const int of_band = std::max(1, device.multiprocessors() / bands);
    const int each = rounds(groups, of_band);
    const int slot_bytes = 2 * kernels.layout.tile_bytes();
    const int team_bytes = 64 * 4 * args.tile_rows;
    for (int most = most_wide_warps(args.tile_rows) / 4; most > 0; --most) {
      const int teams = std::min(each, most);
      cut_teams(teams, narrow ? most / teams : 1, 4);
      cut_memory(slot_bytes, teams * team_bytes, device.shared_bytes(), 2);
      if (args.slots >= 2) break;
    }
    cut_blocks(of_band, bands, 4);
  }

  static int rounds(int work, int at_once) { return (work + at_once - 1) / at_once; }

  void cut_teams(int teams, int team, int warps) {
    args.teams = teams;
    args.team = std::min(team, args.tiles_k);
    args.warps = teams * args.team * warps;
  }
  void cut_blocks(int most, int bands, int warps) {
    const int of_band = std::min(most, rounds(args.units, args.teams * warps));
    args.rounds = rounds(args.units, of_band * args.teams * warps);
    blocks = dim3(static_cast<unsigned>(of_band), static_cast<unsigned>(bands));
  }

  /// sum_bytes: of sums that are handed on. As many pieces of x as leave warps a ring of so many
  /// slots.
  void cut_memory(int slot_bytes, int sum_bytes, int most_bytes, int few_slots) {
    const int ring_slot = args.warps * slot_bytes;
    const int room = most_bytes - kBarrierBytes - (args.team > 1 ? sum_bytes : 0);
    const int piece = piece_bytes(args.tile_rows);
    args.pieces =
        std::clamp((room - few_slots * ring_slot) / piece, std::max(2, args.team), kMostPieces);
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
  for (const auto kernel : kernels.wide) {
    if (multiplies_wide(device)) allow(kernel);
  }
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

bool PackedProducts::rotates(const RopeArguments& rope, std::int64_t rows) {
  constexpr std::int64_t kMostRotated = 32;
  return rows <= kMostRotated && rotates_in_product(rope) && rope.head_dim % 16 == 0;
}

void PackedProducts::launch(const FewRowsProduct& product) const {
  const packed::Shape shape(product, device_);
  const CUtensorMap x = describe_tiles(product.x, product.rows, product.weight->ld(),
                                       product.x_stride, shape.args.tile_rows, packed::kPieceTiles);
  launch_early(shape.kernel, shape.blocks, static_cast<unsigned>(shape.threads),
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(), x, shape.args);
}

}  // namespace dendrite::cuda
