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

constexpr std::array kRows = {8, 16, 32};  // that kernels of few rows are made for

/// Of weights, on their way to a multiprocessor: as many as memory takes to be busy. Copies of x,
/// which are asked for once earlier kernels are done, come behind them: behind whole rings after
/// 4 us (on an H200).
constexpr int kBytesUnderWay = 30 << 10;

/// Which kernel, and how its work and its shared memory are cut.
struct Shape {
  Arguments args{};
  void (*kernel)(CUtensorMap, Arguments) = nullptr;
  dim3 blocks;  // of each band of tile_rows rows
  int threads = 0;
  int shared_bytes = 0;
  int piece_copies = kTileCopies;  // of x, each of 64 columns

  /// wide: kernels of packed_wide.cuh may take it
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
    args.weight = reinterpret_cast<const std::uint8_t*>(weight.data());
    args.tiles_k = tiles_of(weight.cols());
    args.less = weight.packed()->less;
    args.unit_heads = 1;
    args.unit_pairs = 8;
    if (product.epilogue == Epilogue::kRope) args.rope = *product.rope;
    args.units = silu ? args.ffn / 8 : (static_cast<int>(weight.rows()) + 15) / 16;
    // A warpgroup has 64 outputs: of few, many multiprocessors would have none.
    const bool fills = args.units >= 4 * device.multiprocessors();
    if (wide && args.rows > (fills ? kRows.back() : 2 * kRows.back())) {
      cut_wide(kernels, device);
    } else {
      cut_few(kernels, device);
    }
  }

 private:
  /// Of packed_wide.cuh: rows of a band, teams, warpgroups of each.
  struct WideCut {
    int tile_rows = 0;
    int teams = 0;
    int team = 0;
  };

  void cut_few(const Kernels& kernels, const Device& device) {
    const auto variant = std::min<std::size_t>(
        std::ranges::lower_bound(kRows, args.rows) - kRows.begin(), kRows.size() - 1);
    args.tile_rows = kRows[variant];
    const int bands = rounds(args.rows, args.tile_rows);
    const int of_band = std::max(1, device.multiprocessors() / bands);
    const int each = rounds(args.units, of_band);
    const int team_bytes = 16 * 4 * args.tile_rows;  // of sums
    int most = most_warps(kernels.layout, args.tile_rows / 8);
    do {
      int teams = std::min(each, most);
      for (int fewer = teams; fewer > most / 2; --fewer) {  // as many, in rounds that are full
        if (rounds(each, fewer) * fewer < rounds(each, teams) * teams) teams = fewer;
      }
      args.teams = teams;
      args.team = std::min({most / teams, args.tiles_k, kMostPieces});
      args.warps = teams * args.team;
      // A warp takes less time for each of two tiles, if it has several times two.
      const int piece_tiles =
          variant == 0 && args.tiles_k % 2 == 0 && args.tiles_k >= 4 * args.team ? 2 : 1;
      kernel = piece_tiles == 2 ? kernels.two_tiles : kernels.few[variant];
      cut_memory(piece_tiles, kernels.layout, teams * team_bytes, device.shared_bytes());
      most -= 2;
    } while (args.slots < 2 && most >= 2);
    cut_blocks(of_band, bands, 1);
    threads = args.warps * 32 + 32;
  }

  /// Of the least estimated time: a round takes as long as its teams' products, or reading x for
  /// it, or a warpgroup by itself (clocks a tile, measured on an H200).
  void cut_wide(const Kernels& kernels, const Device& device) {
    WideCut best;
    int least = 0;
    for (const int tile_rows : {64, 128}) {
      const int unit = tile_rows == 64 ? 600 : 1100;
      const int x = tile_rows == 64 ? 800 : 1600;
      const int alone = tile_rows == 64 ? 1300 : 1500;
      for (int groups = most_wide_warps(tile_rows) / 4; groups > 0; --groups) {
        for (int teams = 1; teams <= groups; ++teams) {
          const WideCut cut{tile_rows, teams, groups / teams};
          if (cut.teams * cut.team != groups || !try_wide(kernels.layout, cut, device)) continue;
          const int waves = rounds(static_cast<int>(blocks.x * blocks.y), device.multiprocessors());
          const int time = waves * args.rounds * std::max({cut.teams * unit, x, alone / cut.team});
          if (least > 0 && time >= least) continue;
          least = time;
          best = cut;
        }
      }
    }
    try_wide(kernels.layout, best, device);
    kernel = kernels.wide[best.tile_rows == 64 ? 0 : 1];
    piece_copies = kWidePieceTiles;
  }

  /// Returns false where there is too little shared memory, or k is too short.
  bool try_wide(const PackedLayout& layout, const WideCut& cut, const Device& device) {
    if (cut.team > args.tiles_k || (cut.tile_rows == 128 && cut.team > 1)) return false;
    args.tile_rows = cut.tile_rows;
    args.teams = cut.teams;
    args.team = cut.team;
    args.warps = cut.teams * cut.team * 4;
    threads = args.warps * 32 + kBringThreads;
    const int bands = rounds(args.rows, cut.tile_rows);
    cut_blocks(std::max(1, device.multiprocessors() / bands), bands, 4);
    const int ring_slot = args.warps * 2 * layout.tile_bytes();
    const int sums = cut.team > 1 ? cut.teams * 64 * 4 * cut.tile_rows : 0;
    const int of_team = cut.team > 1 ? cut.team * kTilePieces : 1;
    args.pieces = (cut.tile_rows == 64 ? 12 : 8) / of_team * of_team;
    for (; args.pieces >= 6; args.pieces -= of_team) {
      const int fixed =
          kBarrierBytes + kWideBarrierBytes + sums + args.pieces * wide_piece_bytes(cut.tile_rows);
      args.slots = std::min((device.shared_bytes() - fixed) / ring_slot, kMostWideSlots);
      shared_bytes = fixed + args.slots * ring_slot;
      if (args.slots >= 2) return true;
    }
    return false;
  }

  static int rounds(int work, int at_once) { return (work + at_once - 1) / at_once; }

  /// warps: that work as one
  void cut_blocks(int most, int bands, int warps) {
    const int of_band = std::min(most, rounds(args.units, args.teams * warps));
    args.rounds = rounds(args.units, of_band * args.teams * warps);
    blocks = dim3(static_cast<unsigned>(of_band), static_cast<unsigned>(bands));
  }

  /// piece_tiles: of a piece of x. sum_bytes: of sums that are handed on. As many pieces, of whole
  /// teams, as leave warps a ring of three slots, or of two larger ones.
  void cut_memory(int piece_tiles, const PackedLayout& layout, int sum_bytes, int most_bytes) {
    args.pieces_k = args.tiles_k / piece_tiles;
    piece_copies = piece_tiles * kTileCopies;
    const int ring_slot = args.warps * 2 * piece_tiles * layout.tile_bytes();
    const int room = most_bytes - kBarrierBytes - (args.team > 1 ? sum_bytes : 0);
    const int piece = piece_tiles * x_tile_bytes(args.tile_rows);
    args.pieces = std::clamp((room - (piece_tiles > 1 ? 2 : 3) * ring_slot) / piece,
                             std::max(2, args.team), kMostPieces);
    args.pieces -= args.pieces % args.team;
    args.slots = std::min((room - args.pieces * piece) / ring_slot, kMostSlots);
    args.under_way = std::min(args.slots, rounds(kBytesUnderWay, ring_slot));
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
  for (const auto kernel : kernels.few) allow(kernel);
  allow(kernels.two_tiles);
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

void PackedProducts::expect(const CudaWeight& weight) {
  const packed::Kernels* const kernels = weight.packed()->kernels;
  if (!multiplies_wide(device_) || known_.contains(kernels)) return;
  known_[kernels] = agree(weight);
}

bool PackedProducts::agree(const CudaWeight& weight) const {
  constexpr const char* kOp = "checking a kernel";
  constexpr std::int64_t kRows = 80;
  const auto x =
      random_weight(device_, kRows, weight.cols(), DType::kBF16, ComputeFormat::kBF16, 1);
  const std::int64_t bytes = kRows * weight.rows() * 4;
  const Memory out(bytes, kOp);
  FewRowsProduct product;
  product.weight = &weight;
  product.rows = kRows;
  product.x = x->data();
  product.x_stride = x->ld();
  product.epilogue = Epilogue::kStore;
  product.out = out.data();
  product.out_stride = weight.rows();
  const auto result_of = [&](bool wide) {
    launch(product, wide);
    check(cudaGetLastError(), kOp);
    std::vector<std::byte> result(static_cast<std::size_t>(bytes));
    check(cudaMemcpyAsync(result.data(), out.data(), result.size(), cudaMemcpyDeviceToHost,
                          device_.stream()),
          kOp);
    device_.synchronize(kOp);
    return result;
  };
  return result_of(false) == result_of(true);
}

bool PackedProducts::rotates(const RopeArguments& rope, std::int64_t rows) {
  constexpr std::int64_t kMostRotated = 32;
  return rows <= kMostRotated && rotates_in_product(rope) && rope.head_dim % 16 == 0;
}

void PackedProducts::launch(const FewRowsProduct& product) const {
  const auto known = known_.find(product.weight->packed()->kernels);
  launch(product, known != known_.end() && known->second);
}

void PackedProducts::launch(const FewRowsProduct& product, bool wide) const {
  const packed::Shape shape(product, device_, wide);
  const CUtensorMap x = describe_tiles(product.x, product.rows, product.weight->ld(),
                                       product.x_stride, shape.args.tile_rows, shape.piece_copies);
  launch_early(shape.kernel, shape.blocks, static_cast<unsigned>(shape.threads),
               static_cast<std::size_t>(shape.shared_bytes), device_.stream(), x, shape.args);
}

}  // namespace dendrite::cuda
