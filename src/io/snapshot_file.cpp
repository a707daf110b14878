#include "io/snapshot_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>

#include "core/hash.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in the file are little-endian");

constexpr char kMagic[8] = {'\x89', 'D', 'N', 'D', 'R', '\r', '\n', '\x1a'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kAlign = 4096;  // where pages begin: what disks and page caches work in
constexpr std::int64_t kMaxMetaBytes = std::int64_t{1} << 30;
/// Bytes a read or write: large enough that a disk gives all it has.
constexpr std::int64_t kRunBytes = std::int64_t{8} << 20;
/// Counters beyond this are no counters; adding to those below cannot overflow.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 60;

struct Preamble {
  char magic[8];
  std::uint32_t version;
  std::uint32_t zero;
  std::uint64_t meta_bytes;  // up to the pages
  std::uint64_t page_bytes;
  std::uint64_t pages;
  std::uint64_t meta_hash;
  std::uint64_t zeros;
  std::uint64_t hash;  // of all above
};
static_assert(sizeof(Preamble) == 64 && std::is_trivially_copyable_v<Preamble>);
constexpr auto kPreambleBytes = static_cast<std::int64_t>(sizeof(Preamble));

std::uint64_t hash_of(const Preamble& preamble) {
  return hash_bytes(std::as_bytes(std::span(&preamble, 1)).first(offsetof(Preamble, hash)));
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string system_text(int error) {
  return std::generic_category().message(error);
}

// --- what stands between preamble and pages

/// One order of fields for both ways: Encoder appends them, Decoder fills them in.
class Encoder {
 public:
  template <typename T>
  void number(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  void text(const std::string& value) { array(value); }
  template <typename Array>
  void array(const Array& values) {
    number(static_cast<std::uint64_t>(values.size()));
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <typename T, typename Fields>
  void list(const std::vector<T>& values, Fields fields) {
    number(static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) fields(*this, value);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Decoder {
 public:
  Decoder(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <typename T>
  void number(T& value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    copy(&value, sizeof value);
  }
  void text(std::string& value) { array(value); }
  template <typename Array>
  void array(Array& values) {
    constexpr std::size_t size = sizeof(values[0]);
    const std::uint64_t count = this->count(size);
    values.resize(count);
    if (count > 0) copy(values.data(), count * size);
  }
  template <typename T, typename Fields>
  void list(std::vector<T>& values, Fields fields) {
    const std::uint64_t count = this->count(1);
    // Grown as records are read, so that a wrong count cannot ask for more memory than the file
    // has.
    for (std::uint64_t i = 0; i < count; ++i) fields(*this, values.emplace_back());
  }
  /// Only zeros may follow.
  void finish() const {
    if (std::ranges::any_of(bytes_, [](std::byte b) { return b != std::byte{0}; })) {
      throw Error(path_ + ": something follows the last record of its header; expected zeros");
    }
  }

 private:
  std::uint64_t count(std::size_t size) {
    std::uint64_t count = 0;
    number(count);
    if (count > bytes_.size() / size) {
      throw Error(path_ + ": a list in its header has " + std::to_string(count) +
                  " entries; expected at most " + std::to_string(bytes_.size() / size) +
                  ", which is what the header has room for");
    }
    return count;
  }
  void copy(void* to, std::size_t size) {
    if (size > bytes_.size()) {
      throw Error(path_ + ": its header ends early: " + std::to_string(bytes_.size()) +
                  " bytes left; expected at least " + std::to_string(size));
    }
    std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
  const std::string& path_;
};

/// A flag or enumerator, as one byte that `check` looks at before it becomes one.
template <typename Coder, typename T>
void small(Coder& c, T& value) {
  auto byte = static_cast<std::uint8_t>(value);
  c.number(byte);
  if constexpr (std::is_same_v<Coder, Decoder>) {
    if constexpr (std::is_same_v<T, bool>) {
      value = byte != 0;
    } else {
      value = static_cast<T>(byte);
    }
  }
}

/// The record of a branch. A new field of BranchState goes here, and kVersion up by one.
template <typename Coder, typename Branch>
void branch_fields(Coder& c, Branch& b) {
  c.number(b.id);
  c.number(b.parent);
  c.number(b.stream);
  c.number(b.forks_made);
  c.number(b.prompt_length);
  c.number(b.independent_tokens);
  c.number(b.logprob);
  c.number(b.priority);
  c.number(b.finish);
}

template <typename Coder, typename Segment>
void segment_fields(Coder& c, Segment& s) {
  c.number(s.parent);
  c.number(s.tokens);
  c.number(s.computed);
  small(c, s.shares_head);
}

template <typename Coder, typename SnapshotType>
void fields(Coder& c, SnapshotType& s) {
  c.number(s.model);
  c.text(s.model_text);
  c.text(s.numerics_key);
  c.number(s.vocab);
  c.number(s.layers);
  c.number(s.kv_heads);
  c.number(s.head_dim);
  c.number(s.page_tokens);
  small(c, s.dtype);

  c.number(s.session.seed);
  c.number(s.session.budget_tokens);
  c.number(s.session.budget_ms);
  c.number(s.session.spent_ms);
  c.number(s.session.next_id);
  c.number(s.session.prompts);
  c.array(s.session.counters);

  c.list(s.tree.segments, [](auto& coder, auto& value) { segment_fields(coder, value); });
  c.array(s.tree.tokens);
  c.array(s.tree.tips);
  c.list(s.branches, [](auto& coder, auto& value) { branch_fields(coder, value); });
}

/// What is wrong with a snapshot from outside, "" if nothing.
std::string problem_of(const Snapshot& s) {
  const auto outside = [](const char* name, std::int64_t value, std::int64_t low,
                          std::int64_t high) {
    if (value >= low && value <= high) return std::string();
    return std::string(name) + " is " + std::to_string(value) + "; expected " +
           std::to_string(low) + " to " + std::to_string(high);
  };
  std::string problem;
  const auto check = [&](const char* name, std::int64_t value, std::int64_t low,
                         std::int64_t high) {
    if (problem.empty()) problem = outside(name, value, low, high);
  };
  // Small enough that page_bytes() cannot overflow.
  check("vocab", s.vocab, 1, std::numeric_limits<Token>::max());
  check("layers", s.layers, 1, 1 << 14);
  check("kv_heads", s.kv_heads, 1, 1 << 14);
  check("head_dim", s.head_dim, 1, 1 << 14);
  if (problem.empty() && s.page_tokens != 8 && s.page_tokens != 16 && s.page_tokens != 32) {
    problem = "page_tokens is " + std::to_string(s.page_tokens) + "; expected 8, 16 or 32";
  }
  check("the K and V type", static_cast<std::int64_t>(s.dtype), 0, 2);
  check("the budget in tokens", s.session.budget_tokens, 0, kMaxCount);
  for (const std::int64_t counter : s.session.counters) {
    check("a counter", counter, 0, kMaxCount);
  }
  if (problem.empty() && !(std::isfinite(s.session.budget_ms) && s.session.budget_ms >= 0 &&
                           std::isfinite(s.session.spent_ms) && s.session.spent_ms >= 0)) {
    problem = "a time is " + std::to_string(s.session.budget_ms) + " or " +
              std::to_string(s.session.spent_ms) + " ms; expected finite numbers >= 0";
  }
  if (!problem.empty()) return problem;
  if (problem = problem_of(s.tree, s.page_tokens); !problem.empty()) return problem;
  if (!s.tree.tokens.empty()) {
    const auto [lowest, highest] = std::ranges::minmax(s.tree.tokens);
    check("a token id", lowest, 0, s.vocab - 1);
    check("a token id", highest, 0, s.vocab - 1);
  }
  if (s.branches.size() != s.tree.tips.size()) {
    return "there are " + std::to_string(s.branches.size()) + " branches; expected " +
           std::to_string(s.tree.tips.size()) + ", one a tip";
  }
  const std::vector<std::int64_t> ends = segment_ends(s.tree);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < s.branches.size(); ++i) {
    const Snapshot::Branch& b = s.branches[i];
    check("a prompt's length", b.prompt_length, 0, ends[static_cast<std::size_t>(s.tree.tips[i])]);
    check("a branch's count of tokens", b.independent_tokens, 0, kMaxCount);
    check("a branch's finish", b.finish, 0, 5);
    if (b.id == 0 || b.id >= s.session.next_id) {
      return "a branch's id is " + std::to_string(b.id) + "; expected 1 to " +
             std::to_string(s.session.next_id - 1);
    }
    if (std::isnan(b.logprob)) return "a branch's log-prob is NaN; expected a number";
    ids.push_back(b.id);
  }
  std::ranges::sort(ids);
  if (problem.empty() && std::ranges::adjacent_find(ids) != ids.end()) {
    problem = "two branches have the same id; expected one each";
  }
  return problem;
}

// --- files

/// An open file; what fails names it.
class File {
 public:
  File(std::string path, int flags) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("cannot open");
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  [[noreturn]] void fail(const char* what) const {
    const int error = errno;
    throw Error(path_ + ": " + what + ": " + system_text(error));
  }

  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t wrote = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail("cannot write");
      offset += wrote;
      bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
};

/// FILE.partial, locked by this process. Removed with the object unless it became the file.
class PartialFile {
 public:
  explicit PartialFile(const std::filesystem::path& file) : target_(file) {
    for (;;) {
      file_ = std::make_unique<File>(file.string() + ".partial", O_RDWR | O_CREAT);
      if (::flock(file_->fd(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) file_->fail("cannot lock");
        throw Error(file_->path() +
                    ": another save to this file is under way; expected one at a "
                    "time");
      }
      // Between open and lock another saver may have made it the target, or removed it.
      struct stat ours {
      }, named{};
      if (::fstat(file_->fd(), &ours) != 0) file_->fail("cannot look at it");
      if (!S_ISREG(ours.st_mode)) {
        throw Error(file_->path() + ": is not a regular file; expected one, or none");
      }
      const bool is_there = ::stat(file_->path().c_str(), &named) == 0;
      if (is_there && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) break;
    }
    armed_ = true;
    if (::ftruncate(file_->fd(), 0) != 0) file_->fail("cannot be emptied");
  }
  ~PartialFile() {
    if (armed_) ::unlink(file_->path().c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const File& file() const { return *file_; }

  /// Puts all bytes on the disk, then the name.
  void become_target() {
    if (::fsync(file_->fd()) != 0) file_->fail("cannot be brought to the disk");
    if (::rename(file_->path().c_str(), target_.c_str()) != 0) {
      throw Error(target_.string() + ": cannot be replaced: " + system_text(errno));
    }
    armed_ = false;
    const std::filesystem::path folder = target_.parent_path();
    const File directory(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
    if (::fsync(directory.fd()) != 0) directory.fail("cannot be brought to the disk");
  }

 private:
  std::filesystem::path target_;
  std::unique_ptr<File> file_;
  bool armed_ = false;
};

/// A second way into a file that is written: past the page cache, so that a snapshot takes no
/// memory from what is in there, and no time for copies. (Reading is faster through it: the system
/// reads ahead while pages are checked and imported.) What cannot go that way (a file system
/// without it, bytes that lie across its blocks) goes through the cache.
class DirectFile {
 public:
  explicit DirectFile(const std::string& path)
      : fd_(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)) {}
  ~DirectFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  /// Writes from the front as far as it goes, and returns how far; the ordinary way goes on from
  /// there. Requires: the bytes' address is a multiple of kAlign.
  std::int64_t write(std::int64_t offset, std::span<const std::byte> bytes) const {
    std::int64_t done = 0;
    if (fd_ < 0 || offset % kAlign != 0) return done;
    while (std::ssize(bytes) - done >= kAlign) {
      const std::int64_t count = (std::ssize(bytes) - done) / kAlign * kAlign;
      const ssize_t written =
          ::pwrite(fd_, bytes.data() + done, static_cast<std::size_t>(count), offset + done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      done += written;
      if (written % kAlign != 0) break;
    }
    return done;
  }

 private:
  int fd_;
};

struct Free {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

Buffer make_buffer(std::int64_t size_bytes) {
  const std::int64_t rounded = (size_bytes + kAlign - 1) / kAlign * kAlign;
  Buffer buffer(
      static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<std::size_t>(rounded))));
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}

/// The pages of a file cut into runs of kRunBytes, of which kSlots are in memory at a time: some on
/// their way to or from the disk, while one is filled or taken.
class Runs {
 public:
  static constexpr std::int64_t kSlots = 3;

  struct Slot {
    Buffer buffer;
    std::future<void> done{};  // waits when it is destroyed, before the buffer is
  };

  Runs(std::int64_t page_bytes, std::int64_t all_pages)
      : page_bytes_(page_bytes),
        all_pages_(all_pages),
        pages_(std::clamp<std::int64_t>(kRunBytes / page_bytes, 1,
                                        std::max<std::int64_t>(all_pages, 1))) {
    for (std::int64_t i = 0; i < std::min(kSlots, count()); ++i) {
      slots_.push_back({make_buffer(pages_ * page_bytes)});
    }
  }

  std::int64_t count() const { return (all_pages_ + pages_ - 1) / pages_; }
  std::int64_t pages() const { return pages_; }  // of a run
  std::int64_t pages_of(std::int64_t run) const {
    return std::min(pages_, all_pages_ - run * pages_);
  }
  Slot& slot(std::int64_t run) { return slots_[static_cast<std::size_t>(run % kSlots)]; }
  std::span<std::byte> bytes(std::int64_t run) {
    return {slot(run).buffer.get(), static_cast<std::size_t>(pages_of(run) * page_bytes_)};
  }
  std::span<std::byte> page(std::int64_t run, std::int64_t index) {
    return bytes(run).subspan(static_cast<std::size_t>(index * page_bytes_),
                              static_cast<std::size_t>(page_bytes_));
  }
  void wait() {
    for (Slot& slot : slots_) {
      if (slot.done.valid()) slot.done.get();
    }
  }

 private:
  std::int64_t page_bytes_;
  std::int64_t all_pages_;
  std::int64_t pages_;
  std::vector<Slot> slots_;
};

/// What is known once the preamble has been checked against the file's size.
struct Sizes {
  std::int64_t pages = 0;
  std::int64_t page_bytes = 0;
  std::int64_t pages_offset = 0;
  std::int64_t file = 0;
};

Sizes check_preamble(const Preamble& preamble, std::int64_t file_bytes, const std::string& path) {
  if (std::memcmp(preamble.magic, kMagic, sizeof kMagic) != 0) {
    throw Error(path + ": is no snapshot: its first bytes are " +
                hex(std::bit_cast<std::uint64_t>(preamble.magic)) + ", expected " +
                hex(std::bit_cast<std::uint64_t>(kMagic)));
  }
  if (preamble.version != kVersion) {
    throw Error(path + ": is a snapshot of format version " + std::to_string(preamble.version) +
                "; this program reads version " + std::to_string(kVersion));
  }
  if (preamble.hash != hash_of(preamble)) {
    throw Error(path + ": is damaged: the checksum of its first 64 bytes is " +
                hex(hash_of(preamble)) + ", expected " + hex(preamble.hash));
  }
  // The checksum is right, so what follows is either so or made to deceive.
  const auto limit = static_cast<std::uint64_t>(file_bytes);
  const bool fits = preamble.meta_bytes <= static_cast<std::uint64_t>(kMaxMetaBytes) &&
                    (preamble.meta_bytes + sizeof(Preamble)) % kAlign == 0 &&
                    preamble.page_bytes > 0 && preamble.zero == 0 && preamble.zeros == 0 &&
                    preamble.page_bytes <= std::uint64_t{1} << 48 &&
                    preamble.pages <= std::numeric_limits<std::int32_t>::max();
  if (!fits) {
    throw Error(path +
                ": gives sizes that no snapshot has: " + std::to_string(preamble.meta_bytes) +
                " bytes of header, " + std::to_string(preamble.pages) + " pages of " +
                std::to_string(preamble.page_bytes) + " bytes");
  }
  const std::uint64_t rest = sizeof(Preamble) + preamble.meta_bytes + 8 * (preamble.pages + 1);
  const bool too_large = preamble.pages > 0 && preamble.page_bytes > limit / preamble.pages;
  if (too_large || rest + preamble.pages * preamble.page_bytes != limit) {
    throw Error(path + ": is " + std::to_string(file_bytes) + " bytes long; expected " +
                std::to_string(rest) + " and " + std::to_string(preamble.pages) + " pages of " +
                std::to_string(preamble.page_bytes) + " bytes (is it truncated?)");
  }
  Sizes sizes;
  sizes.pages = static_cast<std::int64_t>(preamble.pages);
  sizes.page_bytes = static_cast<std::int64_t>(preamble.page_bytes);
  sizes.pages_offset = kPreambleBytes + static_cast<std::int64_t>(preamble.meta_bytes);
  sizes.file = file_bytes;
  return sizes;
}

}  // namespace

Snapshot parse_snapshot(std::span<const std::byte> meta, const std::string& path) {
  Snapshot snapshot;
  Decoder decoder(meta, path);
  fields(decoder, snapshot);
  decoder.finish();
  if (const std::string problem = problem_of(snapshot); !problem.empty()) {
    throw Error(path + ": is no sound snapshot: " + problem);
  }
  return snapshot;
}

std::vector<std::byte> encode_snapshot(const Snapshot& snapshot) {
  Encoder encoder;
  fields(encoder, snapshot);
  return encoder.take();
}

void write_snapshot(const std::filesystem::path& file, const Snapshot& snapshot,
                    const ThreadPool& pool, const FillPage& fill) {
  PartialFile partial(file);
  const std::string& path = partial.file().path();

  std::vector<std::byte> head = encode_snapshot(snapshot);
  head.insert(head.begin(), sizeof(Preamble), std::byte{0});
  const auto head_bytes = (std::ssize(head) + kAlign - 1) / kAlign * kAlign;
  head.resize(static_cast<std::size_t>(head_bytes));
  if (head_bytes - kPreambleBytes > kMaxMetaBytes) {
    throw Error(path + ": would have " + std::to_string(head_bytes) +
                " bytes of tokens and records; expected at most " + std::to_string(kMaxMetaBytes));
  }
  const std::int64_t page_bytes = snapshot.page_bytes();
  const std::int64_t pages = page_count(snapshot.tree, snapshot.page_tokens);
  Preamble preamble{};
  std::memcpy(preamble.magic, kMagic, sizeof kMagic);
  preamble.version = kVersion;
  preamble.meta_bytes = static_cast<std::uint64_t>(head_bytes - kPreambleBytes);
  preamble.page_bytes = static_cast<std::uint64_t>(page_bytes);
  preamble.pages = static_cast<std::uint64_t>(pages);
  preamble.meta_hash = hash_bytes(std::span(head).subspan(sizeof(Preamble)));
  preamble.hash = hash_of(preamble);
  std::memcpy(head.data(), &preamble, sizeof preamble);
  partial.file().write_at(0, head);

  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(pages) + 1);
  const DirectFile direct(path);
  Runs runs(page_bytes, pages);
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    Runs::Slot& slot = runs.slot(i);
    if (slot.done.valid()) slot.done.get();
    const std::int64_t first = i * runs.pages();
    pool.parallel_for(runs.pages_of(i), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::span<std::byte> page = runs.page(i, at);
        fill(first + at, page);
        checksums[static_cast<std::size_t>(first + at)] = hash_bytes(page);
      }
    });
    const std::span<const std::byte> bytes = runs.bytes(i);
    const std::int64_t offset = head_bytes + first * page_bytes;
    slot.done = std::async(std::launch::async, [&partial, &direct, bytes, offset] {
      const std::int64_t done = direct.write(offset, bytes);
      partial.file().write_at(offset + done, bytes.subspan(static_cast<std::size_t>(done)));
      // Where it went through the cache: the disk starts now, not when all has been written.
      ::sync_file_range(partial.file().fd(), offset + done, std::ssize(bytes) - done,
                        SYNC_FILE_RANGE_WRITE);
    });
  }
  runs.wait();
  checksums.back() = hash_bytes(std::as_bytes(std::span(checksums).first(checksums.size() - 1)));
  partial.file().write_at(head_bytes + pages * page_bytes, std::as_bytes(std::span(checksums)));
  partial.become_target();
}

SnapshotReader::SnapshotReader(const std::filesystem::path& file) : path_(file.string()) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it means nothing for regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw Error(path_ + ": cannot open: " + system_text(errno));
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) {
      throw Error(path_ + ": cannot read its size: " + system_text(errno));
    }
    if (!S_ISREG(status.st_mode)) throw Error(path_ + ": is not a regular file");
    if (status.st_size < kPreambleBytes) {
      throw Error(path_ + ": is " + std::to_string(status.st_size) +
                  " bytes long; a snapshot has at least " + std::to_string(kPreambleBytes));
    }
    Preamble preamble{};
    read_at(0, std::as_writable_bytes(std::span(&preamble, 1)));
    const Sizes sizes = check_preamble(preamble, status.st_size, path_);
    std::vector<std::byte> meta(preamble.meta_bytes);
    read_at(kPreambleBytes, meta);
    if (const std::uint64_t hash = hash_bytes(meta); hash != preamble.meta_hash) {
      throw Error(path_ + ": is damaged: the checksum of its header is " + hex(hash) +
                  ", expected " + hex(preamble.meta_hash));
    }
    snapshot_ = parse_snapshot(meta, path_);
    pages_ = page_count(snapshot_.tree, snapshot_.page_tokens);
    pages_offset_ = sizes.pages_offset;
    if (pages_ != sizes.pages || snapshot_.page_bytes() != sizes.page_bytes) {
      throw Error(path_ + ": holds " + std::to_string(sizes.pages) + " pages of " +
                  std::to_string(sizes.page_bytes) + " bytes; expected " + std::to_string(pages_) +
                  " of " + std::to_string(snapshot_.page_bytes()) + ", which its tree needs");
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SnapshotReader::~SnapshotReader() {
  ::close(fd_);
}

void SnapshotReader::read_at(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(path_ + ": cannot read: " + system_text(errno));
    if (got == 0) {
      throw Error(path_ + ": ends at byte " + std::to_string(offset) + "; expected " +
                  std::to_string(out.size()) + " more (it became shorter meanwhile)");
    }
    offset += got;
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::uint64_t> SnapshotReader::read_checksums() const {
  std::vector<std::uint64_t> checksums(static_cast<std::size_t>(pages_) + 1);
  read_at(pages_offset_ + pages_ * snapshot_.page_bytes(),
          std::as_writable_bytes(std::span(checksums)));
  const std::uint64_t hash =
      hash_bytes(std::as_bytes(std::span(checksums).first(checksums.size() - 1)));
  if (hash != checksums.back()) {
    throw Error(path_ + ": is damaged: the checksum of its list of checksums is " + hex(hash) +
                ", expected " + hex(checksums.back()));
  }
  return checksums;
}

void SnapshotReader::read_pages(const ThreadPool& pool, const TakePage& take) const {
  const std::vector<std::uint64_t> checksums = read_checksums();
  const std::int64_t page_bytes = snapshot_.page_bytes();
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  Runs runs(page_bytes, pages_);
  const auto start = [&](std::int64_t i) {
    if (i >= runs.count()) return;
    const std::span<std::byte> bytes = runs.bytes(i);
    const std::int64_t offset = pages_offset_ + i * runs.pages() * page_bytes;
    runs.slot(i).done =
        std::async(std::launch::async, [this, bytes, offset] { read_at(offset, bytes); });
  };
  for (std::int64_t i = 0; i < Runs::kSlots; ++i) start(i);
  for (std::int64_t i = 0; i < runs.count(); ++i) {
    runs.slot(i).done.get();
    const std::int64_t first = i * runs.pages();
    std::atomic<std::int64_t> damaged = pages_;
    pool.parallel_for(runs.pages_of(i), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t at = begin; at < end; ++at) {
        const std::span<const std::byte> page = runs.page(i, at);
        if (hash_bytes(page) == checksums[static_cast<std::size_t>(first + at)]) {
          take(first + at, page);
          continue;
        }
        std::int64_t seen = damaged;
        while (first + at < seen && !damaged.compare_exchange_weak(seen, first + at)) {
        }
      }
    });
    if (damaged < pages_) {
      throw Error(path_ + ": is damaged: the checksum of page " + std::to_string(damaged) + " of " +
                  std::to_string(pages_) + " is not the one it was saved with");
    }
    start(i + Runs::kSlots);
  }
}

void seal_snapshot(std::span<std::byte> file) {
  Preamble preamble{};
  if (file.size() < sizeof preamble) return;
  std::memcpy(&preamble, file.data(), sizeof preamble);
  const std::span<std::byte> rest = file.subspan(sizeof preamble);
  if (preamble.meta_bytes <= rest.size()) {
    preamble.meta_hash = hash_bytes(rest.first(preamble.meta_bytes));
  }
  preamble.hash = hash_of(preamble);
  std::memcpy(file.data(), &preamble, sizeof preamble);
  const std::uint64_t before = sizeof preamble + preamble.meta_bytes;
  if (preamble.pages > file.size() || preamble.page_bytes > file.size() ||
      before + preamble.pages * (preamble.page_bytes + 8) + 8 != file.size()) {
    return;
  }
  std::vector<std::uint64_t> checksums;
  for (std::uint64_t i = 0; i < preamble.pages; ++i) {
    checksums.push_back(
        hash_bytes(file.subspan(before + i * preamble.page_bytes, preamble.page_bytes)));
  }
  checksums.push_back(hash_bytes(std::as_bytes(std::span(checksums))));
  const auto bytes = std::as_bytes(std::span(checksums));
  std::memcpy(file.data() + file.size() - bytes.size(), bytes.data(), bytes.size());
}

}  // namespace dendrite
