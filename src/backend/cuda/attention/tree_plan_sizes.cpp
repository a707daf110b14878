// How many blocks a tile of a plan has.
#include <algorithm>
#include <array>
#include <bit>

#include "backend/cuda/attention/tree_plan.h"
#include "backend/cuda/attention/tree_plan_numbers.h"

namespace dendrite::cuda {
namespace {

/// Partial results of so many blocks in tiles of up to `size`, a power of two.
std::int64_t parts_of(std::int64_t blocks, std::int64_t size) {
  // Of a run cut in two, the second half leaves a part a block.
  const std::int64_t runs = blocks * kBlockTokens / kRunTokens;
  return size == 1 ? blocks : size == 2 ? runs * 3 : (blocks + size - 1) / size;
}

struct SizeAndTime {
  std::int64_t size;
  std::int64_t time;
};

/// The size up to `most`, a power of two, whose estimated time is least.
template <typename Time>
SizeAndTime fastest_size(std::int64_t most, Time time_of) {
  SizeAndTime best{1, time_of(1)};
  for (std::int64_t size = 2; size <= std::min<std::int64_t>(most, kMaxTileBlocks); size *= 2) {
    const std::int64_t time = time_of(size);
    if (time < best.time) best = {size, time};
  }
  return best;
}

}  // namespace

/// Bundles chains, and says how many blocks a tile has at most. For pairs and for wide heads, whose
/// blocks take longer, what is fastest. Otherwise the largest power of two that leaves no worker
/// idle; but whole runs, which leave few partial results, as long as an eighth of the workers has
/// something to do.
std::int64_t TreePlan::bundle_and_size(std::int64_t units, const Shape& shape,
                                       AttentionWindow window) {
  if (shape.pairs) return bundle_and_size_pairs(shape, window);
  bundle_chains(1, shape);
  if (shape.wide) {
    return fastest_size(longest_, [&](std::int64_t size) { return time_of_tiles(size, shape); })
        .size;
  }
  std::int64_t tile_blocks = units / shape.workers;
  if (units >= shape.workers / 2) {
    tile_blocks = std::max(tile_blocks, kRunTokens / kBlockTokens);
  }
  tile_blocks = std::clamp<std::int64_t>(tile_blocks, 1, kMaxTileBlocks);
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tile_blocks)));
}

/// One chain each, unless workers would have many of those that few rows see: what a tile takes
/// beside its blocks counts for more than they do.
std::int64_t TreePlan::bundle_and_size_pairs(const Shape& shape, AttentionWindow window) {
  const auto longest = static_cast<std::uint64_t>(std::max<std::int64_t>(4, longest_));
  const auto most = static_cast<std::int64_t>(std::bit_ceil(longest));  // cuts nothing any more
  const auto bundled = [&](std::int64_t chains) {
    bundle_chains(chains, shape);
    count_kinds();
    return fastest_size(most, [&](std::int64_t size) { return time_of_pairs(size, shape); });
  };
  std::int64_t small = 0;  // blocks
  for (const Chain& chain : chains_) {
    if (2 * (chain.row_end - chain.row_begin) <= bundle_rows(shape)) small += chain.blocks;
  }
  SizeAndTime best = bundled(1);
  if (window.size != 0 || small * shape.slices <= shape.workers) return best.size;
  std::int64_t best_chains = 1;
  for (std::int64_t chains = 2; chains <= kBundleBlocks; ++chains) {
    const SizeAndTime found = bundled(chains);
    if (found.time >= best.time) continue;
    best = found;
    best_chains = chains;
  }
  bundle_chains(best_chains, shape);
  return best.size;
}

/// If tiles have up to `size` blocks, in hundredths of what a tile takes for a block: of the first
/// worker. Workers take tiles in turns, heavy ones first.
std::int64_t TreePlan::time_of_tiles(std::int64_t size, const Shape& shape) {
  constexpr std::int64_t kBlockTime = 100;
  constexpr std::int64_t kTileTime = 100;  // beside its blocks
  constexpr std::int64_t kPartTime = 10;
  plain_.assign(at(size + 1), 0);
  for (const Chain& chain : chains_) {
    plain_[at(size)] += chain.blocks / size;
    ++plain_[at(chain.blocks % size)];
  }
  std::int64_t time = 0;
  std::int64_t rounds = 0;
  std::int64_t works = 0;
  for (std::int64_t blocks = size; blocks > 0; --blocks) {
    works += plain_[at(blocks)] * shape.slices;
    const std::int64_t until = (works + shape.workers - 1) / shape.workers;
    time += (until - rounds) * (blocks * kBlockTime + kTileTime);
    rounds = until;
  }
  return time + kPartTime * parts_of(longest_, size);
}

/// Bundles by what they cost. Neighbours are often alike.
void TreePlan::count_kinds() {
  constexpr std::int64_t kSide = kBundleBlocks + 1;
  kinds_.clear();
  kind_at_.assign(at(kSide * kSide + 2 * longest_ + 2), -1);
  const auto add = [&](const BundleKind& kind) {
    const std::int64_t place = kind.chains > 1
                                   ? kind.chains * kSide + kind.blocks
                                   : kSide * kSide + 2 * kind.blocks + (kind.shared ? 1 : 0);
    std::int32_t& index = kind_at_[at(place)];
    if (index < 0) {
      index = narrow(std::ssize(kinds_));
      kinds_.push_back({kind.blocks, kind.chains, kind.shared, 0, 0});
    }
    kinds_[at(index)].count += kind.count;
    kinds_[at(index)].odd += kind.count % 2;
  };
  BundleKind kind;
  for (const Bundle& bundle : bundles_) {
    const Chain& chain = chains_[at(bundle.first_chain)];
    const bool shared = chain.row_end - chain.row_begin > tile_rows_;
    if (kind.blocks != chain.blocks || kind.chains != bundle.chains || kind.shared != shared) {
      if (kind.count > 0) add(kind);
      kind = {chain.blocks, bundle.chains, shared, 0, 0};
    }
    ++kind.count;
  }
  if (kind.count > 0) add(kind);
}

/// If tiles have up to `size` blocks, a power of two; in hundredths of what a pair of tiles takes
/// for a block. Workers take works in turns, back and forth, heavy ones first.
std::int64_t TreePlan::time_of_pairs(std::int64_t size, const Shape& shape) {
  constexpr std::int64_t kBlockTime = 100;
  constexpr std::int64_t kBundledTime = 80;  // of a block that few rows see
  constexpr std::int64_t kTileTime = 150;    // beside its blocks
  constexpr std::int64_t kPartTime = 7;
  const int shift = std::countr_zero(static_cast<std::uint64_t>(size));
  std::int64_t singles = 0;
  std::int64_t works = 0;
  std::int64_t parts = 0;
  for (const BundleKind& kind : kinds_) {
    const std::int64_t tiles = (kind.blocks + size - 1) >> shift;
    works += tiles * kind.count;
    if (!kind.shared) singles += tiles * kind.count;
    parts = std::max(parts, parts_of(kind.blocks, size));
  }
  const bool pair_up = works * shape.slices > shape.workers;

  // Works by blocks: by those of a tile, and by those of a bundle's tile, which are few.
  const std::int64_t most = std::min(size, longest_);
  plain_.assign(at(most + 1), 0);
  bundled_.assign(at(kBundleBlocks + 1), 0);
  for (const BundleKind& kind : kinds_) {
    std::vector<std::int64_t>& counts = kind.chains > 1 ? bundled_ : plain_;
    const auto add = [&](std::int64_t blocks, std::int64_t tiles) {
      if (blocks == 0) return;
      std::int64_t count = tiles * kind.count;
      if (pair_up && !kind.shared) count = (count + (tiles % 2 != 0 ? kind.odd : 0)) / 2;
      counts[at(blocks * kind.chains)] += count;
    };
    if (kind.blocks >= size) add(size, kind.blocks >> shift);
    add(kind.blocks & (size - 1), 1);
  }

  const std::array<std::int64_t, 3> workers = {0, shape.workers / 2, shape.workers - 1};
  std::array<std::int64_t, 3> rounds{};
  std::array<std::int64_t, 3> times{};
  std::int64_t end = 0;  // of the works that cost as much or more
  const auto take = [&](std::int64_t count, std::int64_t time) {
    if (count == 0) return;
    end += count * shape.slices;
    const std::int64_t whole = end / shape.workers;
    for (std::size_t i = 0; i < workers.size(); ++i) {
      const bool one_more = dealt_work(whole, workers[i], shape.workers) < end;
      const std::int64_t until = whole + (one_more ? 1 : 0);
      times[i] += (until - rounds[i]) * time;
      rounds[i] = until;
    }
  };
  std::int64_t bundled = kBundleBlocks;
  for (std::int64_t blocks = most; blocks >= 0; --blocks) {
    for (; bundled * kBundledTime > blocks * kBlockTime; --bundled) {
      take(bundled_[at(bundled)], bundled * kBundledTime + kTileTime);
    }
    take(plain_[at(blocks)], blocks * kBlockTime + kTileTime);
  }
  return *std::max_element(times.begin(), times.end()) + kPartTime * parts;
}

}  // namespace dendrite::cuda
