// Any bytes as what stands between a snapshot's preamble and its pages: refused with an Error, or a
// tree that is sound, and then a whole snapshot of it in memory is read back, and refused where it
// is damaged. The bytes as a whole snapshot, too, with checksums made right.
#include <algorithm>

#include "core/parallel.h"
#include "dendrite/error.h"
#include "fuzz.h"
#include "io/snapshot_file.h"
#include "io/snapshot_format.h"

namespace {

using namespace dendrite;

constexpr std::int64_t kMostPageBytes = 1 << 20;

/// The pages and states that were taken; -1: refused.
std::int64_t parts_read(std::span<const std::byte> bytes) {
  static const ThreadPool pool(1);
  std::int64_t pages = 0;
  try {
    const SnapshotReader reader(bytes);
    reader.read_pages(pool, [&](std::int64_t, std::span<const std::byte>) { ++pages; });
    reader.read_states([&](std::int64_t state, std::span<const float> values) {
      fuzz_check(std::ssize(values) == reader.snapshot().states.values_of(state), "a state's size");
      ++pages;
    });
  } catch (const Error&) {
    return -1;
  }
  return pages;
}

void check_in_memory(const Snapshot& snapshot, std::span<const std::byte> seed) {
  const std::int64_t pages = page_count(snapshot.tree, snapshot.page_tokens);
  if (pages * (snapshot.page_bytes() / 8 + 1) > kMostPageBytes / 8) return;
  if (snapshot.states.size_bytes() > kMostPageBytes) return;
  static const ThreadPool pool(1);
  std::vector<std::byte> bytes = snapshot_in_memory(
      snapshot, pool,
      [](std::int64_t page, std::span<std::byte> out) {
        std::ranges::fill(out, static_cast<std::byte>(page));
      },
      [](std::int64_t state, std::span<float> out) {
        std::ranges::fill(out, static_cast<float>(state));
      });
  fuzz_check(parts_read(bytes) == pages + snapshot.states.count(), "what was written is read back");
  std::size_t place = 0;
  for (const std::byte byte : seed) place = place * 131 + static_cast<std::size_t>(byte);
  place %= bytes.size();
  fuzz_check(parts_read(std::span(bytes).first(place)) == -1, "a part is refused");
  bytes[place] ^= std::byte{4};
  fuzz_check(parts_read(bytes) == -1, "a damaged byte is seen");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto version = static_cast<std::uint32_t>(kUnsaltedVersion + size % 5);
    static_assert(kUnsaltedVersion + 4 == kSnapshotVersion);
    const Snapshot snapshot = parse_snapshot(bytes, version, "x.snap");
    fuzz_check(problem_of(snapshot.tree, snapshot.page_tokens).empty(), "the tree is sound");
    fuzz_check(snapshot.branches.size() == snapshot.tree.tips.size(), "a tip a branch");
    fuzz_check(snapshot.page_bytes() > 0, "a page has a size");
    const std::int64_t pages = page_count(snapshot.tree, snapshot.page_tokens);
    const auto most = 2 * snapshot.tree.segments.size() + snapshot.tree.tokens.size() / 8;
    fuzz_check(pages >= 0 && pages <= static_cast<std::int64_t>(most), "pages are those of tokens");
    for (const std::int64_t end : segment_ends(snapshot.tree)) {
      fuzz_check(end <= static_cast<std::int64_t>(snapshot.tree.tokens.size()),
                 "ends are in range");
    }
    check_in_memory(snapshot, bytes);
  } catch (const Error&) {
  }
  std::vector<std::byte> whole(bytes.begin(), bytes.end());
  seal_snapshot(whole);
  parts_read(whole);
  return 0;
}
