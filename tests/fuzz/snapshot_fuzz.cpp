// Any bytes as what stands between a snapshot's preamble and its pages: refused with an Error, or a
// tree that is sound. (Whole files are mutated in the tests of the engine.)
#include "dendrite/error.h"
#include "fuzz.h"
#include "io/snapshot_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dendrite;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const Snapshot snapshot = parse_snapshot(bytes, "x.snap");
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
  } catch (const Error&) {
  }
  return 0;
}
