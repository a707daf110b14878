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
#include "backend/cuda/stores/kv_store.h"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 2;
constexpr std::size_t kFirstMoves = 512;  // of the first launch

/// A KvMove whose positions are in one block of angles each.
struct MoveRun {
  const float* old_angles;  // of the first token; null: K is copied
  const float* new_angles;
  std::int64_t from;  // bytes from page 0 of a layer to the first token's K of head 0
  std::int64_t to;
  std::int32_t count;
};

struct MoveArguments {
  std::byte* data;  // page 0 of layer 0
  const MoveRun* runs;
  std::int64_t layer_bytes;  // from layer to layer
  std::int64_t head_bytes;   // from head to head of a page
  std::int64_t value_bytes;  // from K to V of a head
  std::int32_t head_dim;
  std::int32_t half;  // rotary_dim / 2
  std::uint32_t kv_heads;
  std::uint32_t items;  // layers * kv_heads
  std::uint32_t block_items;
  float inverse_scale2;
};

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

template <int kCount>
__device__ void load_angles(const float* from, float (&angles)[kCount]) {
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
      angles[i] = four.x;
      angles[i + 1] = four.y;
      angles[i + 2] = four.z;
      angles[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) angles[i] = __ldg(from + i);
  }
}

/// The rotations of one token's pairs.
template <typename T, int kCount>
struct Rotation {
  float cos_old[kCount], sin_old[kCount], cos_new[kCount], sin_new[kCount];

  __device__ void load(const float* old_angles, const float* new_angles, int half) {
    load_angles(old_angles, cos_old);
    load_angles(old_angles + half, sin_old);
    load_angles(new_angles, cos_new);
    load_angles(new_angles + half, sin_new);
  }
  /// No contraction: the same roundings as on every other device.
  __device__ void turn(Chunk<T, kCount>& first, Chunk<T, kCount>& second,
                       float inverse_scale2) const {
    float a[kCount], b[kCount];
    first.unpack(a);
    second.unpack(b);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float u1 = __fadd_rn(__fmul_rn(a[i], cos_old[i]), __fmul_rn(b[i], sin_old[i]));
      float u2 = __fsub_rn(__fmul_rn(b[i], cos_old[i]), __fmul_rn(a[i], sin_old[i]));
      u1 = __fmul_rn(u1, inverse_scale2);  // exact where that is 1
      u2 = __fmul_rn(u2, inverse_scale2);
      a[i] = __fsub_rn(__fmul_rn(u1, cos_new[i]), __fmul_rn(u2, sin_new[i]));
      b[i] = __fadd_rn(__fmul_rn(u2, cos_new[i]), __fmul_rn(u1, sin_new[i]));
    }
    first.pack(a);
    second.pack(b);
  }
};

/// Two chunks of a token, by the number that they have among all of the token's.
struct Place {
  int first, second;  // values from the token's first; second may be behind the last one
  bool pairs;         // of RoPE

  __device__ Place(int number, int chunk, int half) {
    const int rotated = half / chunk;
    pairs = number < rotated;
    first = pairs ? number * chunk : 2 * half + (number - rotated) * 2 * chunk;
    second = pairs ? first + half : first + chunk;
  }
};

/// grid (runs, items / block_items)
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const __grid_constant__ MoveArguments args) {
  using Values = Chunk<T, kCount>;
  const MoveRun run = args.runs[blockIdx.x];
  const std::uint32_t item_begin = blockIdx.y * args.block_items;
  const std::uint32_t item_end = min(item_begin + args.block_items, args.items);
  const int places = args.half / kCount +
                     (args.head_dim - 2 * args.half + 2 * kCount - 1) / (2 * kCount);  // a token
  const int units = run.count * places;
  // Threads that are a copy of the run; few tokens leave room for several, with other items.
  const int width = min(units, kThreads);
  const auto groups = static_cast<std::uint32_t>(kThreads / width);
  const auto group = static_cast<std::uint32_t>(static_cast<int>(threadIdx.x) / width);
  if (group >= groups) return;
  for (int unit = static_cast<int>(threadIdx.x) % width; unit < units; unit += width) {
    const int token = unit / places;
    const Place place(unit % places, kCount, args.half);
    const bool two = place.second < args.head_dim;
    const bool turned = place.pairs && run.old_angles != nullptr;
    Rotation<T, kCount> rotation;
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
        values[u][0].load(source + args.value_bytes);
        if (!two) continue;
        keys[u][1].load(source + second);
        values[u][1].load(source + args.value_bytes + second);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (item + u * groups >= item_end) continue;
        if (turned) rotation.turn(keys[u][0], keys[u][1], args.inverse_scale2);
        std::byte* target = to + at[u];
        keys[u][0].store(target);
        values[u][0].store(target + args.value_bytes);
        if (!two) continue;
        keys[u][1].store(target + second);
        values[u][1].store(target + args.value_bytes + second);
      }
    }
  }
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
        token_bytes_(view.head_dim * (view.bf16 ? 2 : 4)),
        page_stride_(view.page_stride),
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
      run.from = place(move.from_slot + at);
      run.to = place(move.to_slot + at);
      run.count = static_cast<std::int32_t>(count);
      runs.push_back(run);
      at += count;
    }
  }

 private:
  /// By shifts: there are thousands of runs, of which divisions would be the dearest part.
  std::int64_t place(std::int64_t slot) const {
    const std::int64_t page = slot >> page_shift_;
    return page * page_stride_ + (slot - (page << page_shift_)) * token_bytes_;
  }

  const KvMoves& args_;
  std::int64_t token_bytes_;
  std::int64_t page_stride_;
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
  move.value_bytes = view.page_tokens * view.head_dim * (view.bf16 ? 2 : 4);
  move.head_bytes = 2 * move.value_bytes;
  move.head_dim = static_cast<std::int32_t>(view.head_dim);
  move.half = static_cast<std::int32_t>(args.rotary_dim / 2);
  move.kv_heads = static_cast<std::uint32_t>(view.kv_heads);
  move.items = static_cast<std::uint32_t>(shape.layers * view.kv_heads);
  move.block_items = static_cast<std::uint32_t>(
      items_of_block(device, static_cast<std::int64_t>(args.runs.size()), move.items));
  move.inverse_scale2 = args.inverse_scale2;

  // A guarded store's bytes around pages are whole chunks, too.
  const int chunk = view.bf16 ? 8 : 4;
  const bool whole = move.head_dim % chunk == 0 && move.half % chunk == 0;
  const auto kernel = view.bf16 ? (whole ? move_kernel<bf16, 8> : move_kernel<bf16, 1>)
                                : (whole ? move_kernel<float, 4> : move_kernel<float, 1>);
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
    kernel<<<grid, kThreads, 0, device.stream()>>>(move);
    check_launch("move_kv", {{"runs", static_cast<std::int64_t>(runs.size() - begin)},
                             {"layers", shape.layers},
                             {"kv_heads", shape.kv_heads},
                             {"head_dim", shape.head_dim}});
  }
}

}  // namespace dendrite::cuda
