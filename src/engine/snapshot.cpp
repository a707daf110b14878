#include "engine/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "dendrite/error.h"
#include "engine/session_core.h"
#include "engine/step_loop.h"
#include "engine/tell.h"
#include "io/snapshot_file.h"

namespace dendrite {
namespace {

/// What of a session's statistics is saved, in this order. A change of the list is another version
/// of the format.
constexpr std::int64_t Stats::*kCounters[] = {
    &Stats::tokens_computed,
    &Stats::tokens_independent,
    &Stats::tokens_generated,
    &Stats::tokens_reused,
    &Stats::tokens_redundant,
    &Stats::steps,
    &Stats::forks,
    &Stats::prunes,
    &Stats::copies_on_write,
    &Stats::evictions,
    &Stats::preemptions,
    &Stats::tokens_regenerated,
    &Stats::largest_batch_rows,
    &Stats::kv_bytes_unique,
    &Stats::kv_bytes_naive,
};

std::string model_text(const EngineCore& engine) {
  const EngineInfo& info = engine.info;
  return info.model_type + " of " + std::to_string(info.parameters) + " parameters, " +
         std::to_string(info.layers) + " layers, dim " + std::to_string(info.dim) +
         (info.dummy_weights ? ", random weights" : "");
}

// --- saving

/// Tips of one's own, so that what is being saved stays whatever others drop.
class HeldTips {
 public:
  explicit HeldTips(EngineCore& engine) : engine_(engine) {}
  ~HeldTips() {
    const TreeLock lock(engine_.tree_mutex);
    std::erase(engine_.call_tips, &tips_);
    for (const std::unique_ptr<Tip>& tip : tips_) engine_.tree->drop(*tip);
    engine_.debug_check();
  }
  HeldTips(const HeldTips&) = delete;
  HeldTips& operator=(const HeldTips&) = delete;

  void add(const Tip& tip) DENDRITE_REQUIRES(kTreeLock) {
    if (tips_.empty()) engine_.call_tips.push_back(&tips_);
    tips_.push_back(std::make_unique<Tip>(engine_.tree->fork(tip)));
  }
  TreeImage image(std::vector<PageSlots>& pages) const DENDRITE_REQUIRES(kTreeLock) {
    std::vector<const Tip*> pointers;
    for (const std::unique_ptr<Tip>& tip : tips_) pointers.push_back(tip.get());
    return engine_.tree->image(pointers, pages);
  }

 private:
  EngineCore& engine_;
  std::vector<std::unique_ptr<Tip>> tips_;
};

/// Tells of a snapshot that was written or read.
void tell(const SessionCore& session, EventKind kind, const std::filesystem::path& file,
          std::size_t branches, std::chrono::steady_clock::time_point begin)
    DENDRITE_REQUIRES(kTreeLock) {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(file, unknown);
  tell_snapshot(session, kind, static_cast<std::int64_t>(branches),
                unknown ? 0 : static_cast<std::int64_t>(bytes), took.count());
}

std::vector<const BranchState*> states_of(const SessionCore& session,
                                          std::span<const Branch> branches)
    DENDRITE_REQUIRES(kTreeLock) {
  std::vector<const BranchState*> states;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const BranchState* state = branches[i].state();
    if (state == nullptr) {
      throw Error("save: branch " + std::to_string(i) + " is empty; expected a live branch");
    }
    if (state->session != &session) {
      throw Error("save: branch " + std::to_string(i) + " belongs to another session");
    }
    states.push_back(state);
  }
  if (!branches.empty()) return states;
  for (const BranchState& state : session.slab) {
    if (!state.tip.empty() && !state.is_ahead) states.push_back(&state);
  }
  std::ranges::sort(states, {}, &BranchState::id);
  return states;
}

Snapshot::Session saved(const SessionCore& session) DENDRITE_REQUIRES(kTreeLock) {
  Snapshot::Session out;
  out.seed = session.options.seed;
  out.stream = session.options.stream;
  out.budget_tokens = session.options.budget.tokens;
  out.budget_ms = session.options.budget.milliseconds;
  out.spent_ms = session.milliseconds_spent();
  out.next_id = session.next_id;
  for (const auto& [hash, count] : session.prompts) out.prompts.push_back({hash, count});
  Stats stats = session.stats;
  stats.tokens_computed = session.spent_tokens();  // tokens drawn ahead are not saved
  for (const auto counter : kCounters) out.counters.push_back(stats.*counter);
  return out;
}

Snapshot::Branch saved(const BranchState& state) DENDRITE_REQUIRES(kTreeLock) {
  Snapshot::Branch out;
  out.id = static_cast<std::uint64_t>(state.id);
  out.parent = static_cast<std::uint64_t>(state.parent);
  out.stream = state.stream;
  out.forks_made = state.forks_made;
  out.prompt_length = state.prompt_length;
  out.independent_tokens = state.independent_tokens;
  out.logprob = state.logprob;
  out.priority = state.priority;
  out.finish = static_cast<std::uint8_t>(state.finish);
  return out;
}

// --- restoring

void require_same_model(const EngineCore& engine, const SnapshotReader& reader) {
  const Snapshot& snapshot = reader.snapshot();
  if (snapshot.model != engine.fingerprint || snapshot.vocab != engine.vocab()) {
    char got[17];
    char expected[17];
    std::snprintf(got, sizeof got, "%016llx", static_cast<unsigned long long>(snapshot.model));
    std::snprintf(expected, sizeof expected, "%016llx",
                  static_cast<unsigned long long>(engine.fingerprint));
    throw Error(reader.path() + ": was saved from another model: " + snapshot.model_text +
                ", fingerprint " + got + "; expected " + expected + ", that of " +
                engine.info.model_path + " (" + model_text(engine) + ")");
  }
  if (snapshot.session.counters.size() != std::size(kCounters)) {
    throw Error(reader.path() + ": has " + std::to_string(snapshot.session.counters.size()) +
                " counters; expected " + std::to_string(std::size(kCounters)));
  }
  if (!engine.config.max_positions_hard) return;
  for (const std::int64_t end : segment_ends(snapshot.tree)) {
    if (end > engine.config.max_positions) {
      throw Error(reader.path() + ": a branch has " + std::to_string(end) +
                  " tokens; this model takes at most " +
                  std::to_string(engine.config.max_positions));
    }
  }
}

/// Why the file's K and V mean nothing here, "" if they do.
std::string why_no_kv(const EngineCore& engine, const Snapshot& snapshot) {
  const KvShape& shape = engine.store->shape();
  const auto differs = [](const std::string& what, const std::string& got,
                          const std::string& expected) {
    return what + " is " + expected + " here and was " + got + " when saved";
  };
  if (snapshot.numerics_key != engine.info.numerics_key) {
    return differs("the numerics key", snapshot.numerics_key, engine.info.numerics_key);
  }
  if (snapshot.page_tokens != shape.page_tokens) {
    return differs("the page size", std::to_string(snapshot.page_tokens) + " tokens",
                   std::to_string(shape.page_tokens));
  }
  if (snapshot.layers != shape.layers || snapshot.kv_heads != shape.kv_heads ||
      snapshot.head_dim != shape.head_dim || snapshot.dtype != shape.dtype) {
    return "K and V have another shape here than when saved";
  }
  return "";
}

/// Pages with the file's K and V; none, and why in `note`, where they cannot be had. Remembered
/// prompts give way, branches do not: they may be needed as soon as these.
std::vector<PageId> read_kv(EngineCore& engine, const SnapshotReader& reader,
                            std::string& note) DENDRITE_COMPUTES {
  std::vector<PageId> pages;
  note = why_no_kv(engine, reader.snapshot());
  if (!note.empty()) return pages;
  {
    const TreeLock lock(engine.tree_mutex);
    const PagePool& pool = engine.tree->pool();
    const std::int32_t used = pool.used_pages();
    while (pool.free_pages() < reader.pages() && engine.prefix_index != nullptr &&
           engine.prefix_index->evict_one()) {
    }
    tell_forget(engine, used);
    if (!engine.tree->take_pages(reader.pages(), pages)) {
      note = "they need " + std::to_string(reader.pages()) + " pages, and " +
             std::to_string(pool.free_pages()) + " of " + std::to_string(pool.size()) +
             " are free here";
      return pages;
    }
  }
  try {
    reader.read_pages(*engine.workers, [&](std::int64_t i, std::span<const std::byte> bytes) {
      engine.store->import_page(index_of(pages[static_cast<std::size_t>(i)]), bytes);
    });
  } catch (...) {
    const TreeLock lock(engine.tree_mutex);
    engine.tree->give_back_pages();
    throw;
  }
  return pages;
}

void restore_numbers(SessionCore& session, const Snapshot::Session& from)
    DENDRITE_REQUIRES(kTreeLock) {
  session.spent_ms = from.spent_ms;
  session.next_id = from.next_id;
  for (const auto& prompt : from.prompts) session.prompts[prompt.hash] = prompt.count;
  for (std::size_t i = 0; i < std::size(kCounters); ++i) {
    session.stats.*kCounters[i] = from.counters[i];
  }
}

Branch restore_branch(SessionCore& session, const Snapshot::Branch& from, Tip tip)
    DENDRITE_REQUIRES(kTreeLock) {
  const KvTree& tree = *session.engine->tree;
  BranchState* state = session.make_branch({.stream = from.stream,
                                            .prompt_length = from.prompt_length,
                                            .logprob = from.logprob,
                                            .last_used = session.engine->clock,
                                            .priority = from.priority,
                                            .text = std::nullopt});
  state->id = static_cast<BranchId>(from.id);
  state->parent = static_cast<BranchId>(from.parent);
  state->tip = std::move(tip);
  state->forks_made = from.forks_made;
  state->independent_tokens = from.independent_tokens;
  state->finish = static_cast<Finish>(from.finish);
  session.naive_pages += tree.page_count(tree.length(state->tip));
  return SessionCore::handle(state);
}

}  // namespace

void save_session(SessionCore& session, const std::filesystem::path& file,
                  std::span<const Branch> branches, std::string_view attachment) {
  const auto begin = std::chrono::steady_clock::now();
  EngineCore& engine = *session.engine;
  const StepLoop::Pause pause(*engine.loop, "save");
  const KvShape& shape = engine.store->shape();
  Snapshot snapshot;
  snapshot.model = engine.fingerprint;
  snapshot.model_text = model_text(engine);
  snapshot.numerics_key = engine.info.numerics_key;
  snapshot.vocab = engine.vocab();
  snapshot.layers = shape.layers;
  snapshot.kv_heads = shape.kv_heads;
  snapshot.head_dim = shape.head_dim;
  snapshot.page_tokens = shape.page_tokens;
  snapshot.dtype = shape.dtype;
  snapshot.attachment = attachment;
  std::vector<PageSlots> pages;
  HeldTips tips(engine);
  {
    const TreeLock lock(engine.tree_mutex);
    snapshot.session = saved(session);
    for (const BranchState* state : states_of(session, branches)) {
      snapshot.branches.push_back(saved(*state));
      tips.add(state->tip);
    }
    snapshot.tree = tips.image(pages);
  }
  write_snapshot(file, snapshot, *engine.workers, [&](std::int64_t i, std::span<std::byte> out) {
    const PageSlots& page = pages[static_cast<std::size_t>(i)];
    engine.store->export_page(index_of(page.page), page.slots, out);
  });
  const TreeLock lock(engine.tree_mutex);
  tell(session, EventKind::kSave, file, snapshot.branches.size(), begin);
}

Restored restore_session(const std::shared_ptr<EngineCore>& engine,
                         const std::filesystem::path& file) {
  if (engine->model == nullptr) {
    throw Error(
        file.string() +
        ": cannot be restored by an engine without weights; expected EngineOptions::weights");
  }
  const auto begin = std::chrono::steady_clock::now();
  const SnapshotReader reader(file);
  require_same_model(*engine, reader);
  const Snapshot& snapshot = reader.snapshot();

  const SessionOptions options{.seed = snapshot.session.seed,
                               .budget = {.tokens = snapshot.session.budget_tokens,
                                          .milliseconds = snapshot.session.budget_ms},
                               .stream = snapshot.session.stream};
  Restored out{Session(Engine::from(engine), options), {}, true, {}, snapshot.attachment};
  SessionCore& session = *out.session.core();
  const StepLoop::Pause pause(*engine->loop, "restore");
  std::vector<PageId> pages;
  if (reader.pages() > 0) {
    pages = read_kv(*engine, reader, out.note);
    out.kv_restored = !pages.empty();
    if (!out.kv_restored) {
      out.note =
          file.string() + ": tokens are restored, K and V will be computed again: " + out.note;
    }
  }
  const TreeLock lock(engine->tree_mutex);
  std::vector<Tip> tips = engine->tree->build(snapshot.tree, pages);
  for (std::size_t i = 0; i < tips.size(); ++i) {
    out.branches.push_back(restore_branch(session, snapshot.branches[i], std::move(tips[i])));
  }
  restore_numbers(session, snapshot.session);
  if (!out.branches.empty()) session.self = session.shared_from_this();
  engine->debug_check();
  tell(session, EventKind::kRestore, file, out.branches.size(), begin);
  return out;
}

}  // namespace dendrite
