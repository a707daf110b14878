#include "io/snapshot_format.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>
#include <vector>

#include "core/hash.h"
#include "dendrite/error.h"
#include "io/snapshot_file.h"

namespace dendrite {

std::uint64_t hash_of(const SnapshotPreamble& preamble) {
  return hash_bytes(std::as_bytes(std::span(&preamble, 1)).first(offsetof(SnapshotPreamble, hash)));
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string system_text(int error) {
  return std::generic_category().message(error);
}

SnapshotSizes check_preamble(const SnapshotPreamble& preamble, std::int64_t file_bytes,
                             const std::string& path) {
  if (std::memcmp(preamble.magic, kSnapshotMagic, sizeof kSnapshotMagic) != 0) {
    throw Error(path + ": is no snapshot: its first bytes are " +
                hex(std::bit_cast<std::uint64_t>(preamble.magic)) + ", expected " +
                hex(std::bit_cast<std::uint64_t>(kSnapshotMagic)));
  }
  if (preamble.version < kUnsaltedVersion || preamble.version > kSnapshotVersion) {
    throw Error(path + ": is a snapshot of format version " + std::to_string(preamble.version) +
                "; this program reads versions " + std::to_string(kUnsaltedVersion) + " to " +
                std::to_string(kSnapshotVersion));
  }
  if (preamble.hash != hash_of(preamble)) {
    throw Error(path + ": is damaged: the checksum of its first 64 bytes is " +
                hex(hash_of(preamble)) + ", expected " + hex(preamble.hash));
  }
  // The checksum is right, so what follows is either so or made to deceive.
  const auto limit = static_cast<std::uint64_t>(file_bytes);
  const bool fits = preamble.meta_bytes <= static_cast<std::uint64_t>(kMaxMetaBytes) &&
                    (preamble.meta_bytes + sizeof(SnapshotPreamble)) % kSnapshotAlign == 0 &&
                    preamble.page_bytes > 0 && preamble.zero == 0 &&
                    (preamble.state_bytes == 0 || preamble.version >= kUniformVersion) &&
                    preamble.state_bytes <= limit &&
                    preamble.page_bytes <= std::uint64_t{1} << 48 &&
                    preamble.pages <= std::numeric_limits<std::int32_t>::max();
  if (!fits) {
    throw Error(path +
                ": gives sizes that no snapshot has: " + std::to_string(preamble.meta_bytes) +
                " bytes of header, " + std::to_string(preamble.pages) + " pages of " +
                std::to_string(preamble.page_bytes) + " bytes, " +
                std::to_string(preamble.state_bytes) + " bytes of states");
  }
  const std::uint64_t rest = sizeof(SnapshotPreamble) + preamble.meta_bytes + preamble.state_bytes +
                             8 * (preamble.pages + state_blocks(preamble.state_bytes) + 1);
  const bool too_large = preamble.pages > 0 && preamble.page_bytes > limit / preamble.pages;
  if (too_large || rest + preamble.pages * preamble.page_bytes != limit) {
    throw Error(path + ": is " + std::to_string(file_bytes) + " bytes long; expected " +
                std::to_string(rest) + " and " + std::to_string(preamble.pages) + " pages of " +
                std::to_string(preamble.page_bytes) + " bytes (is it truncated?)");
  }
  SnapshotSizes sizes;
  sizes.pages = static_cast<std::int64_t>(preamble.pages);
  sizes.page_bytes = static_cast<std::int64_t>(preamble.page_bytes);
  sizes.pages_offset = kPreambleBytes + static_cast<std::int64_t>(preamble.meta_bytes);
  sizes.state_bytes = static_cast<std::int64_t>(preamble.state_bytes);
  sizes.file = file_bytes;
  return sizes;
}

void seal_snapshot(std::span<std::byte> file) {
  SnapshotPreamble preamble{};
  if (file.size() < sizeof preamble) return;
  std::memcpy(&preamble, file.data(), sizeof preamble);
  const std::span<std::byte> rest = file.subspan(sizeof preamble);
  if (preamble.meta_bytes <= rest.size()) {
    preamble.meta_hash = hash_bytes(rest.first(preamble.meta_bytes));
  }
  preamble.hash = hash_of(preamble);
  std::memcpy(file.data(), &preamble, sizeof preamble);
  const std::uint64_t before = sizeof preamble + preamble.meta_bytes;
  const std::uint64_t blocks = state_blocks(preamble.state_bytes);
  if (preamble.pages > file.size() || preamble.page_bytes > file.size() ||
      preamble.state_bytes > file.size() ||
      before + preamble.pages * (preamble.page_bytes + 8) + preamble.state_bytes + 8 * blocks + 8 !=
          file.size()) {
    return;
  }
  std::vector<std::uint64_t> checksums;
  for (std::uint64_t i = 0; i < preamble.pages; ++i) {
    checksums.push_back(
        hash_bytes(file.subspan(before + i * preamble.page_bytes, preamble.page_bytes)));
  }
  const std::span<std::byte> states =
      file.subspan(before + preamble.pages * preamble.page_bytes, preamble.state_bytes);
  for (std::size_t i = 0; i < states.size(); i += kStateBlock) {
    checksums.push_back(
        hash_bytes(states.subspan(i, std::min<std::size_t>(kStateBlock, states.size() - i))));
  }
  checksums.push_back(hash_bytes(std::as_bytes(std::span(checksums))));
  const auto bytes = std::as_bytes(std::span(checksums));
  std::memcpy(file.data() + file.size() - bytes.size(), bytes.data(), bytes.size());
}

}  // namespace dendrite
