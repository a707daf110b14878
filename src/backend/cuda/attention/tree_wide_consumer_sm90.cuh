#pragma once

#include "backend/cuda/attention/soft_cap.cuh"
#include "backend/cuda/attention/tree_wide_producer_sm90.cuh"

// How the attention kernel for wide heads and compute capability 9.0 computes.
// tree_wide_kernel_sm90.cuh says in what order.
namespace dendrite::cuda {

/// One of the warpgroups that compute; kCaps: scores have soft caps.
template <int kDim, bool kCaps>
class WideConsumer : TileRows<kDim, kPanelDims / 8, kWarpgroup, WideLayout<kDim>::kGroups,
                              WideLayout<kDim>::kAgain> {
 public:
  __device__ WideConsumer(const TreeAttentionArguments& args, std::byte* shared)
      : Rows(
            args,
            args.groups +
                static_cast<std::int64_t>(blockIdx.x * Layout::kGroups + threadIdx.x / kWarpgroup) *
                    Layout::kGroupValues +
                threadIdx.x % kWarpgroup,
            static_cast<int>(threadIdx.x) / kWarpgroup * kPanelDims +
                static_cast<int>(threadIdx.x) % 4 * 2),
        ring_(shared_address(shared)),
        shared_(shared_address(shared)),
        maxima_(reinterpret_cast<float*>(shared + Layout::kMaxima)),
        first_value_(args.kv.value_vectors > 0 ? 0 : Layout::kPanels - Layout::kAgain),
        warpgroup_(static_cast<int>(uniform(threadIdx.x / kWarpgroup))),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane_ / 4) {}

  __device__ void run() {
    const int slices = slice_count(args_);
    wait_for_earlier();
    for (int work = static_cast<int>(blockIdx.x);; work += static_cast<int>(gridDim.x)) {
      tile_ = args_.plan.tiles[work / slices];
      if (tile_.row_count == 0) break;
      start_rows(slice_of(args_, work % slices).first_head);
      this->begin_tokens();
      for (int block = tile_.begin; block < tile_.end; block += kBlock) {
        add_block(block);
        this->end_block(block + kBlock);
      }
    }
    // No earlier: merges that wait pile up on the first multiprocessors that are free.
    let_next_begin();
  }

 private:
  using Layout = WideLayout<kDim>;
  using Rows = TileRows<kDim, kPanelDims / 8, kWarpgroup, Layout::kGroups, Layout::kAgain>;
  using Rows::args_;
  using Rows::end_;
  using Rows::low_;
  using Rows::sum_;
  using Rows::tile_;
  using Rows::top_;
  using Rows::values_;
  static constexpr int kScored = Layout::kScored;
  static constexpr int kPanelRows = kTileRows * kRowBytes;  // bytes of a panel of the tile's rows

  static __device__ std::uint32_t uniform(std::uint32_t value) {
    return __shfl_sync(kAll, value, 0);
  }
  /// All that compute wait for each other.
  static __device__ void meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(Layout::kGroups * kWarpgroup) : "memory");
  }

  __device__ void start_rows(int first_head) {
    constexpr int kPieces = kDim / 8;
    const auto heads = static_cast<int>(args_.slices.heads);
    const int packed_rows = tile_.row_count * heads;
    // (Nobody reads the queries of the tile before any more: all have met since its last scores.)
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < packed_rows * kPieces;
         i += Layout::kGroups * kWarpgroup) {
      const int packed = i / kPieces;
      const int piece = i % kPieces;
      const float* q = args_.q.data + (tile_.row_begin + packed / heads) * args_.q.stride +
                       (first_head + packed % heads) * kDim + piece * 8;
      const float4 a = *reinterpret_cast<const float4*>(q);
      const float4 b = *reinterpret_cast<const float4*>(q + 4);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared_ + Layout::kQueries + piece / 8 * kPanelRows + packed * kRowBytes +
                       ((piece ^ packed) % 8) * 16),
                   "r"(pack_bf16(a.x, a.y)), "r"(pack_bf16(a.z, a.w)), "r"(pack_bf16(b.x, b.y)),
                   "r"(pack_bf16(b.z, b.w))
                   : "memory");
    }
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) this->find_row(r, first_head, first_row_ + 8 * r);
    all_seen_begin_ = __reduce_max_sync(kAll, max(low_[0], low_[1]));
    all_seen_end_ = __reduce_min_sync(kAll, min(end_[0], end_[1]));
    fence_shared_for_products();
    meet();
  }

  __device__ void add_block(int block) {
    const int limit = min(tile_.end - block, kBlock);  // of tokens that some row sees
    const int keys = ring_.stage();
    float scores[kScored / 2];
    if (warpgroup_ * kScored < limit) {
      multiply_keys(scores);
    } else {
#pragma unroll
      for (float& score : scores) score = -INFINITY;
#pragma unroll 1
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        wait_barrier(ring_.full(ring_.stage()), ring_.parity());
        give_back_key(panel, ring_.stage());
        ring_.next();
      }
    }
    if constexpr (kCaps) {
#pragma unroll
      for (float& score : scores) score = capped(score, args_.cap_factor);
    }
    if (block < all_seen_begin_ || block + kBlock > all_seen_end_) {
      this->mask(scores, block + warpgroup_ * kScored + lane_ % 4 * 2);
    }
    float tops[kRowsAThread];
    find_maxima(scores, tops);
    share_probabilities(scores, tops);
    Fold fold[kRowsAThread];
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      fold[r] = fold_of(top_[r], tops[r]);
      top_[r] = fold[r].top;
    }
    fence_shared_for_products();
    meet();
    take_values<0>(fold, limit <= kBlock / 2, keys, first_value_);
  }

  __device__ void take_panel() {
    wait_barrier(ring_.full(ring_.stage()), ring_.parity());
    fence_shared_for_products();
  }
  __device__ void give_back(int stage) const {
    if (threadIdx.x % 32 == 0) arrive(ring_.empty(stage));
  }
  /// Unless this warpgroup will read it again, as values.
  __device__ void give_back_key(int panel, int stage) const {
    const int value = panel - Layout::kAgain;
    if (value < 0 || value >= first_value_ || value % Layout::kGroups != warpgroup_) {
      give_back(stage);
    }
  }
  __device__ void skip_panels(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      wait_barrier(ring_.full(ring_.stage()), ring_.parity());
      give_back(ring_.stage());
      ring_.next();
    }
  }

  /// S = Q K^T of this warpgroup's tokens.
  __device__ void multiply_keys(float (&scores)[kScored / 2]) {
    std::uint32_t queries = tile_descriptor(uniform(shared_ + Layout::kQueries));
    const int first = warpgroup_ * kScored * kRowBytes;
    int before = 0;
#pragma unroll 1  // nor are other loops over panels: instructions would not fit into their cache
    for (int panel = 0; panel < Layout::kPanels; ++panel, queries += kPanelRows / 16) {
      take_panel();
      const int stage = ring_.stage();
      const std::uint32_t keys = tile_descriptor(uniform(ring_.panel(stage) + first));
      begin_products();
#pragma unroll
      for (int step = 0; step < kPanelDims / 16; ++step) {
        multiply_add<Operand::kBF16>(scores, queries + step * 2, keys + step * 2, panel + step > 0);
      }
      commit_products();
      if (panel > 0) {
        wait_products<1>();
        give_back_key(panel - 1, before);
      }
      before = stage;
      ring_.next();
    }
    wait_products<0>();
    give_back_key(Layout::kPanels - 1, before);
    take_sums(scores);
  }

  /// Each row's largest score in units of log2.
  __device__ void find_maxima(const float (&scores)[kScored / 2], float (&tops)[kRowsAThread]) {
    float* const mine = maxima_ + first_row_ * Layout::kGroups;
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kScored / 8; ++j) {
        top = fmaxf(top, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
      if (lane_ % 4 == 0) mine[8 * r * Layout::kGroups + warpgroup_] = top;
    }
    meet();
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < Layout::kGroups; ++n) {
        top = fmaxf(top, mine[8 * r * Layout::kGroups + n]);
      }
      tops[r] = __fmul_rn(top, args_.scale_log2e);
    }
  }

  /// Probabilities of this warpgroup's tokens relative to the block's maxima, in shared memory.
  __device__ void share_probabilities(const float (&scores)[kScored / 2],
                                      const float (&tops)[kRowsAThread]) {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      const float base = tops[r] == -INFINITY ? 0.0f : -tops[r];
      const int row = first_row_ + 8 * r;
#pragma unroll
      for (int j = 0; j < kScored / 8; ++j) {
        const int piece = warpgroup_ * (kScored / 8) + j;  // of 8 tokens
        const std::uint32_t target = shared_ + Layout::kProbabilities + piece / 8 * kPanelRows +
                                     row * kRowBytes + ((piece ^ row) % 8) * 16 + lane_ % 4 * 4;
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(target),
            "r"(pack_bf16(
                power_of_two(__fmaf_rn(scores[4 * j + 2 * r], args_.scale_log2e, base)),
                power_of_two(__fmaf_rn(scores[4 * j + 2 * r + 1], args_.scale_log2e, base))))
            : "memory");
      }
    }
  }

  /// P V of this warpgroup's panels from number kOwn on, and with its first one the sums of P,
  /// folded into the run; with `half` of the first half of the block, as nobody sees the other.
  /// keys: the stage of the block's first one. The ring's next panel is value number `next`.
  template <int kOwn>
  __device__ void take_values(const Fold (&fold)[kRowsAThread], bool half, int keys, int next) {
    const int number = kOwn * Layout::kGroups + warpgroup_;
    if (number < Layout::kPanels) {
      int stage = ring_.stage_behind(keys, Layout::kAgain + number);
      if (number >= first_value_) {
        skip_panels(number - next);
        take_panel();
        stage = ring_.stage();
        ring_.next();
        next = number + 1;
      }
      if (half) {
        multiply_values<kOwn, kBlock / 32>(fold, stage);
      } else {
        multiply_values<kOwn, kBlock / 16>(fold, stage);
      }
      give_back(stage);
    }
    if constexpr ((kOwn + 1) * Layout::kGroups < Layout::kPanels) {
      take_values<kOwn + 1>(fold, half, keys, next);
    } else {
      skip_panels(Layout::kPanels - next);
    }
  }

  /// The warpgroup's panel number kOwn, which is in a stage of the ring, of 16 * kSteps tokens.
  template <int kOwn, int kSteps>
  __device__ void multiply_values(const Fold (&fold)[kRowsAThread], int stage) {
    const std::uint32_t probabilities = tile_descriptor(uniform(shared_ + Layout::kProbabilities));
    const std::uint32_t panel = tile_descriptor(uniform(ring_.panel(stage)));
    constexpr int kOuts = Layout::kOutDims / 2;
#pragma unroll
    for (int part = 0; part < kPanelDims / Layout::kOutDims; ++part) {
      float outs[kOuts];
      float sums[4];
      const bool sum = kOwn == 0 && part == 0;
      begin_products();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const std::uint32_t p = probabilities + (k / 4 * kPanelRows + k % 4 * 32) / 16;
        multiply_transposed(outs, p,
                            panel + (k * 16 * kRowBytes + part * Layout::kOutDims * 2) / 16, k > 0);
        if (sum) {
          const std::uint32_t ones = tile_descriptor(uniform(shared_ + Layout::kOnes));
          multiply_eight(sums, p, ones, k > 0);
        }
      }
      commit_products();
      wait_products<0>();
      take_sums(outs);
      if (sum) {
        take_sums(sums);
#pragma unroll
        for (int r = 0; r < kRowsAThread; ++r) sum_[r] = folded(fold[r], sum_[r], sums[2 * r]);
      }
#pragma unroll
      for (int i = 0; i < kOuts; ++i) {
        float& value = values_[kOwn * (kPanelDims / 2) + part * kOuts + i];
        value = folded(fold[i / 2 % 2], value, outs[i]);
      }
    }
  }

  WideRing<kDim> ring_;
  std::uint32_t shared_;
  float* maxima_;    // [row][warpgroup]
  int first_value_;  // of panels of values: those before it are the ring's keys
  int warpgroup_;
  int lane_;
  int first_row_;  // of the thread's two, 8 apart

  int all_seen_begin_ = 0;
  int all_seen_end_ = 0;  // between these all the warp's rows see everything
};

}  // namespace dendrite::cuda
