#include "kv/kv_debug.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "kv/kv_tree.h"

namespace dendrite {
namespace {

constexpr std::uint64_t kCanary = 0xDEADBEEFCAFEBABE;
constexpr std::uint64_t kFree = 0xDEADBEEFDEADBEEF;

// Bands and pages are whole numbers of 8 bytes.
void fill_words(std::span<std::byte> memory, std::uint64_t pattern) {
  for (std::size_t i = 0; i < memory.size(); i += 8) std::memcpy(&memory[i], &pattern, 8);
}

/// Offset of the first byte that is not the pattern's, -1: all are.
std::int64_t find_other(std::span<const std::byte> memory, std::uint64_t pattern) {
  std::byte expected[8];
  std::memcpy(expected, &pattern, 8);
  for (std::size_t i = 0; i < memory.size(); i += 8) {
    if (std::memcmp(memory.data() + i, expected, 8) == 0) continue;
    std::size_t at = i;
    while (memory[at] == expected[at - i]) ++at;
    return static_cast<std::int64_t>(at);
  }
  return -1;
}

}  // namespace

KvDebug::KvDebug(KvStore& store, OnViolation on_violation)
    : on_violation_(std::move(on_violation)),
      pages_(static_cast<std::size_t>(store.shape().pages)),
      full_now_(pages_.size()) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < (store.shape().wide.layers > 0 ? 2 : 1); ++i) {
    parts_.push_back({&store.part(i), store.part(i).raw_layout(), bytes});
    bytes += parts_.back().layout.page_bytes();
  }
  memory_.resize(static_cast<std::size_t>(bytes));
}

void KvDebug::read(PageId page) {
  for (const Part& part : parts_) {
    part.store->read_raw(index_of(page), std::span(memory_).subspan(
                                             static_cast<std::size_t>(part.begin),
                                             static_cast<std::size_t>(part.layout.page_bytes())));
  }
}

void KvDebug::write(PageId page) {
  for (const Part& part : parts_) {
    part.store->write_raw(index_of(page), std::span(memory_).subspan(
                                              static_cast<std::size_t>(part.begin),
                                              static_cast<std::size_t>(part.layout.page_bytes())));
  }
}

template <typename F>
void KvDebug::for_pieces(Band band, F f) {
  std::int64_t offset = 0;
  for (const Part& part : parts_) {
    const KvStore::RawLayout& layout = part.layout;
    const std::int64_t begin = band == Band::kBefore ? 0
                               : band == Band::kPage ? layout.before
                                                     : layout.before + layout.bytes;
    const std::int64_t bytes = band == Band::kBefore ? layout.before
                               : band == Band::kPage ? layout.bytes
                                                     : layout.after;
    for (std::int64_t piece = 0; piece < layout.parts; ++piece, offset += bytes) {
      const std::int64_t at = part.begin + piece * layout.part_bytes() + begin;
      f(std::span(memory_).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)),
        offset);
    }
  }
}

void KvDebug::fill(Band band, std::uint64_t pattern) {
  for_pieces(band, [&](std::span<std::byte> bytes, std::int64_t) { fill_words(bytes, pattern); });
}

/// Any flipped byte changes it: each word goes through a bijection of the state so far.
std::uint64_t KvDebug::checksum() {
  std::uint64_t sum = 0x243F6A8885A308D3;
  for_pieces(Band::kPage, [&](std::span<const std::byte> bytes, std::int64_t) {
    for (std::size_t i = 0; i < bytes.size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      sum = (sum ^ word) * 0x9E3779B97F4A7C15;
      sum ^= sum >> 32;
    }
  });
  return sum;
}

void KvDebug::acquired(PageId page) {
  Page& state = this->state(page);
  if (!state.known) {
    read(page);
    fill(Band::kBefore, kCanary);
    fill(Band::kAfter, kCanary);
    write(page);
    state.known = true;
  }
  check_page(page);
  state.filled = false;
}

void KvDebug::released(PageId page) {
  check_page(page);
  Page& state = this->state(page);
  state.full = false;
  state.filled = true;
  fill(Band::kPage, kFree);
  write(page);
}

void KvDebug::check_write(const KvTree& tree, std::int64_t slot) const {
  if (slot < 0) return;
  const auto page = static_cast<PageId>(slot / tree.page_tokens());
  if (tree.pool().holders(page) != 1) {
    fail(page, "is about to be written to, but has " + std::to_string(tree.pool().holders(page)) +
                   " holders, expected 1");
  }
  if (pages_[static_cast<std::size_t>(index_of(page))].full) {
    fail(page, "is about to be written to, but is full: all of its positions are computed");
  }
}

void KvDebug::check(const KvTree& tree, std::span<const Tip* const> tips) {
  try {
    tree.check_invariants(tips);
  } catch (const std::logic_error& violation) {
    fail(violation.what());
  }
  update_full(tree);
  const auto size = static_cast<std::int32_t>(pages_.size());
  std::int64_t budget = kBytesAtOnce;
  for (std::int32_t i = 0; i < size && budget > 0; ++i) {
    const auto page = static_cast<PageId>(next_);
    next_ = next_ + 1 < size ? next_ + 1 : 0;
    if (!state(page).known) continue;
    check_page(page);
    budget -= std::ssize(memory_);
  }
}

void KvDebug::check_memory() {
  for (std::size_t i = 0; i < pages_.size(); ++i) check_page(static_cast<PageId>(i));
}

/// A page is full while some segment that holds it has computed all of its positions. Such a page
/// stops to be full when that segment goes: after a rewind, the last holder writes on in it.
void KvDebug::update_full(const KvTree& tree) {
  const std::int64_t page_tokens = tree.page_tokens();
  full_now_.assign(pages_.size(), false);
  tree.for_each_segment([&](const Segment& segment) {
    if (segment.computed == segment.begin) return;
    const std::int64_t full = segment.computed / page_tokens - segment.begin / page_tokens;
    for (std::int64_t i = 0; i < full; ++i) {
      full_now_[static_cast<std::size_t>(index_of(segment.page(i)))] = true;
    }
  });
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (full_now_[i] && !pages_[i].full) {
      read(static_cast<PageId>(i));
      pages_[i].checksum = checksum();
    }
    pages_[i].full = full_now_[i];
  }
}

void KvDebug::check_page(PageId page) {
  const Page& state = this->state(page);
  if (!state.known) return;
  read(page);
  for_pieces(Band::kBefore, [&](std::span<const std::byte> bytes, std::int64_t) {
    if (const std::int64_t at = find_other(bytes, kCanary); at >= 0) {
      fail(page, "was written to " + std::to_string(std::ssize(bytes) - at) +
                     " bytes before its begin: a canary is broken");
    }
  });
  for_pieces(Band::kAfter, [&](std::span<const std::byte> bytes, std::int64_t) {
    if (const std::int64_t at = find_other(bytes, kCanary); at >= 0) {
      fail(page, "was written to " + std::to_string(at) +
                     " bytes past its end: a canary or guard is broken");
    }
  });
  if (state.filled) {
    for_pieces(Band::kPage, [&](std::span<const std::byte> bytes, std::int64_t offset) {
      if (const std::int64_t at = find_other(bytes, kFree); at >= 0) {
        fail(page, "was written to at byte " + std::to_string(offset + at) + " while it was free");
      }
    });
  }
  if (state.full && checksum() != state.checksum) {
    fail(page, "was changed although it is full: its checksum differs");
  }
}

void KvDebug::fail(PageId page, const std::string& what) const {
  std::string text = "KvDebug: page ";
  text.append(std::to_string(index_of(page))).append(" ").append(what);
  fail(text);
}

void KvDebug::fail(const std::string& what) const {
  if (on_violation_) on_violation_(what);
  throw std::logic_error(what);
}

void abort_with_dump(const std::string& what, const KvTree& tree) {
  std::string text = "dendrite: DENDRITE_KV_DEBUG found a violation\n";
  text.append(what).append("\n");
  if (what.find("KvTree: ") != 0) text += tree.dump();  // the tree's own tell it already
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace dendrite
