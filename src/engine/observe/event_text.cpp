// Events as text. One table says which fields a kind has; JSON lines and log lines read it.
#include "engine/observe/event_text.h"

#include <cstdio>
#include <string_view>
#include <vector>

namespace dendrite {
namespace {

struct Count {
  const char* name;
  std::int64_t Event::*value;
};
constexpr Count kLength{"length", &Event::length};
constexpr Count kTokens{"tokens", &Event::tokens};
constexpr Count kRows{"rows", &Event::rows};
constexpr Count kRedundantRows{"redundant_rows", &Event::redundant_rows};
constexpr Count kBranches{"branches", &Event::branches};
constexpr Count kWaiting{"waiting", &Event::waiting};
constexpr Count kCopies{"copies", &Event::copies};
constexpr Count kPages{"pages", &Event::pages};
constexpr Count kPagesUsed{"pages_used", &Event::pages_used};
constexpr Count kUniqueBytes{"unique_bytes", &Event::unique_bytes};
constexpr Count kNaiveBytes{"naive_bytes", &Event::naive_bytes};
constexpr Count kBytes{"bytes", &Event::bytes};
constexpr Count kKept{"kept", &Event::kept};
constexpr Count kMoved{"moved", &Event::moved};
constexpr Count kRepaired{"repaired", &Event::repaired};
constexpr Count kComputed{"computed", &Event::computed};

struct Kind {
  const char* name;
  bool branch = false, parent = false, finish = false, ms = false, kl = false;
  bool lists = false, draft = false, level = false, call = false;
  std::vector<Count> counts{};
};

const Kind& describe(EventKind kind) {
  // In the order of the enumeration.
  static const Kind kinds[] = {
      {.name = "prefill", .branch = true, .counts = {kLength, kTokens, kPagesUsed}},
      {.name = "fork", .branch = true, .parent = true, .counts = {kLength, kPagesUsed}},
      {.name = "copy_on_write", .branch = true, .counts = {kCopies, kTokens, kPagesUsed}},
      {.name = "step",
       .ms = true,
       .lists = true,
       .counts = {kRows, kRedundantRows, kBranches, kWaiting, kCopies, kPages, kPagesUsed,
                  kUniqueBytes, kNaiveBytes}},
      {.name = "no_room", .branch = true, .counts = {kLength, kPages}},
      {.name = "finish", .branch = true, .finish = true, .ms = true, .counts = {kLength, kTokens}},
      {.name = "prune", .branch = true, .counts = {kLength, kPages, kPagesUsed}},
      {.name = "forget", .counts = {kPages, kPagesUsed}},
      {.name = "evict", .branch = true, .counts = {kLength, kTokens, kPages, kPagesUsed}},
      {.name = "regenerate", .branch = true, .counts = {kTokens}},
      {.name = "preempt", .branch = true, .counts = {kLength, kPages}},
      {.name = "budget", .ms = true, .counts = {kTokens}},
      {.name = "cancel", .ms = true},
      {.name = "save", .ms = true, .counts = {kBranches, kBytes}},
      {.name = "restore", .ms = true, .counts = {kBranches, kBytes}},
      {.name = "draft", .branch = true, .draft = true, .counts = {kLength, kRows, kTokens}},
      {.name = "compose",
       .branch = true,
       .ms = true,
       .kl = true,
       .counts = {kLength, kKept, kMoved, kRepaired, kComputed}},
      {.name = "chunk", .branch = true, .ms = true, .counts = {kLength, kTokens}},
      {.name = "pressure",
       .branch = true,
       .level = true,
       .counts = {kLength, kPages, kTokens, kPagesUsed}},
      {.name = "allocate", .branch = true, .counts = {kLength, kPages, kPagesUsed}},
      {.name = "call",
       .finish = true,
       .ms = true,
       .call = true,
       .counts = {kBranches, kRows, kTokens}},
  };
  static_assert(std::size(kinds) == kEventKinds);
  return kinds[static_cast<std::size_t>(kind)];
}

unsigned long long number(BranchId id) {
  return static_cast<unsigned long long>(id);
}

/// With so many digits behind the point; never a locale's comma.
std::string fixed(double value, int digits) {
  const long long one = digits == 3 ? 1000 : 1000000;
  const auto units = static_cast<long long>(value * static_cast<double>(one) + 0.5);
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%0*lld", units / one, digits, units % one);
  return text;
}

/// Writes a JSON object, or names and values for people.
class Writer {
 public:
  explicit Writer(bool json) : json_(json) {
    if (json) out_ = "{";
  }

  void field(std::string_view name, std::string_view value) {
    if (out_.size() > 1) out_ += json_ ? "," : " ";
    if (json_) out_ += '"';
    out_ += name;
    out_ += json_ ? "\":" : " ";
    out_ += value;
  }
  void field(std::string_view name, std::int64_t value) { field(name, std::to_string(value)); }
  void field(std::string_view name, BranchId value) { field(name, std::to_string(number(value))); }
  void word(std::string_view name, std::string_view value) {
    std::string quoted;
    if (json_) quoted += '"';
    quoted += value;
    if (json_) quoted += '"';
    field(name, quoted);
  }
  void list(std::string_view name, std::span<const BranchId> ids) {
    if (!json_ && ids.empty()) return;
    std::string text = "[";
    for (const BranchId id : ids) {
      if (text.size() > 1) text += ',';
      text += std::to_string(number(id));
    }
    text += ']';
    field(name, text);
  }
  void list(std::string_view name, std::span<const DraftedToken> drafted) {
    std::string text = "[";
    for (const DraftedToken& one : drafted) {
      if (text.size() > 1) text += ',';
      const std::string token = std::to_string(one.token);
      const std::string parent = std::to_string(one.parent);
      if (json_) {
        text.append(R"({"token":)").append(token).append(R"(,"parent":)").append(parent);
        text.append(R"(,"accepted":)").append(one.accepted ? "true}" : "false}");
      } else {
        text.append(token).append(one.accepted ? "+" : "").append("@").append(parent);
      }
    }
    text += ']';
    field(name, text);
  }
  void fields_of(const Event& event) {
    const Kind& kind = describe(event.kind);
    field("session", static_cast<std::int64_t>(event.session));
    if (kind.call) word("call", name_of(event.call));
    if (kind.level) word("level", name_of(event.level));
    if (kind.branch) field("branch", event.branch);
    if (kind.parent) field("parent", event.parent);
    for (const Count& count : kind.counts) field(count.name, event.*count.value);
    if (kind.call) {
      field("queued_ms", fixed(event.queued_ms, 3));
      field("first_token_ms", fixed(event.first_token_ms, 3));
      field("tokens_per_second", fixed(event.tokens_per_second, 3));
    }
    if (kind.ms) field("ms", fixed(event.ms, 3));
    if (kind.kl) field("kl", fixed(event.kl, 6));
    if (kind.finish) word("finish", name_of(event.finish));
    if (kind.lists) {
      list("ran", event.ran);
      list("waited", event.waited);
    }
    if (kind.draft) {
      word("speculate", name_of(event.speculate));
      list("drafted", event.drafted);
    }
  }
  std::string take() {
    if (json_) out_ += '}';
    return std::move(out_);
  }

 private:
  bool json_;
  std::string out_;
};

}  // namespace

const char* name_of(EventKind kind) {
  return describe(kind).name;
}

const char* name_of(Pressure level) {
  constexpr const char* kNames[] = {"soft", "hard", "reject"};
  return kNames[static_cast<std::size_t>(level)];
}

const char* name_of(CallKind kind) {
  constexpr const char* kNames[] = {"prefill",       "decode",  "score", "next_tokens",
                                    "distributions", "compose", "chunk", "embed"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_json_line(const Event& event) {
  Writer writer(true);
  writer.field("sequence", static_cast<std::int64_t>(event.sequence));
  writer.field("time_ns", event.time_ns);
  writer.word("event", name_of(event.kind));
  writer.fields_of(event);
  return writer.take();
}

std::string to_log_line(const Event& event, std::int64_t begin_ns) {
  Writer writer(false);
  writer.fields_of(event);
  char head[64];
  std::snprintf(head, sizeof head, "%10.3f ms %-13s ",
                static_cast<double>(event.time_ns - begin_ns) / 1e6, name_of(event.kind));
  return std::string(head).append(writer.take());
}

}  // namespace dendrite
