// Attention over a tree of pages by products of warpgroups (wgmma), for compute capability 9.0. A
// thread block has two warpgroups of 64 packed rows each (tree_attention.cu says how rows are
// packed) and a third one that brings K and V. It works on pairs of tiles: of the same tokens, each
// chunk being read once for both warpgroups, or of different ones, with half of the ring for each.
//
// A chunk is K or V of a block: panels of [128 tokens][64 dims], 16-byte pieces swizzled. A ring of
// chunks is filled in the background across pairs. Packed row r * 32 + w * 8 + g is row g + 8 r of
// warp w's 16: up to 32 packed rows take one row a thread.
//
// Order of operations (tree_plan.h): a block of 128 tokens from a fresh state: scores by a chain
// over the dims, their maximum, probabilities in bf16, their sum and P V by a chain over the
// tokens. An element of a product depends on its own row and column alone; tokens that a row does
// not see have probability 0, which adds nothing, and V of slots that may hold anything is read as
// 0. Blocks are folded to runs, runs to groups, in f32. These are the operations of
// tree_attention.cu, and they give the same bits. Floor: unique pages' bytes over bandwidth, or
// 4 rows tokens head_dim heads FLOP. Source of overlapping one warpgroup's softmax with the other's
// products: Shah et al. 2024, arXiv:2407.08608.
#include "backend/cuda/tree_attention_sm90.h"

#include <climits>

#include "backend/cuda/softmax_state.cuh"
#include "backend/cuda/tree_output.cuh"
#include "backend/cuda/tree_producer_sm90.cuh"

namespace dendrite::cuda {
namespace {

/// One of the two warpgroups that compute.
template <int kDim>
class Consumer {
 public:
  __device__ Consumer(const TreeAttentionArguments& args, std::byte* shared)
      : args_(args),
        ring_(shared_address(shared)),
        group_(static_cast<int>(args.heads) / static_cast<int>(args.kv.kv_heads)),
        warpgroup_(static_cast<int>(threadIdx.x) / kWarpgroup),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        queries_(shared_address(shared) + Layout::kQueries + warpgroup_ * Layout::kQueryBytes),
        ones_(shared_address(shared) + Layout::kOnes),
        group_values_(
            reinterpret_cast<float*>(shared + Layout::kGroups + warpgroup_ * Layout::kGroupBytes) +
            thread_) {}

  __device__ void run() {
    Works works(args_);
    Work work;
    bool more = works.next(work);
    if (more) {
      begin(work);
      if (tile_.row_count > 0) find_rows();  // brings the plan near
    }
    wait_for_earlier();
    let_next_begin();
    if (warpgroup_ == 1) announce(kTurn, 2 * kWarpgroup);
    while (more) {
      if (tile_.row_count > 0) run_tile();
      const bool apart = !work.shared;
      more = works.next(work);
      if (!more) return;
      // The other warpgroup's stages may still lack a phase that this one has not waited for.
      if (apart && work.shared) meet(kMeetBoth, 2 * kWarpgroup);
      begin(work);
    }
  }

 private:
  using Layout = Shared<kDim>;
  static constexpr int kHalf = Layout::kStages / 2;
  static constexpr int kRowsAThread = 2;    // lane / 4 and lane / 4 + 8 of a warp's 16
  static constexpr int kValues = kDim / 2;  // of a thread

  /// What a block adds: each row's maximum, sums of probabilities (of row r at 2 r) and P V.
  struct Part {
    float tops[kRowsAThread];
    float sums[4];
    float values[kValues];
  };

  static __device__ std::uint32_t uniform(std::uint32_t value) {
    return __shfl_sync(kAll, value, 0);
  }

  __device__ void begin(const Work& work) {
    tile_ = warpgroup_ == 0 ? work.tiles[0] : work.tiles[1];
    kv_head_ = work.kv_head;
    if (work.shared) {
      stage_begin_ = 0;
      stage_end_ = Layout::kStages;
      arrivals_ = 1;
      turns_ = true;
    } else {
      stage_begin_ = warpgroup_ * kHalf;
      stage_end_ = stage_begin_ + kHalf;
      arrivals_ = 2;
      turns_ = false;
      skip_uses(2 * (warpgroup_ == 0 ? work.tiles[1] : work.tiles[0]).block_count);
    }
    stage_ = stage_begin_;
  }

  /// The other warpgroup takes so many chunks from its half of the ring.
  __device__ void skip_uses(int chunks) {
    const int begin = (1 - warpgroup_) * kHalf;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if ((chunks + kHalf - 1 - i) / kHalf % 2 != 0) ring_.use(begin + i);
    }
  }

  __device__ void run_tile() {
    start_rows();
    clear();
    in_group_ = false;
    slot_ = tile_.first_slot;
    segment_ = tile_.begin;
    segment_last_ = segment_end(tile_.begin, tile_.end);
    const int tokens = tile_.end - tile_.begin;
    const bool bundle = tile_.block_count * kBlock >= tokens + kBlock;
    if (bundle || (tokens <= kBlock / 2 && !two_rows_ && !turns_)) {
      run_bundle();
    } else {
      run_chain();
    }
  }

  /// Blocks that all rows see. The warpgroup has its turn for P V of a block and the scores of the
  /// next, while the other one finds probabilities.
  __device__ void run_chain() {
    float scores[kBlock / 2];
    Part part;
    await_turn();
    multiply_keys<kBlock>(scores);
    pass_turn();
    wait_products<0>();
    give_back();
    int begin = tile_.begin;
    for (; begin + kBlock < tile_.end; begin += kBlock) {
      add_block(scores, begin, part);
      multiply_keys<kBlock>(scores);  // of the next block
      pass_turn();
      fold_row(part, 0);
      fold_row(part, 1);
      wait_products<0>();
      give_back();
      end_block(begin + kBlock);
    }
    add_block(scores, begin, part);
    pass_turn();
    fold_row(part, 0);
    fold_row(part, 1);
    end_block(begin + kBlock);
  }

  /// Up to P V of a block.
  __device__ void add_block(float (&scores)[kBlock / 2], int begin, Part& part) {
    if (begin < all_seen_begin_ || begin + kBlock > all_seen_end_) mask<kBlock>(scores, begin);
    std::uint32_t p[kBlock / 16][4];
    if (two_rows_) {
      exponentiate<kBlock, 2>(scores, p, part.tops);
    } else {
      exponentiate<kBlock, 1>(scores, p, part.tops);
    }
    const std::uint32_t values = take();
    await_turn();
    multiply_values<kBlock>(part, p, values);
    wait_products<0>();
    give_back();
  }

  /// Blocks that some rows see each, one row a thread.
  __device__ void run_bundle() {
    const TreeBlock* blocks = args_.plan.blocks + tile_.first_block;
    TreeBlock next = *blocks;
#pragma unroll 1
    for (int left = tile_.block_count - 1; left >= 0; --left) {
      const TreeBlock block = next;
      if (left > 0) next = *++blocks;
      if (block.end - block.begin <= kBlock / 2) {
        add_bundled<kBlock / 2>(block);
      } else {
        add_bundled<kBlock>(block);
      }
      if (left == 0 || next.begin != block.begin) end_block(block.begin + kBlock);
    }
  }

  template <int kTokens>
  __device__ void add_bundled(const TreeBlock& block) {
    float scores[kTokens / 2];
    multiply_keys<kTokens>(scores);
    wait_products<0>();
    give_back();
    const int begin = block.begin;
    const bool mine = row_[0] >= block.row_begin && row_[0] < block.row_end;
    std::uint32_t p[kTokens / 16][4] = {};
    Part part;
    if (__any_sync(kAll, mine) != 0) {
      if (begin < all_seen_begin_ || begin + kTokens > all_seen_end_) mask<kTokens>(scores, begin);
      exponentiate<kTokens, 1>(scores, p, part.tops);
    }
    multiply_values<kTokens>(part, p, take());
    wait_products<0>();
    give_back();
    if (mine) fold_row(part, 0);
  }

  /// After the last block of these positions.
  __device__ void end_block(int end) {
    const bool segment_ends = end >= segment_last_;
    if (!segment_ends && end % static_cast<int>(kRunTokens) != 0) return;
    if (in_group_ || !segment_ends) fold_group(/*keep=*/!segment_ends);
    if (segment_ends) {
      store(slot_, segment_, end);
      slot_ += tile_.row_count;
      segment_ = end;
      segment_last_ = segment_end(end, tile_.end);
      in_group_ = false;
    }
    clear();
  }

  /// Queries to shared memory, by way of the group's. Rows that the tile lacks keep what they had:
  /// nothing is stored of them.
  __device__ void start_rows() {
    constexpr int kPieces = kDim / 8;
    const int group = group_;
    const int packed_rows = tile_.row_count * group;
    meet(kMeetWarpgroup + warpgroup_, kWarpgroup);  // the tile before is done with shared memory
    const std::uint32_t staged = shared_address(group_values_ - thread_) + thread_ * 16;
    constexpr int kStep = kWarpgroup * 16;
#pragma unroll 2
    for (int i = 0; i < 64 * kPieces / kWarpgroup; ++i) {
      const int index = thread_ + i * kWarpgroup;
      const int packed = index / kPieces;
      if (packed >= packed_rows) break;
      const float* q = args_.q.data + (tile_.row_begin + packed / group) * args_.q.stride +
                       (kv_head_ * group + packed % group) * kDim + index % kPieces * 8;
      copy_async(staged + 2 * i * kStep, q, true);
      copy_async(staged + (2 * i + 1) * kStep, q + 4, true);
    }
    commit_copies();
    find_rows();
    wait_copies<0>();
#pragma unroll 2
    for (int i = 0; i < 64 * kPieces / kWarpgroup; ++i) {
      const int index = thread_ + i * kWarpgroup;
      const int packed = index / kPieces;
      if (packed >= packed_rows) break;
      const int piece = index % kPieces;
      const int row = packed % 32 / 8 * 16 + packed / 32 * 8 + packed % 8;
      float v[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v[4 * half]), "=f"(v[4 * half + 1]), "=f"(v[4 * half + 2]),
                       "=f"(v[4 * half + 3])
                     : "r"(staged + (2 * i + half) * kStep)
                     : "memory");
      }
      asm volatile(
          "st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
              queries_ + piece / 8 * (64 * kRowBytes) + row * kRowBytes + ((piece ^ row) % 8) * 16),
          "r"(pack_bf16(v[0], v[1])), "r"(pack_bf16(v[2], v[3])), "r"(pack_bf16(v[4], v[5])),
          "r"(pack_bf16(v[6], v[7]))
          : "memory");
    }
    fence_shared_for_products();
    meet(kMeetWarpgroup + warpgroup_, kWarpgroup);
  }

  __device__ void find_rows() {
    const int group = group_;
    const int packed_rows = tile_.row_count * group;
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      const int packed = r * 32 + thread_ / 4;
      record_[r] = -1;
      row_[r] = -1;
      only_[r] = false;
      low_[r] = 0;
      end_[r] = INT_MAX;  // rows past the last one: nothing is stored, so nothing need be masked
      if (packed >= packed_rows) continue;
      const int row = packed / group;
      row_[r] = tile_.row_begin + row;
      record_[r] = static_cast<int>(row * args_.heads) + kv_head_ * group + packed % group;
      const auto position = static_cast<int>(args_.plan.positions[row_[r]]);
      only_[r] = has_one_part(args_.plan, row_[r]);
      if (args_.plan.window > 0) low_[r] = position - static_cast<int>(args_.plan.window) + 1;
      end_[r] = min(position + 1, tile_.end);
    }
    all_seen_begin_ = __reduce_max_sync(kAll, max(low_[0], low_[1]));
    all_seen_end_ = __reduce_min_sync(kAll, min(end_[0], end_[1]));
    two_rows_ = packed_rows > 32;
  }

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      top_[r] = -INFINITY;
      sum_[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) values_[i] = 0;
  }

  /// Waits for the next chunk.
  __device__ std::uint32_t take() {
    wait_barrier(ring_.full(stage_), ring_.parity(stage_));
    fence_shared_for_products();
    ring_.use(stage_);
    return uniform(ring_.chunk(stage_));
  }
  __device__ void give_back() {
    if (thread_ % 32 == 0) arrive(ring_.empty(stage_), arrivals_);
    stage_ = stage_ + 1 == stage_end_ ? stage_begin_ : stage_ + 1;
  }
  __device__ void await_turn() const {
    if (turns_) meet(kTurn + warpgroup_, 2 * kWarpgroup);
  }
  __device__ void pass_turn() const {
    if (turns_) announce(kTurn + 1 - warpgroup_, 2 * kWarpgroup);
  }

  /// Begins the scores of kTokens tokens.
  template <int kTokens>
  __device__ void multiply_keys(float (&scores)[kTokens / 2]) {
    const std::uint64_t keys = describe_operand(take(), 0);
    const std::uint64_t queries = describe_operand(uniform(queries_), 0);
    begin_products();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int step = k % 4 * 32;
      multiply_shared(scores, queries + (k / 4 * (64 * kRowBytes) + step) / 16,
                      keys + (k / 4 * kPanelBytes + step) / 16, k > 0);
    }
    commit_products();
  }

  __device__ void fold_row(const Part& part, int r) {
    const Fold fold = fold_of(top_[r], part.tops[r]);
    top_[r] = fold.top;
    sum_[r] = folded(fold, sum_[r], part.sums[2 * r]);
#pragma unroll
    for (int i = 0; i < kValues / 4; ++i) {
#pragma unroll
      for (int j = 2 * r; j < 2 * r + 2; ++j) {
        values_[4 * i + j] = folded(fold, values_[4 * i + j], part.values[4 * i + j]);
      }
    }
  }

  template <int kTokens>
  __device__ void mask(float (&scores)[kTokens / 2], int block) const {
    const int first = block + thread_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first + 8 * j + i % 2;
        if (token < low_[i / 2] || token >= end_[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  /// Probabilities of a thread's first kRows rows relative to the block's maxima, as fragments of
  /// P.
  template <int kTokens, int kRows>
  __device__ void exponentiate(const float (&scores)[kTokens / 2],
                               std::uint32_t (&p)[kTokens / 16][4],
                               float (&tops)[kRowsAThread]) const {
    float base[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top[2] = {scores[2 * r], scores[2 * r + 1]};
#pragma unroll
      for (int j = 1; j < kTokens / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = fmaxf(top[i], scores[4 * j + 2 * r + i]);
      }
      tops[r] = fmaxf(top[0], top[1]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) tops[r] = fmaxf(tops[r], __shfl_xor_sync(kAll, tops[r], 1));
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      tops[r] = fmaxf(tops[r], __shfl_xor_sync(kAll, tops[r], 2));
      tops[r] = __fmul_rn(tops[r], args_.scale_log2e);
      base[r] = tops[r] == -INFINITY ? 0.0f : -tops[r];
    }
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float a = power_of_two(__fmaf_rn(scores[4 * j + 2 * r], args_.scale_log2e, base[r]));
        const float b =
            power_of_two(__fmaf_rn(scores[4 * j + 2 * r + 1], args_.scale_log2e, base[r]));
        p[j / 2][j % 2 * 2 + r] = pack_bf16(a, b);
      }
    }
    if (kRows == 1) {
      tops[1] = -INFINITY;
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) p[k][1] = p[k][3] = 0;
    }
  }

  /// Begins P V and the sums of P, by a column of ones.
  template <int kTokens>
  __device__ void multiply_values(Part& part, const std::uint32_t (&p)[kTokens / 16][4],
                                  std::uint32_t chunk) {
    const std::uint64_t values = describe_operand(chunk, kPanelBytes);
    const std::uint64_t ones = describe_operand(uniform(ones_), 0);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      multiply_registers(part.values, p[k], values + k * 16 * kRowBytes / 16, k > 0);
      multiply_registers(part.sums, p[k], ones, k > 0);
    }
    commit_products();
  }

  /// Folds the run into the group that it goes on, which stays in shared memory (each thread's own
  /// values), or with `keep` false comes back as the run.
  __device__ void fold_group(bool keep) {
    if (!in_group_) {
      in_group_ = true;
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) {
        group_top_[r] = -INFINITY;
        group_sum_[r] = 0;
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) group_values_[i * kWarpgroup] = 0;
    }
    Fold fold[kRowsAThread];
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      fold[r] = fold_of(group_top_[r], top_[r]);
      group_top_[r] = top_[r] = fold[r].top;
      group_sum_[r] = sum_[r] = folded(fold[r], group_sum_[r], sum_[r]);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float& kept = group_values_[i * kWarpgroup];
      values_[i] = folded(fold[i / 2 % 2], kept, values_[i]);
      if (keep) kept = values_[i];
    }
  }

  /// What the tile has of its segment, tokens [begin, end).
  __device__ void store(std::int64_t slot, int begin, int end) const {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      if (record_[r] < 0) continue;
      if (!only_[r]) {
        write_state(slot * args_.heads + record_[r], r);
      } else if (end_[r] > begin && low_[r] < end) {
        write_row(r);
      }
    }
  }
  __device__ void write_state(std::int64_t record, int r) const {
    float* out = args_.states + record * kDim + thread_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(out + 8 * j) =
          float2{values_[4 * j + 2 * r], values_[4 * j + 2 * r + 1]};
    }
    float* sums = args_.states + args_.slots * args_.heads * kDim;
    if (thread_ % 4 == 0) *reinterpret_cast<float2*>(sums + record * 2) = {top_[r], sum_[r]};
  }
  __device__ void write_row(int r) const {
    const auto heads = static_cast<int>(args_.heads);
    const std::int64_t row = row_[r];
    const int column = record_[r] % heads * kDim + thread_ % 4 * 2;
    const float factor = output_factor(sum_[r]);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      write_output(args_, row, column + 8 * j, values_[4 * j + 2 * r], values_[4 * j + 2 * r + 1],
                   factor);
    }
  }

  const TreeAttentionArguments& args_;
  Ring<kDim> ring_;
  int group_;  // query heads a KV head
  int warpgroup_;
  int thread_;
  std::uint32_t queries_;
  std::uint32_t ones_;
  float* group_values_;  // [value][thread]
  TreeTile tile_;
  int kv_head_ = 0;
  std::int64_t slot_ = 0;  // of the first row's next result,
  int segment_ = 0;        // of tokens from here
  int segment_last_ = 0;   // to here

  int stage_ = 0;  // the next chunk's, which goes round in [stage_begin, stage_end)
  int stage_begin_ = 0;
  int stage_end_ = 0;
  int arrivals_ = 1;  // of a warp, at the barrier of an empty stage
  bool turns_ = false;

  bool two_rows_ = false;     // whether threads have more than one
  int row_[kRowsAThread];     // -1: none
  int record_[kRowsAThread];  // (row of the tile, head); -1: none
  bool only_[kRowsAThread];   // what the tile has of the row is all there is
  int low_[kRowsAThread];     // tokens [low, end) are seen
  int end_[kRowsAThread];
  int all_seen_begin_ = 0;
  int all_seen_end_ = 0;  // between these all the warp's rows see everything

  float top_[kRowsAThread];  // of the run
  float sum_[kRowsAThread];
  float values_[kValues];
  float group_top_[kRowsAThread];
  float group_sum_[kRowsAThread];
  bool in_group_ = false;
};

/// grid: one a multiprocessor; block kThreads
template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const __grid_constant__ TreeAttentionArguments args) {
  extern __shared__ std::byte unaligned[];
  std::byte* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  if (threadIdx.x < 256) {
    reinterpret_cast<std::uint32_t*>(shared + Shared<kDim>::kOnes)[threadIdx.x] = kOnes;
    fence_shared_for_products();
  }
  if (threadIdx.x == 0) {
    const Ring<kDim> ring(shared_address(shared));
    for (int stage = 0; stage < Shared<kDim>::kStages; ++stage) {
      init_barrier(ring.full(stage), kWarpgroup);
      init_barrier(ring.empty(stage), 8);
    }
  }
  __syncthreads();
  if (threadIdx.x < 2 * kWarpgroup) {
    take_registers<232>();
    Consumer<kDim>(args, shared).run();
  } else {
    leave_registers<40>();
    Producer<kDim>(args, shared_address(shared)).run();
  }
}

}  // namespace

void prepare_tree_attention_sm90() {
  const auto allow = [](auto kernel, int bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "attention");
  };
  allow(attend_kernel<64>, Shared<64>::kBytes);
  allow(attend_kernel<128>, Shared<128>::kBytes);
}

void launch_tree_attention_sm90(const TreeAttentionArguments& args, std::int64_t multiprocessors,
                                cudaStream_t stream) {
  const bool narrow = args.kv.head_dim == 64;
  launch_early(narrow ? attend_kernel<64> : attend_kernel<128>,
               dim3(static_cast<unsigned>(multiprocessors)), kThreads,
               static_cast<std::size_t>(narrow ? Shared<64>::kBytes : Shared<128>::kBytes), stream,
               args);
}

}  // namespace dendrite::cuda
