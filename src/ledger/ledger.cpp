#include "dendrite/ledger.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "dendrite/error.h"
#include "ledger/ledger_text.h"

namespace dendrite {
namespace {

/// Where a branch stands.
struct Place {
  BranchId branch = BranchId::kNone;
  std::int64_t length = 0;
};

std::string in_quotes(const std::string& key) {
  return "\"" + key + "\"";
}

}  // namespace

/// Effects form a forest by their parents. A branch that has any refers to the last one of its
/// path; what nobody refers to goes, its parent after it. Forks and drops come as events, under the
/// engine's lock, and so in their true order; `mutex` is the innermost lock, and nothing of the
/// engine is asked while it is held.
struct Ledger::Impl {
  struct Kept {
    Effect effect;
    std::int64_t references = 0;  // of branches and of effects after it
  };
  struct Due {
    bool commit = false;
    Effect effect;
  };

  Impl(const Session& session, LedgerHooks with) : hooks(std::move(with)) {
    subscription = session.engine().on_event(mask_of(EventKind::kFork, EventKind::kPrune),
                                             [this, number = session.number()](const Event& event) {
                                               if (event.session != number) return;
                                               const std::lock_guard lock(mutex);
                                               if (event.kind == EventKind::kFork) {
                                                 go_on(event.branch, event.parent, event.length);
                                               } else {
                                                 refer(event.branch, EffectId::kNone);
                                               }
                                             });
  }

  Place place_of(const Branch& branch, const char* what) const {
    if (!branch.valid()) {
      throw BranchEmpty(std::string("ledger: ") + what +
                        ": the branch is empty; expected a live one");
    }
    return {branch.id(), branch.length()};
  }

  // --- with the mutex
  EffectId last_of(BranchId branch) const {
    const auto found = ends.find(branch);
    return found == ends.end() ? EffectId::kNone : found->second;
  }
  /// A branch begins with what another has up to its length.
  void go_on(BranchId branch, BranchId from, std::int64_t length) {
    EffectId last = last_of(from);
    while (last != EffectId::kNone && effects.at(last).effect.length > length) {
      last = effects.at(last).effect.parent;
    }
    refer(branch, last);
  }
  void refer(BranchId branch, EffectId last) {
    if (last != EffectId::kNone) ++effects.at(last).references;
    const EffectId before = last_of(branch);
    if (last == EffectId::kNone) {
      ends.erase(branch);
    } else {
      ends[branch] = last;
    }
    release(before);
  }
  void release(EffectId id) {
    while (id != EffectId::kNone) {
      const auto found = effects.find(id);
      if (--found->second.references > 0) return;
      Effect gone = std::move(found->second.effect);
      effects.erase(found);
      id = gone.parent;
      if (gone.committed) continue;
      if (gone.value) {
        due.push_back({false, std::move(gone)});
      } else {
        const EffectId open = gone.id;
        left_open[open] = std::move(gone);
      }
    }
  }
  const Effect* find(const Place& place, std::string_view key) const {
    EffectId id = last_of(place.branch);
    while (id != EffectId::kNone) {
      const Effect& effect = effects.at(id).effect;
      if (effect.length < place.length) return nullptr;
      if (effect.length == place.length && effect.key == key) return &effect;
      id = effect.parent;
    }
    return nullptr;
  }
  EffectId add(const Place& place, std::string_view key) {
    const auto id = static_cast<EffectId>(++last_id);
    const EffectId parent = last_of(place.branch);
    effects[id] = {{.id = id, .parent = parent, .length = place.length, .key = std::string(key)},
                   0};
    if (parent != EffectId::kNone) ++effects.at(parent).references;
    refer(place.branch, id);
    return id;
  }
  std::vector<EffectId> path_of(BranchId branch) const {
    std::vector<EffectId> path;
    for (EffectId id = last_of(branch); id != EffectId::kNone; id = effects.at(id).effect.parent) {
      path.push_back(id);
    }
    std::ranges::reverse(path);
    return path;
  }
  /// One that has not ended.
  Effect& open(EffectId id, const char* what) {
    if (const auto left = left_open.find(id); left != left_open.end()) return left->second;
    const auto found = effects.find(id);
    if (found == effects.end()) {
      throw Error("ledger: " + std::string(what) + ": no effect " +
                  std::to_string(static_cast<std::uint64_t>(id)) +
                  "; expected one that begin() gave and that has not ended");
    }
    if (found->second.effect.value) {
      throw Error("ledger: " + std::string(what) + ": " + in_quotes(found->second.effect.key) +
                  " has ended; expected one that has not");
    }
    return found->second.effect;
  }
  /// An effect that was never begun: whoever refers to it refers to the one before it.
  void take_out(EffectId id) {
    const EffectId parent = effects.at(id).effect.parent;
    for (auto& [child, kept] : effects) {
      if (kept.effect.parent != id) continue;
      kept.effect.parent = parent;
      if (parent != EffectId::kNone) ++effects.at(parent).references;
    }
    std::vector<BranchId> branches;
    for (const auto& [branch, last] : ends) {
      if (last == id) branches.push_back(branch);
    }
    effects.at(id).references = std::ssize(branches) + 1;  // ours
    for (const BranchId branch : branches) refer(branch, parent);
    effects.erase(id);
    if (parent != EffectId::kNone) release(parent);  // the reference that it had
  }

  // --- without
  EffectId begin(const Branch& branch, std::string_view key) {
    const Place place = place_of(branch, "begin");
    const std::lock_guard lock(mutex);
    if (const Effect* known = find(place, key)) {
      throw Error("ledger: begin: the branch has " + in_quotes(known->key) + " at token " +
                  std::to_string(place.length) + (known->value ? "" : ", which has not ended") +
                  "; expected it once (see once and find)");
    }
    return add(place, key);
  }
  void settle() {
    std::unique_lock lock(mutex);
    if (std::exchange(telling, true)) return;  // whoever tells goes on with what came since
    try {
      while (!due.empty()) {
        const Due next = std::move(due.front());
        due.pop_front();
        lock.unlock();
        const auto& hook = next.commit ? hooks.on_commit : hooks.on_abort;
        if (hook) hook(next.effect);
        lock.lock();
      }
    } catch (...) {
      lock.lock();
      telling = false;
      throw;
    }
    telling = false;
  }

  const LedgerHooks hooks;
  mutable std::mutex mutex;
  std::map<EffectId, Kept> effects;  // parents before children
  std::unordered_map<BranchId, EffectId> ends;
  std::uint64_t last_id = 0;
  std::map<EffectId, Effect> left_open;  // that nobody has any more, and that have not ended
  std::deque<Due> due;
  bool telling = false;
  EventSubscription subscription;  // the last one: it is off before the rest goes
};

Ledger::Ledger(const Session& session, LedgerHooks hooks)
    : impl_(std::make_unique<Impl>(session, std::move(hooks))) {}

Ledger::Ledger(const Session& session, std::string_view saved, ConstBranches branches,
               LedgerHooks hooks)
    : Ledger(session, std::move(hooks)) {
  LedgerText text = parse_ledger(saved);
  const std::lock_guard lock(impl_->mutex);
  impl_->last_id = text.last_id;
  for (Effect& effect : text.effects) {
    const EffectId id = effect.id;
    if (effect.parent != EffectId::kNone) ++impl_->effects.at(effect.parent).references;
    effect.saved = true;
    impl_->effects[id] = {std::move(effect), 0};
  }
  for (const Branch& branch : branches) {
    const auto found = text.ends.find(branch.id());
    if (found != text.ends.end()) impl_->refer(found->first, found->second);
  }
  std::vector<EffectId> unused;
  for (const auto& [id, kept] : impl_->effects) {
    if (kept.references == 0) unused.push_back(id);
  }
  for (const EffectId id : unused) {
    impl_->effects.at(id).references = 1;
    impl_->release(id);
  }
  impl_->due.clear();  // they are left out, and not told of
  impl_->left_open.clear();
}

Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

std::string Ledger::once(const Branch& branch, std::string_view key,
                         const std::function<std::string()>& call) {
  const Place place = impl_->place_of(branch, "once");
  EffectId id = EffectId::kNone;
  {
    const std::lock_guard lock(impl_->mutex);
    if (const Effect* known = impl_->find(place, key)) {
      if (known->value) return *known->value;
      throw Error("ledger: once: " + in_quotes(known->key) + " was begun at token " +
                  std::to_string(place.length) +
                  " of the branch and has not ended; expected that somebody knows what came of it "
                  "(end), or that it never began (forget)");
    }
    id = impl_->add(place, key);
  }
  std::string value;
  try {
    value = call();
  } catch (...) {
    forget(id);
    throw;
  }
  end(id, value);
  return value;
}

EffectId Ledger::begin(const Branch& branch, std::string_view key) {
  const EffectId id = impl_->begin(branch, key);
  impl_->settle();
  return id;
}

void Ledger::end(EffectId effect, std::string_view value) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->open(effect, "end").value = value;
    if (const auto left = impl_->left_open.extract(effect)) {
      impl_->due.push_back({false, left.mapped()});
    }
  }
  impl_->settle();
}

void Ledger::forget(EffectId effect) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->open(effect, "forget");
    if (impl_->left_open.erase(effect) == 0) impl_->take_out(effect);
  }
  impl_->settle();
}

std::optional<Effect> Ledger::find(const Branch& branch, std::string_view key) const {
  const Place place = impl_->place_of(branch, "find");
  const std::lock_guard lock(impl_->mutex);
  const Effect* known = impl_->find(place, key);
  return known == nullptr ? std::nullopt : std::optional(*known);
}

std::vector<Effect> Ledger::path(const Branch& branch) const {
  const Place place = impl_->place_of(branch, "path");
  const std::lock_guard lock(impl_->mutex);
  std::vector<Effect> path;
  for (const EffectId id : impl_->path_of(place.branch)) {
    path.push_back(impl_->effects.at(id).effect);
  }
  return path;
}

void Ledger::follow(const Branch& branch, const Branch& from) {
  const Place place = impl_->place_of(branch, "follow");
  const Place other = impl_->place_of(from, "follow");
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->refer(place.branch, impl_->last_of(other.branch));
  }
  impl_->settle();
}

void Ledger::commit(const Branch& branch) {
  const Place place = impl_->place_of(branch, "commit");
  {
    const std::lock_guard lock(impl_->mutex);
    const std::vector<EffectId> path = impl_->path_of(place.branch);
    for (const EffectId id : path) {
      const Effect& effect = impl_->effects.at(id).effect;
      if (effect.value) continue;
      throw Error("ledger: commit: " + in_quotes(effect.key) + ", begun at token " +
                  std::to_string(effect.length) + ", has not ended; expected that all have");
    }
    for (const EffectId id : path) {
      Effect& effect = impl_->effects.at(id).effect;
      if (std::exchange(effect.committed, true)) continue;
      impl_->due.push_back({true, effect});
    }
  }
  impl_->settle();
}

void Ledger::settle() {
  impl_->settle();
}

std::string Ledger::save() {
  const std::lock_guard lock(impl_->mutex);
  LedgerText text{.last_id = impl_->last_id};
  for (auto& [id, kept] : impl_->effects) {
    kept.effect.saved = true;
    text.effects.push_back(kept.effect);
  }
  text.ends.insert(impl_->ends.begin(), impl_->ends.end());
  return write_ledger(text);
}

}  // namespace dendrite
