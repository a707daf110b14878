// What stands between a snapshot's preamble and its pages: records to bytes and back, and the
// checks that nothing in a file is believed without.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "dendrite/error.h"
#include "io/snapshot_file.h"
#include "io/snapshot_format.h"

namespace dendrite {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in the file are little-endian");

/// Counters beyond this are no counters; adding to those below cannot overflow.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 60;

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

/// The record of a branch. A new field of BranchState goes here, and kSnapshotVersion up by one.
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
  c.list(b.spans, [](auto& coder, auto& value) {
    coder.number(value.begin);
    coder.number(value.constraint);
  });
  c.list(b.parts, [](auto& coder, auto& value) {
    coder.number(value.end);
    coder.number(value.kind);
  });
  c.number(b.dropped);
}

template <typename Coder, typename Segment>
void segment_fields(Coder& c, Segment& s, std::uint32_t version) {
  c.number(s.parent);
  c.number(s.tokens);
  c.number(s.computed);
  small(c, s.shares_head);
  c.number(s.source);
  c.number(s.shift);
  if (version > kUnsaltedVersion && s.parent == TreeImage::kRoot) c.number(s.salt);
}

template <typename Coder, typename Source>
void source_fields(Coder& c, Source& s, std::uint32_t version) {
  c.array(s.tokens);
  c.list(s.moved, [](auto& coder, auto& value) {
    coder.number(value.at);
    coder.number(value.count);
    coder.number(value.shift);
    coder.number(value.source);
  });
  if (version > kUnsaltedVersion) c.number(s.salt);
}

template <typename Coder, typename SnapshotType>
void fields(Coder& c, SnapshotType& s, std::uint32_t version) {
  c.number(s.model);
  c.text(s.model_text);
  c.text(s.numerics_key);
  c.number(s.vocab);
  c.number(s.layers);
  c.number(s.kv_heads);
  c.number(s.head_dim);
  c.number(s.page_tokens);
  small(c, s.kv_format);

  c.number(s.session.seed);
  c.number(s.session.stream);
  c.number(s.session.budget_tokens);
  c.number(s.session.budget_ms);
  c.number(s.session.spent_ms);
  c.number(s.session.next_id);
  c.list(s.session.prompts, [](auto& coder, auto& value) {
    coder.number(value.hash);
    coder.number(value.count);
  });
  c.array(s.session.counters);

  c.list(s.tree.segments,
         [version](auto& coder, auto& value) { segment_fields(coder, value, version); });
  c.array(s.tree.tokens);
  c.array(s.tree.tips);
  c.list(s.tree.sources,
         [version](auto& coder, auto& value) { source_fields(coder, value, version); });
  c.list(s.constraints, [](auto& coder, auto& value) {
    coder.number(value.kind);
    coder.text(value.text);
  });
  c.list(s.branches, [](auto& coder, auto& value) { branch_fields(coder, value); });
  c.text(s.attachment);
  if (version < kUniformVersion) return;
  c.number(s.states.layers);
  c.number(s.states.anchor_values);
  c.number(s.states.journal_values);
  c.array(s.states.anchors);
  c.array(s.states.journals);
  if (version < kValuesVersion) return;
  c.number(s.wide.layers);
  c.number(s.wide.kv_heads);
  c.number(s.wide.head_dim);
  if (version < kSnapshotVersion) return;
  small(c, s.values_are_keys);
}

/// States are of pages that are full, journals of slots with K and V, each once.
std::string problem_of_states(const Snapshot& s) {
  const Snapshot::States& states = s.states;
  if (states.empty()) {
    const bool sized =
        states.layers != 0 || states.anchor_values != 0 || states.journal_values != 0;
    return sized ? "states have sizes, and there are none" : "";
  }
  constexpr std::int64_t kMostValues = std::int64_t{1} << 32;  // size_bytes() cannot overflow
  for (const std::int64_t values : {states.anchor_values, states.journal_values}) {
    if (states.layers < 1 || states.layers > 1 << 14 || values < 1 ||
        values > kMostValues / states.layers) {
      return "states have " + std::to_string(states.layers) + " layers of " +
             std::to_string(values) + " values; expected sizes of a model";
    }
  }
  const std::vector<std::int64_t> slots = page_slots(s.tree, s.page_tokens);
  const auto has = [&](std::int64_t page, std::int64_t count) {
    return page >= 0 && page < std::ssize(slots) && slots[static_cast<std::size_t>(page)] >= count;
  };
  std::int64_t last = -1;
  for (const std::int64_t page : states.anchors) {
    if (page <= last || !has(page, s.page_tokens)) {
      return "there is a state behind page " + std::to_string(page) +
             "; expected full pages in ascending order";
    }
    last = page;
  }
  last = -1;
  for (const std::int64_t position : states.journals) {
    if (position <= last || !has(position / s.page_tokens, position % s.page_tokens + 1)) {
      return "something is kept of slot " + std::to_string(position) +
             "; expected slots with K and V in ascending order";
    }
    last = position;
  }
  return "";
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
  const std::int64_t wide = s.wide.layers == 0 ? 0 : 1;
  check("layers of another size", s.wide.layers, 0, 1 << 14);
  check("their kv_heads", s.wide.kv_heads, wide, wide << 14);
  check("their head_dim", s.wide.head_dim, wide, wide << 14);
  if (problem.empty() && s.page_tokens != 8 && s.page_tokens != 16 && s.page_tokens != 32) {
    problem = "page_tokens is " + std::to_string(s.page_tokens) + "; expected 8, 16 or 32";
  }
  if (problem.empty() && s.kv_format != KvFormat::kF32 && s.kv_format != KvFormat::kBF16 &&
      s.kv_format != KvFormat::kFP8) {
    problem = "the K and V type is " + std::to_string(static_cast<int>(s.kv_format)) +
              "; expected 0 (f32), 2 (bf16) or 3 (fp8)";
  }
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
  if (problem = problem_of_states(s); !problem.empty()) return problem;
  if (!s.tree.tokens.empty()) {
    const auto [lowest, highest] = std::ranges::minmax(s.tree.tokens);
    check("a token id", lowest, 0, s.vocab - 1);
    check("a token id", highest, 0, s.vocab - 1);
  }
  for (const TreeImage::Source& source : s.tree.sources) {
    const auto [lowest, highest] = std::ranges::minmax(source.tokens);
    check("a token id", lowest, 0, s.vocab - 1);
    check("a token id", highest, 0, s.vocab - 1);
  }
  if (s.branches.size() != s.tree.tips.size()) {
    return "there are " + std::to_string(s.branches.size()) + " branches; expected " +
           std::to_string(s.tree.tips.size()) + ", one a tip";
  }
  for (const Snapshot::Constraint& constraint : s.constraints) {
    check("a constraint's kind", constraint.kind, 0, 3);
  }
  const std::vector<std::int64_t> ends = segment_ends(s.tree);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < s.branches.size(); ++i) {
    const Snapshot::Branch& b = s.branches[i];
    check("a prompt's length", b.prompt_length, 0, ends[static_cast<std::size_t>(s.tree.tips[i])]);
    check("a branch's count of tokens", b.independent_tokens, 0,
          std::numeric_limits<std::int32_t>::max());
    check("a branch's finish", b.finish, 0, 7);
    const std::int64_t length = ends[static_cast<std::size_t>(s.tree.tips[i])];
    std::int64_t begin = 0;
    for (const Snapshot::Branch::Span& span : b.spans) {
      check("the begin of a branch's constraint", span.begin, begin, length);
      check("a branch's constraint", span.constraint, Snapshot::Branch::Span::kFree,
            std::ssize(s.constraints) - 1);
      begin = span.begin;
    }
    std::int64_t part = 0;
    for (const Snapshot::Branch::Part& next : b.parts) {
      check("the end of a branch's part", next.end, part, kMaxCount);
      check("what a branch's part is", next.kind, 0, 3);
      part = next.end;
    }
    check("a branch's dropped tokens", b.dropped, 0, kMaxCount);
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

}  // namespace

Snapshot parse_snapshot(std::span<const std::byte> meta, std::uint32_t version,
                        const std::string& path) {
  Snapshot snapshot;
  Decoder decoder(meta, path);
  fields(decoder, snapshot, version);
  decoder.finish();
  if (const std::string problem = problem_of(snapshot); !problem.empty()) {
    throw Error(path + ": is no sound snapshot: " + problem);
  }
  return snapshot;
}

std::uint32_t version_of(const Snapshot& snapshot) {
  const auto has_salt = [](const auto& of) { return of.salt != 0; };
  const bool any = std::ranges::any_of(snapshot.tree.segments, has_salt) ||
                   std::ranges::any_of(snapshot.tree.sources, has_salt);
  if (snapshot.values_are_keys) return kSnapshotVersion;
  if (snapshot.wide.layers > 0) return kValuesVersion;
  if (!snapshot.states.empty()) return kUniformVersion;
  return any ? kStatelessVersion : kUnsaltedVersion;
}

std::vector<std::byte> encode_snapshot(const Snapshot& snapshot) {
  Encoder encoder;
  fields(encoder, snapshot, version_of(snapshot));
  return encoder.take();
}

}  // namespace dendrite
