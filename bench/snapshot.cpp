#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "backend/cpu/memory.h"
#include "engine/branches/branch_state.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "engine/branches/session_core.h"
#include "machine.h"
#include "models.h"
#include "options.h"
#include "tests/support/temporary_folder.h"

// snapshot: a tree saved to a file and restored, in turns with a plain sequential write (and fsync)
// of as many bytes in the same folder and a plain cold read of the same file. K and V are random
// bits that nobody computed: what is measured is moving them. Where memory is touched for the first
// time the system has to find it first, which may take longer than the disk does (on a virtual
// machine, several times as long): rows with memory=fresh, on both sides. The others use memory
// that was used before.

namespace dendrite::bench {
namespace {

namespace fs = std::filesystem;

struct SnapshotOptions {
  CommonOptions common;
  std::int64_t megabytes = 512;
  std::string folder;
  int trials = 5;
};

constexpr std::size_t kPlainBytes = std::size_t{8} << 20;  // a write or read of the plain side

int open_or_throw(const fs::path& file, int flags) {
  const int fd = open(file.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(file.string() + ": cannot be opened; expected a writable folder");
  return fd;
}

double plain_write_seconds(const fs::path& file, std::int64_t bytes,
                           std::span<const std::byte> data) {
  const double begin = now_seconds();
  const int fd = open_or_throw(file, O_WRONLY | O_CREAT | O_TRUNC);
  for (std::int64_t left = bytes; left > 0;) {
    const ssize_t wrote = write(fd, data.data(), std::min<std::size_t>(data.size(), left));
    if (wrote <= 0) throw Error(file.string() + ": cannot be written; expected room on the disk");
    left -= wrote;
  }
  fsync(fd);
  close(fd);
  return now_seconds() - begin;
}

/// Into one buffer again and again, or into as much new memory as the file is long.
double plain_read_seconds(const fs::path& file, std::span<std::byte> data,
                          std::int64_t fresh_bytes) {
  const double begin = now_seconds();
  const cpu::Memory fresh(fresh_bytes);
  const int fd = open_or_throw(file, O_RDONLY);
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  std::int64_t at = 0;
  for (ssize_t got = 1; got > 0; at += got) {
    if (fresh_bytes == 0) {
      got = read(fd, data.data(), data.size());
    } else {
      const auto left = static_cast<std::size_t>(fresh_bytes - at);
      got = read(fd, fresh.data() + at, std::min(left, data.size()));
    }
  }
  close(fd);
  return now_seconds() - begin;
}

/// Asks the kernel to forget the file's pages, which must be on the disk.
void drop_from_page_cache(const fs::path& file) {
  const int fd = open_or_throw(file, O_RDONLY);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
}

class SnapshotBench {
 public:
  explicit SnapshotBench(const SnapshotOptions& options)
      : options_(options),
        engine_(load(options)),
        session_(engine_, {.seed = 1}),
        data_(kPlainBytes) {
    const std::vector<Token> random =
        random_tokens(static_cast<std::int64_t>(kPlainBytes / 4), 1 << 30, 7);
    std::memcpy(data_.data(), random.data(), kPlainBytes);
    report_.describe(engine_, options.common.model_name());
  }

  void run() {
    grow();
    const fs::path folder = options_.folder.empty() ? temporary_.path() : fs::path(options_.folder);
    file_ = folder / "bench.snap";
    plain_ = folder / "bench.plain";
    session_.save(file_);  // the plain side wants its size; and what a first time costs is paid
    used_.emplace(restore());
    check(*used_);
    size_ = static_cast<std::int64_t>(fs::file_size(file_));
    for (int trial = 0; trial < options_.trials; ++trial) {
      if (trial % 2 == 0) plain_write_trial();
      save_trial();
      if (trial % 2 != 0) plain_write_trial();
      // What is read first finds the page cache without memory, and pays for it.
      plain_read_seconds(file_, data_, 0);
      if (trial % 2 == 0) plain_read_trial();
      restore_trial();
      if (trial % 2 != 0) plain_read_trial();
    }
    tell();
    fs::remove(file_);
    fs::remove(plain_);
  }

 private:
  static Engine load(const SnapshotOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      // One tree, and one for each restored session: all stay, so that pages are always fresh
      // memory.
      CommonOptions probe = common;
      probe.engine.weights = false;
      const std::int64_t tree = options.megabytes * 1000000 / probe.load().info().kv_token_bytes;
      common.engine.kv_tokens = (tree + 1024) * (options.trials + 2);
    }
    return common.load();
  }

  /// A trunk, four branches of it and two of each, with half, a quarter and a quarter of the
  /// tokens.
  void grow() {
    const std::int64_t tokens = options_.megabytes * 1000000 / engine_.info().kv_token_bytes;
    Branch trunk = session_.prefill(random_tokens(1, engine_.info().vocab, 0));
    add(trunk, tokens / 2);
    for (Branch& thought : trunk.fork(4)) {
      add(thought, tokens / 16);
      for (Branch& leaf : thought.fork(2)) {
        add(leaf, tokens / 32);
        branches_.push_back(std::move(leaf));
      }
    }
  }

  /// Tokens with K and V that nobody computed.
  void add(Branch& branch, std::int64_t count) {
    branch.append(random_tokens(count, engine_.info().vocab, ++seed_));
    EngineCore& core = *core_of(engine_);
    const TreeLock lock(core.tree_mutex);
    const Tip& tip = state_of(branch)->tip;
    if (!core.tree->reserve(tip)) throw Error("--kv-tokens: the pool is too small for --megabytes");
    std::vector<Segment*> chain;
    core.tree->missing_chain(tip, chain);
    const auto page_bytes = static_cast<std::size_t>(core.store->shape().page_bytes());
    std::vector<std::byte> bits(page_bytes);
    for (Segment* segment : chain) {
      for (std::int64_t i = 0; i < segment->page_count; ++i) {
        for (std::size_t at = 0; at < page_bytes; at += kPlainBytes) {
          std::memcpy(bits.data() + at, data_.data(), std::min(page_bytes - at, kPlainBytes));
        }
        std::memcpy(bits.data(), &++seed_, sizeof seed_);
        core.store->import_page(index_of(segment->page(i)), bits);
      }
      core.tree->set_computed(*segment, segment->end());
    }
  }

  /// Every page that a branch reads is what it was.
  void check(Restored& restored) {
    EngineCore& core = *core_of(engine_);
    const auto page_bytes = static_cast<std::size_t>(core.store->shape().page_bytes());
    std::vector<std::byte> got(page_bytes), expected(page_bytes);
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      const std::int64_t length = branches_[i].length();
      const std::int64_t page_tokens = core.tree->page_tokens();
      const std::vector<std::int32_t> ours = table(restored.branches[i]);
      const std::vector<std::int32_t> theirs = table(branches_[i]);
      for (std::size_t page = 0; page < theirs.size(); ++page) {
        const auto slots = static_cast<std::int32_t>(std::min<std::int64_t>(
            page_tokens, length - static_cast<std::int64_t>(page) * page_tokens));
        core.store->export_page(ours[page], slots, got);
        core.store->export_page(theirs[page], slots, expected);
        if (got != expected) throw Error("restore: page " + std::to_string(page) + " differs");
      }
    }
  }

  std::vector<std::int32_t> table(Branch& branch) {
    EngineCore& core = *core_of(engine_);
    const TreeLock lock(core.tree_mutex);
    const auto pages = core.tree->table(state_of(branch)->tip);
    return {pages.begin(), pages.end()};
  }

  void plain_write_trial() {
    fs::remove(plain_);
    plain_writes_.push_back(rate(plain_write_seconds(plain_, size_, data_)));
    fs::remove(plain_);
  }
  void save_trial() {
    fs::remove(file_);
    const double begin = now_seconds();
    session_.save(file_);
    writes_.push_back(rate(now_seconds() - begin));
  }

  void plain_read_trial() {
    drop_from_page_cache(file_);
    plain_reads_.push_back(rate(plain_read_seconds(file_, data_, 0)));
    drop_from_page_cache(file_);
    plain_fresh_reads_.push_back(rate(plain_read_seconds(file_, data_, size_)));
  }
  void restore_trial() {
    drop_from_page_cache(file_);
    used_.reset();  // its pages are free again, and the next to be taken
    const double begin = now_seconds();
    used_.emplace(restore());
    reads_.push_back(rate(now_seconds() - begin));
    drop_from_page_cache(file_);
    const double fresh_begin = now_seconds();
    kept_.push_back(restore());
    fresh_reads_.push_back(rate(now_seconds() - fresh_begin));
  }

  Restored restore() {
    Restored restored = engine_.restore(file_);
    if (!restored.kv_restored) throw Error("restore: " + restored.note);
    return restored;
  }

  double rate(double seconds) const { return static_cast<double>(size_) / seconds * 1e-9; }

  static std::vector<double> shares(const std::vector<double>& ours,
                                    const std::vector<double>& plain) {
    std::vector<double> out;
    for (std::size_t i = 0; i < ours.size(); ++i) out.push_back(ours[i] / plain[i]);
    return out;
  }

  void tell() {
    EngineCore& core = *core_of(engine_);
    std::vector<const Tip*> tips;
    for (const Branch& branch : branches_) tips.push_back(&state_of(branch)->tip);
    const KvUsage usage = core.tree->usage(tips);
    Json params{{"unique_bytes", usage.unique_bytes}, {"file_bytes", size_}};
    report_.add_value("size_ratio", params, "of unique",
                      static_cast<double>(size_) / static_cast<double>(usage.unique_bytes));
    report_.add("save", params, "GB/s", writes_, Better::kHigh);
    report_.add("plain_write", params, "GB/s", plain_writes_, Better::kHigh);
    report_.add_ratio("share_of_write", params, shares(writes_, plain_writes_), median(writes_),
                      median(plain_writes_));
    report_.add("restore", params, "GB/s", reads_, Better::kHigh);
    report_.add("plain_read", params, "GB/s", plain_reads_, Better::kHigh);
    report_.add_ratio("share_of_read", params, shares(reads_, plain_reads_), median(reads_),
                      median(plain_reads_));
    params["memory"] = "fresh";
    report_.add("restore", params, "GB/s", fresh_reads_, Better::kHigh);
    report_.add("plain_read", params, "GB/s", plain_fresh_reads_, Better::kHigh);
    report_.add_ratio("share_of_read", params, shares(fresh_reads_, plain_fresh_reads_),
                      median(fresh_reads_), median(plain_fresh_reads_));
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

  SnapshotOptions options_;
  Engine engine_;
  Session session_;
  std::vector<Branch> branches_;
  std::optional<Restored> used_;  // of the last trial: its memory is used again
  std::vector<Restored> kept_;    // the pages of these are not
  std::vector<std::byte> data_;
  TemporaryFolder temporary_;
  fs::path file_;
  fs::path plain_;
  std::int64_t size_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<double> writes_, reads_, fresh_reads_;
  std::vector<double> plain_writes_, plain_reads_, plain_fresh_reads_;
  Report report_{"snapshot"};
};

}  // namespace

void add_snapshot(CLI::App& app) {
  auto options = std::make_shared<SnapshotOptions>();
  CLI::App* command = app.add_subcommand(
      "snapshot", "A tree saved and restored, beside a plain write and a plain cold read");
  options->common.add_to(*command);
  command
      ->add_option("--megabytes", options->megabytes, "K and V of the tree (shape default: 250m)")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--folder", options->folder, "Where the files go (default: a temporary one)");
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->callback([options] {
    if (options->common.shape.empty() && options->common.model.empty()) {
      options->common.shape = "250m";
    }
    SnapshotBench(*options).run();
  });
}

}  // namespace dendrite::bench
