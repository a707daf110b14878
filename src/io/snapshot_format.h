#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

// The parts of docs/formats/snapshot.md that both writing and reading need. Internal to
// snapshot_*.cpp.
namespace dendrite {

constexpr char kSnapshotMagic[8] = {'\x89', 'D', 'N', 'D', 'R', '\r', '\n', '\x1a'};
constexpr std::uint32_t kSnapshotVersion = 9;
/// What is written where pages hold V beside K, ...
constexpr std::uint32_t kValuesVersion = 8;
/// ... where all layers have them of one size, too, ...
constexpr std::uint32_t kUniformVersion = 7;
/// ... where there are no states of recurrent layers, either, ...
constexpr std::uint32_t kStatelessVersion = 6;
/// ... and where nothing has a salt. All are read like the newest.
constexpr std::uint32_t kUnsaltedVersion = 5;
/// Where pages begin: what disks and page caches work in.
constexpr std::int64_t kSnapshotAlign = 4096;
constexpr std::int64_t kMaxMetaBytes = std::int64_t{1} << 30;
/// Bytes of states that a checksum is of, the last ones maybe fewer.
constexpr std::int64_t kStateBlock = std::int64_t{1} << 20;
/// Those blocks.
template <typename Bytes>
constexpr Bytes state_blocks(Bytes bytes) {
  return bytes / static_cast<Bytes>(kStateBlock) +
         (bytes % static_cast<Bytes>(kStateBlock) == 0 ? 0 : 1);
}

struct SnapshotPreamble {
  char magic[8];
  std::uint32_t version;
  std::uint32_t zero;
  std::uint64_t meta_bytes;  // up to the pages
  std::uint64_t page_bytes;
  std::uint64_t pages;
  std::uint64_t meta_hash;
  std::uint64_t state_bytes;
  std::uint64_t hash;  // of all above
};
static_assert(sizeof(SnapshotPreamble) == 64 && std::is_trivially_copyable_v<SnapshotPreamble>);
constexpr auto kPreambleBytes = static_cast<std::int64_t>(sizeof(SnapshotPreamble));

std::uint64_t hash_of(const SnapshotPreamble& preamble);

/// What is known once the preamble has been checked against the file's size.
struct SnapshotSizes {
  std::int64_t pages = 0;
  std::int64_t page_bytes = 0;
  std::int64_t pages_offset = 0;
  std::int64_t state_bytes = 0;
  std::int64_t file = 0;
};

/// Throws Error naming `path` if no snapshot of `file_bytes` bytes begins like this.
SnapshotSizes check_preamble(const SnapshotPreamble& preamble, std::int64_t file_bytes,
                             const std::string& path);

/// For messages.
std::string hex(std::uint64_t value);
std::string system_text(int error);

}  // namespace dendrite
