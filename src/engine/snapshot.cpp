#include "engine/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <unordered_map>

#include "dendrite/error.h"
#include "engine/branches/call_tips.h"
#include "engine/branches/session_core.h"
#include "engine/branches/tell.h"
#include "engine/loop/step_loop.h"
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

/// Tells of a snapshot that was written or read.
void tell(const SessionCore& session, EventKind kind, std::size_t branches, std::int64_t bytes,
          std::chrono::steady_clock::time_point begin) DENDRITE_REQUIRES(kTreeLock) {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  tell_snapshot(session, kind, static_cast<std::int64_t>(branches), bytes, took.count());
}

std::vector<const BranchState*> states_of(const SessionCore& session, ConstBranches branches,
                                          const char* what) DENDRITE_REQUIRES(kTreeLock) {
  const std::string call = what;
  std::vector<const BranchState*> states;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const BranchState* state = state_of(branches[i]);
    if (state == nullptr) {
      throw BranchEmpty(call + ": branch " + std::to_string(i) +
                        " is empty; expected a live branch");
    }
    if (state->session != &session) {
      throw Error(call + ": branch " + std::to_string(i) + " belongs to another session");
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

/// A constraint's place among those of the snapshot.
std::int64_t add_constraint(Snapshot& snapshot, const Grammar* grammar) {
  if (grammar == nullptr) return Snapshot::Branch::Span::kFree;
  const Constraint& constraint = grammar->constraint();
  const auto kind = static_cast<std::uint8_t>(constraint.kind());
  const auto found = std::ranges::find_if(snapshot.constraints, [&](const auto& known) {
    return known.kind == kind && known.text == constraint.text();
  });
  const std::int64_t place = found - snapshot.constraints.begin();
  if (found == snapshot.constraints.end()) {
    snapshot.constraints.push_back({kind, constraint.text()});
  }
  return place;
}

Snapshot::Branch saved(const BranchState& state, Snapshot& snapshot) DENDRITE_REQUIRES(kTreeLock) {
  Snapshot::Branch out;
  for (auto span = state.rare->constraint.span; span != nullptr; span = span->before) {
    out.spans.push_back({span->begin, add_constraint(snapshot, span->grammar.get())});
  }
  std::ranges::reverse(out.spans);
  out.id = static_cast<std::uint64_t>(state.id);
  out.parent = static_cast<std::uint64_t>(state.parent);
  out.stream = state.stream;
  out.forks_made = state.forks_made;
  out.prompt_length = state.prompt_length;
  out.independent_tokens = state.independent_tokens;
  out.logprob = state.logprob;
  out.priority = state.priority;
  out.finish = static_cast<std::uint8_t>(state.finish);
  if (const auto& of = state.rare->composition; of != nullptr) {
    for (const CompositionRecord::Part& part : of->parts) {
      out.parts.push_back({part.end, static_cast<std::uint8_t>(part.kind)});
    }
    out.dropped = of->dropped;
  }
  return out;
}

/// What is kept of the tips' last positions, for recurrent layers; `slots` gets where.
Snapshot::States saved_states(EngineCore& engine, std::span<const Tip* const> tips,
                              std::span<const PageSlots> pages, std::vector<std::int32_t>& slots)
    DENDRITE_REQUIRES(kTreeLock) {
  Snapshot::States out;
  if (engine.states == nullptr) return out;
  std::unordered_map<PageId, std::int64_t> index;
  for (const PageSlots& page : pages) index.try_emplace(page.page, std::ssize(index));
  std::map<std::int64_t, std::int32_t> anchors;
  std::map<std::int64_t, std::int32_t> journals;
  for (const Tip* tip : tips) {
    for (const StatePlace& place : engine.tree->states_at_end(*tip)) {
      const std::int64_t page = index.at(place.page);
      if (place.offset == StatePlace::kAnchor) {
        anchors[page] = place.slot;
      } else {
        journals[page * engine.tree->page_tokens() + place.offset] = place.slot;
      }
    }
  }
  if (anchors.empty() && journals.empty()) return out;
  const StateShape& shape = engine.states->shape();
  out.layers = shape.layers;
  out.anchor_values = shape.anchor_values;
  out.journal_values = shape.journal_values;
  for (const auto& [page, slot] : anchors) {
    out.anchors.push_back(page);
    slots.push_back(slot);
  }
  for (const auto& [position, slot] : journals) {
    out.journals.push_back(position);
    slots.push_back(slot);
  }
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
    throw Error(reader.name() + ": was saved from another model: " + snapshot.model_text +
                ", fingerprint " + got + "; expected " + expected + ", that of " +
                engine.info.model_path + " (" + model_text(engine) + ")");
  }
  if (snapshot.session.counters.size() != std::size(kCounters)) {
    throw Error(reader.name() + ": has " + std::to_string(snapshot.session.counters.size()) +
                " counters; expected " + std::to_string(std::size(kCounters)));
  }
  for (const std::int64_t end : segment_ends(snapshot.tree)) {
    if (end > engine.position_limit) {
      throw Error(reader.name() + ": a branch has " + std::to_string(end) +
                  " tokens; this model takes at most " + std::to_string(engine.position_limit));
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
      snapshot.head_dim != shape.head_dim || snapshot.kv_format != shape.format ||
      KvLayers{snapshot.wide.layers, snapshot.wide.kv_heads, snapshot.wide.head_dim} !=
          shape.wide) {
    return "K and V have another shape here than when saved";
  }
  if (snapshot.values_are_keys != shape.values_are_keys) {
    return shape.values_are_keys ? "V was kept beside K when saved, and is K here"
                                 : "V was K when saved, and is kept beside it here";
  }
  const Snapshot::States& states = snapshot.states;
  if (states.empty()) return "";
  const StateShape ours = engine.states != nullptr ? engine.states->shape() : StateShape{};
  if (states.layers != ours.layers || states.anchor_values != ours.anchor_values ||
      states.journal_values != ours.journal_values) {
    return "states of recurrent layers have another shape here than when saved";
  }
  return "";
}

/// Slots for what the file has of states, in its order; kNone where there is none to be had.
std::vector<std::int32_t> take_state_slots(EngineCore& engine, const Snapshot& snapshot,
                                           std::span<const PageId> pages)
    DENDRITE_REQUIRES(kTreeLock) {
  std::vector<std::int32_t> slots;
  if (snapshot.states.empty()) return slots;
  PathStates& states = *engine.tree->states();
  states.begin_step();  // so that they do not take each other's
  for (const std::int64_t page : snapshot.states.anchors) {
    slots.push_back(states.take_anchor(pages[static_cast<std::size_t>(page)], true));
  }
  for (const std::int64_t position : snapshot.states.journals) {
    const auto page = static_cast<std::size_t>(position / snapshot.page_tokens);
    slots.push_back(states.take_journal(pages[page], position % snapshot.page_tokens));
  }
  return slots;
}

/// Pages with the file's K and V; none, and why in `note`, where they cannot be had. Remembered
/// prompts give way, branches do not: they may be needed as soon as these.
std::vector<PageId> read_kv(EngineCore& engine, const SnapshotReader& reader,
                            std::string& note) DENDRITE_COMPUTES {
  std::vector<PageId> pages;
  std::vector<std::int32_t> states;
  note = why_no_kv(engine, reader.snapshot());
  if (!note.empty()) return pages;
  {
    const TreeLock lock(engine.tree_mutex);
    const PagePool& pool = engine.tree->pool();
    const std::int32_t used = pool.used_pages();
    while (pool.free_pages() < reader.pages() && engine.memories().evict_one()) {
    }
    tell_forget(engine, used);
    if (!engine.tree->take_pages(reader.pages(), pages)) {
      note = "they need " + std::to_string(reader.pages()) + " pages, and " +
             std::to_string(pool.free_pages()) + " of " + std::to_string(pool.size()) +
             " are free here";
      return pages;
    }
    states = take_state_slots(engine, reader.snapshot(), pages);
  }
  try {
    reader.read_pages(*engine.workers, [&](std::int64_t i, std::span<const std::byte> bytes) {
      engine.store->import_page(index_of(pages[static_cast<std::size_t>(i)]), bytes);
    });
    reader.read_states([&](std::int64_t i, std::span<const float> values) {
      const std::int32_t slot = states[static_cast<std::size_t>(i)];
      if (slot == PathStates::kNone) return;
      reader.snapshot().states.is_anchor(i) ? engine.states->write_anchor(slot, values)
                                            : engine.states->write_journal(slot, values);
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

std::vector<std::shared_ptr<const Grammar>> restore_constraints(const EngineCore& engine,
                                                                const SnapshotReader& reader) {
  std::vector<std::shared_ptr<const Grammar>> grammars;
  for (const Snapshot::Constraint& from : reader.snapshot().constraints) {
    try {
      grammars.push_back(
          engine.compiled(Constraint::of(static_cast<Constraint::Kind>(from.kind), from.text)));
    } catch (const Error& error) {
      throw Error(reader.name() + ": " + error.what());
    }
  }
  return grammars;
}

Branch restore_branch(SessionCore& session, const Snapshot::Branch& from, Tip tip,
                      std::span<const std::shared_ptr<const Grammar>> grammars)
    DENDRITE_REQUIRES(kTreeLock) {
  const KvTree& tree = *session.engine->tree;
  BranchState* state = session.make_branch({.stream = from.stream,
                                            .prompt_length = from.prompt_length,
                                            .logprob = from.logprob,
                                            .last_used = session.engine->clock,
                                            .priority = from.priority});
  state->text.known = false;
  state->id = static_cast<BranchId>(from.id);
  state->parent = static_cast<BranchId>(from.parent);
  state->tip = std::move(tip);
  state->forks_made = from.forks_made;
  state->independent_tokens = static_cast<std::int32_t>(from.independent_tokens);
  state->finish = static_cast<Finish>(from.finish);
  for (const Snapshot::Branch::Span& span : from.spans) {
    const bool free = span.constraint == Snapshot::Branch::Span::kFree;
    state->rare.edit().constraint.add(
        span.begin, free ? nullptr : grammars[static_cast<std::size_t>(span.constraint)]);
  }
  if (!from.parts.empty()) {
    CompositionRecord record;
    for (const Snapshot::Branch::Part& part : from.parts) {
      record.parts.push_back({part.end, static_cast<CompositionRecord::Kind>(part.kind)});
    }
    record.dropped = from.dropped;
    state->rare.edit().composition = std::make_shared<const CompositionRecord>(std::move(record));
  }
  session.naive_pages += tree.page_count(tree.length(state->tip));
  return handle_of(state);
}

/// Writes a snapshot, and says how many bytes it has.
using Write = std::function<std::int64_t(const Snapshot&, const FillPage&, const FillState&)>;

/// Whatever it is written to. `what`: the caller's call.
void save(SessionCore& session, ConstBranches branches, const SaveOptions& options,
          const char* what, const Write& write) {
  const auto begin = std::chrono::steady_clock::now();
  EngineCore& engine = *session.engine;
  const StepLoop::Pause pause(*engine.loop, what);
  const KvShape& shape = engine.store->shape();
  Snapshot snapshot;
  snapshot.model = engine.fingerprint;
  snapshot.model_text = model_text(engine);
  snapshot.numerics_key = engine.info.numerics_key;
  snapshot.vocab = engine.vocab();
  snapshot.layers = shape.layers;
  snapshot.kv_heads = shape.kv_heads;
  snapshot.head_dim = shape.head_dim;
  snapshot.wide = {shape.wide.layers, shape.wide.kv_heads, shape.wide.head_dim};
  snapshot.page_tokens = shape.page_tokens;
  snapshot.kv_format = shape.format;
  snapshot.values_are_keys = shape.values_are_keys;
  snapshot.attachment = options.attachment;
  std::vector<PageSlots> pages;
  std::vector<std::int32_t> states;
  CallTips tips(engine);  // what is being saved stays whatever others drop
  {
    const TreeLock lock(engine.tree_mutex);
    snapshot.session = saved(session);
    for (const BranchState* state : states_of(session, branches, what)) {
      snapshot.branches.push_back(saved(*state, snapshot));
      tips.fork(state->tip);
    }
    const std::vector<Tip*> forks = tips.all();
    const std::vector<const Tip*> all(forks.begin(), forks.end());
    snapshot.tree = engine.tree->image(all, pages);
    if (options.kv) snapshot.states = saved_states(engine, all, pages, states);
  }
  if (!options.kv) drop_kv(snapshot.tree);
  const auto fill_page = [&](std::int64_t i, std::span<std::byte> out) {
    const PageSlots& page = pages[static_cast<std::size_t>(i)];
    engine.store->export_page(index_of(page.page), page.slots, out);
  };
  const auto fill_state = [&](std::int64_t i, std::span<float> out) {
    const std::int32_t slot = states[static_cast<std::size_t>(i)];
    snapshot.states.is_anchor(i) ? engine.states->read_anchor(slot, out)
                                 : engine.states->read_journal(slot, out);
  };
  const std::int64_t bytes = write(snapshot, fill_page, fill_state);
  const TreeLock lock(engine.tree_mutex);
  tell(session, EventKind::kSave, snapshot.branches.size(), bytes, begin);
}

}  // namespace

void save_session(SessionCore& session, const std::filesystem::path& file, ConstBranches branches,
                  const SaveOptions& options) {
  save(session, branches, options, "save",
       [&](const Snapshot& snapshot, const FillPage& page, const FillState& state) {
         return write_snapshot(file, snapshot, *session.engine->workers, page, state);
       });
}

std::vector<std::byte> snapshot_session(SessionCore& session, ConstBranches branches,
                                        const SaveOptions& options) {
  std::vector<std::byte> bytes;
  save(session, branches, options, "snapshot",
       [&](const Snapshot& snapshot, const FillPage& page, const FillState& state) {
         bytes = snapshot_in_memory(snapshot, *session.engine->workers, page, state);
         return std::ssize(bytes);
       });
  return bytes;
}

Restored restore_session(const std::shared_ptr<EngineCore>& engine, const SnapshotReader& reader,
                         std::function<bool()> poll) {
  if (engine->model == nullptr) {
    throw Error(
        reader.name() +
        ": cannot be restored by an engine without weights; expected EngineOptions::weights");
  }
  const auto begin = std::chrono::steady_clock::now();
  require_same_model(*engine, reader);
  const Snapshot& snapshot = reader.snapshot();

  const SessionOptions options{.seed = snapshot.session.seed,
                               .budget = {.tokens = snapshot.session.budget_tokens,
                                          .milliseconds = snapshot.session.budget_ms},
                               .stream = snapshot.session.stream,
                               .poll = std::move(poll)};
  Restored out{Session(handle_of(engine), options), {}, true, {}, snapshot.attachment};
  SessionCore& session = *core_of(out.session);
  const auto grammars = restore_constraints(*engine, reader);
  const StepLoop::Pause pause(*engine->loop, "restore");
  std::vector<PageId> pages;
  if (reader.pages() > 0) {
    pages = read_kv(*engine, reader, out.note);
  } else if (!snapshot.branches.empty()) {
    out.note = "the snapshot has none";
  }
  if (!out.note.empty()) {
    out.kv_restored = false;
    out.note = reader.name() + ": tokens are restored, K and V will be computed again: " + out.note;
  }
  const TreeLock lock(engine->tree_mutex);
  std::vector<Tip> tips = engine->tree->build(snapshot.tree, pages);
  for (std::size_t i = 0; i < tips.size(); ++i) {
    out.branches.push_back(
        restore_branch(session, snapshot.branches[i], std::move(tips[i]), grammars));
  }
  restore_numbers(session, snapshot.session);
  if (!out.branches.empty()) session.self = session.shared_from_this();
  engine->debug_check();
  tell(session, EventKind::kRestore, out.branches.size(), reader.size(), begin);
  return out;
}

}  // namespace dendrite
