// K and V of runs of tokens to other pages, K rotated from its old position to the new one (see
// Backend::move_kv), in all layers and heads by one launch; where there are many runs, by two: the
// device begins with the first while the host makes out the others.
//
// A block has one run and some (layer, head) items of it. A thread has two chunks of 16 bytes of a
// token, which hold pairs of K, or lie behind rotary_dim, and those at the same place of V. Their
// four cosines and sines a pair are read once, kept in registers, and serve all of its items; the
// loads of kUnroll items are under way at a time. Where 16 bytes don't fit the shape, chunks are
// single values.
// Floor: the bytes of K and V, read and written once, over the copy bandwidth. Beside them: 16
// bytes of angles a pair from L2 for 8 to 32 items, some 15 operations a pair.
// The kernel neither begins early nor lets the next one do so: attention reads old pages before it
// waits for the kernel before it (tree_producer_sm90.cuh), and moved pages count as old.
#include "backend/cuda/stores/kv_move.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/stores/kv_move_kernels.cuh"
#include "backend/cuda/stores/kv_store.h"

namespace dendrite::cuda {
namespace {

constexpr int kUnroll = 2;
constexpr std::size_t kFirstMoves = 512;  // of the first launch

/// Neighbouring values, as bits.
template <typename T, int kCount>
struct Chunk {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  using Raw = std::conditional_t<kBytes == 16, uint4,
                                 std::conditional_t<kBytes == 4, unsigned int, unsigned short>>;
  static_assert(sizeof(Raw) == kBytes);

  Raw raw;

  // Each byte is used once: not kept in caches.
  __device__ void load(const std::byte* from) { raw = __ldcs(reinterpret_cast<const Raw*>(from)); }
  __device__ void store(std::byte* to) const { __stcs(reinterpret_cast<Raw*>(to), raw); }
  __device__ void unpack(float (&values)[kCount]) const {
    T stored[kCount];
    memcpy(stored, &raw, kBytes);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = widen(stored[i]);
  }
  __device__ void pack(const float (&values)[kCount]) {
    T stored[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) stored[i] = narrow<T>(values[i]);
    memcpy(&raw, stored, kBytes);
  }
};

/// grid (runs, items / block_items)
template <typename T, int kCount>
__global__ void __launch_bounds__(kMoveThreads)
    move_kernel(const __grid_constant__ MoveArguments args) {
  using Values = Chunk<T, kCount>;
  const MoveRun run = args.runs[blockIdx.x];
  const std::uint32_t item_begin = blockIdx.y * args.block_items;
  const std::uint32_t item_end = min(item_begin + args.block_items, args.items);
  const int places = Place::count(args.head_dim, kCount, args.half);  // a token
  const int units = run.count * places;
  // Threads that are a copy of the run; few tokens leave room for several, with other items.
  const int width = min(units, kMoveThreads);
  const auto groups = static_cast<std::uint32_t>(kMoveThreads / width);
  const auto group = static_cast<std::uint32_t>(static_cast<int>(threadIdx.x) / width);
  if (group >= groups) return;
  for (int unit = static_cast<int>(threadIdx.x) % width; unit < units; unit += width) {
    const int token = unit / places;
    const Place place(unit % places, kCount, args.half);
    const bool two = place.second < args.head_dim;
    const bool has_values = args.value_bytes > 0;
    const bool turned = place.pairs && run.old_angles != nullptr;
    Rotation<kCount> rotation;
    if (turned) {
      const std::int64_t row = static_cast<std::int64_t>(token) * 2 * args.half + place.first;
      rotation.load(run.old_angles + row, run.new_angles + row, args.half);
    }
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t begin =
        (static_cast<std::int64_t>(token) * args.head_dim + place.first) * kSize;
    const std::int64_t second = (place.second - place.first) * kSize;
    const std::byte* from = args.data + run.from + begin;
    std::byte* to = args.data + run.to + begin;
    for (std::uint32_t item = item_begin + group; item < item_end; item += groups * kUnroll) {
      std::int64_t at[kUnroll];
      Values keys[kUnroll][2] = {};
      Values values[kUnroll][2] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const std::uint32_t mine = item + u * groups;
        const std::uint32_t layer = mine / args.kv_heads;
        at[u] = layer * args.layer_bytes + (mine - layer * args.kv_heads) * args.head_bytes;
        if (mine >= item_end) continue;
        const std::byte* source = from + at[u];
        keys[u][0].load(source);
        if (has_values) values[u][0].load(source + args.value_bytes);
        if (!two) continue;
        keys[u][1].load(source + second);
        if (has_values) values[u][1].load(source + args.value_bytes + second);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (item + u * groups >= item_end) continue;
        if (turned) {
          float a[kCount], b[kCount];
          keys[u][0].unpack(a);
          keys[u][1].unpack(b);
          rotation.turn(a, b, args.inverse_scale2);
          keys[u][0].pack(a);
          keys[u][1].pack(b);
        }
        std::byte* target = to + at[u];
        keys[u][0].store(target);
        if (has_values) values[u][0].store(target + args.value_bytes);
        if (!two) continue;
        keys[u][1].store(target + second);
        if (has_values) values[u][1].store(target + args.value_bytes + second);
      }
    }
  }
}

MoveKernel kernel_of(KvFormat format, const MoveArguments& args) {
  if (format == KvFormat::kFP8) return code_move_kernel(args);
  // A guarded store's bytes around pages are whole chunks, too.
  const bool bf16_pages = format == KvFormat::kBF16;
  const bool whole = fits_chunks(args, bf16_pages ? 8 : 4);
  return bf16_pages ? (whole ? move_kernel<bf16, 8> : move_kernel<bf16, 1>)
                    : (whole ? move_kernel<float, 4> : move_kernel<float, 1>);
}

const float* angles_at(const KvMoves& args, std::int64_t position) {
  return args.angles[static_cast<std::size_t>(position / KvMoves::kAnglePositions)] +
         position % KvMoves::kAnglePositions * args.rotary_dim;
}

/// How many of the positions from this one on are in one block of angles.
std::int64_t left_in_block(std::int64_t position) {
  return KvMoves::kAnglePositions - position % KvMoves::kAnglePositions;
}

/// Makes runs of KvMoves.
class RunMaker {
 public:
  RunMaker(const KvMoves& args, const KvView& view)
      : args_(args),
        token_bytes_(view.head_dim * size_of(view.format)),
        page_stride_(view.page_stride),
        scales_offset_(view.scales_offset),
        page_shift_(std::countr_zero(static_cast<std::uint64_t>(view.page_tokens))) {}

  void append(const KvMove& move, std::vector<MoveRun>& runs) const {
    const bool turned = args_.rotary_dim > 0 && move.old_position != move.new_position;
    for (std::int64_t at = 0; at < move.count;) {
      const std::int64_t old_position = move.old_position + at;
      const std::int64_t new_position = move.new_position + at;
      std::int64_t count = move.count - at;
      MoveRun run{};
      if (turned) {
        count = std::min({count, left_in_block(old_position), left_in_block(new_position)});
        run.old_angles = angles_at(args_, old_position);
        run.new_angles = angles_at(args_, new_position);
      }
      run.from = place(move.from_slot + at, token_bytes_);
      run.to = place(move.to_slot + at, token_bytes_);
      run.from_scale = scales_offset_ + place(move.from_slot + at, 1);
      run.to_scale = scales_offset_ + place(move.to_slot + at, 1);
      run.count = static_cast<std::int32_t>(count);
      runs.push_back(run);
      at += count;
    }
  }

 private:
  /// By shifts: there are thousands of runs, of which divisions would be the dearest part.
  std::int64_t place(std::int64_t slot, std::int64_t token_bytes) const {
    const std::int64_t page = slot >> page_shift_;
    return page * page_stride_ + (slot - (page << page_shift_)) * token_bytes;
  }

  const KvMoves& args_;
  std::int64_t token_bytes_;
  std::int64_t page_stride_;
  std::int64_t scales_offset_;
  int page_shift_;
};

/// As many items a block as pay for its angles, but all multiprocessors busy.
std::int64_t items_of_block(const Device& device, std::int64_t runs, std::int64_t items) {
  const std::int64_t blocks_wanted = device.multiprocessors() * std::int64_t{16};
  return std::clamp<std::int64_t>(runs * items / blocks_wanted, 4, 32);
}

}  // namespace

void move_kv(const Device& device, Staging& staging, const KvMoves& args) {
  if (args.runs.empty()) return;
  args.kv->flush_copies();
  const KvShape& shape = args.kv->shape();
  const auto& store = static_cast<const CudaKvStore&>(*args.kv);
  const KvView view = store.view(0);

  MoveArguments move{};
  move.data = view.data;
  move.layer_bytes = shape.layers > 1 ? store.view(1).data - view.data : 0;
  const std::int64_t token_bytes = view.head_dim * size_of(view.format);
  move.value_bytes = view.value_vectors * token_bytes;
  move.head_bytes = view.head_vectors * token_bytes;
  move.head_vectors = view.head_vectors;
  move.value_vectors = view.value_vectors;
  move.head_dim = static_cast<std::int32_t>(view.head_dim);
  move.half = static_cast<std::int32_t>(args.rotary_dim / 2);
  move.kv_heads = static_cast<std::uint32_t>(view.kv_heads);
  move.items = static_cast<std::uint32_t>(shape.layers * view.kv_heads);
  move.block_items = static_cast<std::uint32_t>(
      items_of_block(device, static_cast<std::int64_t>(args.runs.size()), move.items));
  move.inverse_scale2 = args.inverse_scale2;

  const MoveKernel kernel = kernel_of(view.format, move);
  const unsigned groups = (move.items + move.block_items - 1) / move.block_items;
  const RunMaker maker(args, view);
  std::vector<MoveRun> runs;
  runs.reserve(args.runs.size() + args.runs.size() / 8);
  std::size_t next = 0;
  for (const std::size_t end : {std::min(kFirstMoves, args.runs.size()), args.runs.size()}) {
    const std::size_t begin = runs.size();
    for (; next < end; ++next) maker.append(args.runs[next], runs);
    if (runs.size() == begin) continue;
    move.runs = staging.stage(std::span<const MoveRun>(runs).subspan(begin));
    const dim3 grid(static_cast<unsigned>(runs.size() - begin), groups);
    kernel<<<grid, kMoveThreads, 0, device.stream()>>>(move);
    check_launch("move_kv", {{"runs", static_cast<std::int64_t>(runs.size() - begin)},
                             {"layers", shape.layers},
                             {"kv_heads", shape.kv_heads},
                             {"head_dim", shape.head_dim}});
  }
}

}  // namespace dendrite::cuda
