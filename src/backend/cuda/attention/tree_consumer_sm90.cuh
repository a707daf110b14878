#pragma once

#include "backend/cuda/attention/soft_cap.cuh"
#include "backend/cuda/attention/tree_producer_sm90.cuh"
#include "backend/cuda/attention/tree_rows.cuh"
#include "backend/cuda/base/launch.cuh"

// How the attention kernel for compute capability 9.0 computes. tree_pair_kernel_sm90.cuh says in
// what order.
namespace dendrite::cuda {

/// One of the two warpgroups that compute; kCaps: scores have soft caps.
template <int kDim, KvFormat kFormat, bool kCaps>
class Consumer : TileRows<kDim, kPanelDims / 8, kWarpgroup> {
 public:
  __device__ Consumer(const TreeAttentionArguments& args, std::byte* shared)
      : Rows(args,
             reinterpret_cast<float*>(shared + Layout::kGroups +
                                      threadIdx.x / kWarpgroup * Layout::kGroupBytes) +
                 threadIdx.x % kWarpgroup,
             static_cast<int>(threadIdx.x) % 4 * 2),
        ring_(shared_address(shared)),
        heads_(static_cast<int>(args.slices.heads)),
        warpgroup_(static_cast<int>(threadIdx.x) / kWarpgroup),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
        queries_(shared_address(shared) + Layout::kQueries + warpgroup_ * Layout::kQueryBytes),
        staged_(shared_address(shared) + Layout::kGroups + warpgroup_ * Layout::kGroupBytes +
                thread_ * 16),
        ones_(shared_address(shared) + Layout::kOnes) {}

  __device__ void run() {
    Works works(args_);
    Work work;
    bool more = works.next(work);
    if (more) {
      begin(work);
      if (tile_.row_count > 0) find_rows();  // brings the plan near
    }
    wait_for_earlier();
    if (warpgroup_ == 1) announce(kTurn, 2 * kWarpgroup);
    while (more) {
      if (tile_.row_count > 0) run_tile();
      const bool apart = !work.shared;
      more = works.next(work);
      if (!more) break;
      // The other warpgroup's stages may still lack a phase that this one has not waited for.
      if (apart && work.shared) meet(kMeetBoth, 2 * kWarpgroup);
      begin(work);
    }
    // No earlier: merges that wait pile up on the first multiprocessors that are free.
    let_next_begin();
  }

 private:
  using Layout = PairLayout<kDim, kFormat>;
  using Rows = TileRows<kDim, kPanelDims / 8, kWarpgroup>;
  using Rows::args_;
  using Rows::end_;
  using Rows::kValues;
  using Rows::low_;
  using Rows::row_;
  using Rows::sum_;
  using Rows::tile_;
  using Rows::top_;
  using Rows::values_;
  static constexpr int kHalf = Layout::kStages / 2;

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
    first_head_ = work.slice.first_head;
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
    this->begin_tokens();
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
      this->end_block(begin + kBlock);
    }
    add_block(scores, begin, part);
    pass_turn();
    fold_row(part, 0);
    fold_row(part, 1);
    this->end_block(begin + kBlock);
  }

  /// Up to P V of a block.
  __device__ void add_block(float (&scores)[kBlock / 2], int begin, Part& part) {
    if constexpr (kCaps) {
      if (two_rows_) {
        cap<kBlock, 2>(scores);
      } else {
        cap<kBlock, 1>(scores);
      }
    }
    if (begin < all_seen_begin_ || begin + kBlock > all_seen_end_) {
      this->mask(scores, begin + thread_ % 4 * 2);
    }
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
      if (left == 0 || next.begin != block.begin) this->end_block(block.begin + kBlock);
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
      if constexpr (kCaps) cap<kTokens, 1>(scores);
      if (begin < all_seen_begin_ || begin + kTokens > all_seen_end_) {
        this->mask(scores, begin + thread_ % 4 * 2);
      }
      exponentiate<kTokens, 1>(scores, p, part.tops);
    }
    multiply_values<kTokens>(part, p, take());
    wait_products<0>();
    give_back();
    if (mine) fold_row(part, 0);
  }

  /// Queries to shared memory, by way of the group's. Rows that the tile lacks keep what they had:
  /// nothing is stored of them.
  __device__ void start_rows() {
    constexpr int kPieces = kDim / 4;  // of 4 dims
    const int heads = heads_;
    const int inverse = ((1 << 16) + heads - 1) / heads;  // exact for the 64 rows of a tile
    const int packed_rows = tile_.row_count * heads;
    meet(kMeetWarpgroup + warpgroup_, kWarpgroup);  // the tile before is done with shared memory
#pragma unroll 4
    for (int i = 0; i < 64 * kPieces / kWarpgroup; ++i) {
      const int index = thread_ + i * kWarpgroup;
      const int packed = index / kPieces;
      if (packed >= packed_rows) break;
      const int row = packed * inverse >> 16;
      const float* q = args_.q.data + (tile_.row_begin + row) * args_.q.stride +
                       (first_head_ + packed - row * heads) * kDim + index % kPieces * 4;
      copy_async(staged_ + i * (kWarpgroup * 16), q, true);
    }
    commit_copies();
    find_rows();
    wait_copies<0>();
#pragma unroll 4
    for (int i = 0; i < 64 * kPieces / kWarpgroup; ++i) {
      const int index = thread_ + i * kWarpgroup;
      const int packed = index / kPieces;
      if (packed >= packed_rows) break;
      const int piece = index % kPieces / 2;  // of 8 dims
      const int row = packed % 32 / 8 * 16 + packed / 32 * 8 + packed % 8;
      float v[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                   : "r"(staged_ + i * (kWarpgroup * 16))
                   : "memory");
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(
                       queries_ + piece / 8 * (64 * kRowBytes) + row * kRowBytes +
                       ((piece ^ row) % 8) * 16 + index % 2 * 8),
                   "r"(pack_bf16(v[0], v[1])), "r"(pack_bf16(v[2], v[3]))
                   : "memory");
    }
    fence_shared_for_products();
    meet(kMeetWarpgroup + warpgroup_, kWarpgroup);
  }

  __device__ void find_rows() {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      this->find_row(r, first_head_, r * 32 + thread_ / 4);
    }
    all_seen_begin_ = __reduce_max_sync(kAll, max(low_[0], low_[1]));
    all_seen_end_ = __reduce_min_sync(kAll, min(end_[0], end_[1]));
    two_rows_ = tile_.row_count * heads_ > 32;
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
    const std::uint32_t keys = tile_descriptor(take());
    const std::uint32_t queries = tile_descriptor(uniform(queries_));
    begin_products();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int step = k % 4 * 32;
      multiply_add<Operand::kBF16>(scores, queries + (k / 4 * (64 * kRowBytes) + step) / 16,
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

  /// Of a thread's first kRows rows.
  template <int kTokens, int kRows>
  __device__ void cap(float (&scores)[kTokens / 2]) const {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) {
        scores[4 * j + i] = capped(scores[4 * j + i], args_.cap_factor);
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

  Ring<kDim, kFormat> ring_;
  int heads_;  // query heads that a row packs,
  int warpgroup_;
  int thread_;
  std::uint32_t queries_;
  std::uint32_t staged_;  // of this thread's queries in f32, where groups are later
  std::uint32_t ones_;
  int first_head_ = 0;  // and the first of them

  int stage_ = 0;  // the next chunk's, which goes round in [stage_begin, stage_end)
  int stage_begin_ = 0;
  int stage_end_ = 0;
  int arrivals_ = 1;  // of a warp, at the barrier of an empty stage
  bool turns_ = false;

  bool two_rows_ = false;  // whether threads have more than one
  int all_seen_begin_ = 0;
  int all_seen_end_ = 0;  // between these all the warp's rows see everything
};

}  // namespace dendrite::cuda
