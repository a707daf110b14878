#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/session.h"

// What a program does outside for branches: calls of tools, files.
namespace dendrite {

/// Names an effect; never reused by its ledger, and the same when that is restored.
enum class EffectId : std::uint64_t { kNone = 0 };

/// Something that was done outside for a branch, at a place of its text: a call that was made, a
/// state of files. Branches that are forked from there have it on their path, too; those that were
/// forked before, or are cut from an earlier place (Branch::at), have not. The ids along a path are
/// a branch's lineage: a program that keeps files names their states by them.
struct Effect {
  EffectId id = EffectId::kNone;
  EffectId parent = EffectId::kNone;   ///< the one before it on its path
  std::int64_t length = 0;             ///< tokens of the branch when it was begun
  std::string key;                     ///< what was done, by the program's own name
  std::optional<std::string> value{};  ///< what came of it; nullopt: it has not ended
  bool committed = false;              ///< it is final
  bool saved = false;  ///< Ledger::save() wrote it: a branch that is restored may have it
};

/// Called without locks, in the thread that is in a function of the ledger; they may call it and
/// the engine. What one throws comes out of that function, and the others are called by the next.
struct LedgerHooks {
  /// The effect is final: a branch that has it was committed. Along the path, the first one first.
  std::function<void(const Effect& effect)> on_commit{};
  /// It has ended, the branches that had it are all gone (pruned), and none of them was committed:
  /// its files can go. The last one of a path first. Where it was `saved`, only if no snapshot that
  /// has it will be restored.
  std::function<void(const Effect& effect)> on_abort{};
};

/// The effects of a session's branches. It follows forks, rewinds and drops by itself, whoever
/// makes them, from when it was made on. Any thread may use it, but for moves. It does not keep its
/// session alive; while it lives, forks and prunes of its engine each call a function.
///
/// A branch that is restored repeats no call:
///   session.save(file, {}, {.attachment = ledger.save()});
///   ...
///   Restored restored = engine.restore(file);
///   Ledger ledger(restored.session, restored.attachment, restored.branches);
///   ledger.once(restored.branches[0], "pay 5", pay);  // the value of then
class Ledger {
 public:
  explicit Ledger(const Session& session, LedgerHooks hooks = {});
  /// Goes on with what save() gave, for those of its branches that were restored; other branches'
  /// effects are left out, and no hook is told. Throws Error for a text of another form.
  Ledger(const Session& session, std::string_view saved, ConstBranches branches,
         LedgerHooks hooks = {});
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;
  ~Ledger();

  /// What `call` returns, which is made once at this place: where the branch has an effect by this
  /// key that was begun when it was as long as it is now, that one's value instead. Throws what
  /// `call` throws, and forgets the effect; and Error where there is one that has not ended:
  /// another thread is at it, or it was saved in between and nobody knows what came of it.
  std::string once(const Branch& branch, std::string_view key,
                   const std::function<std::string()>& call);
  /// The same in two parts, for who saves in between, or calls in another thread. From here on the
  /// branch has the effect. Throws Error where it has one by this key here, ended or not.
  EffectId begin(const Branch& branch, std::string_view key);
  /// Where its branches are gone by now, on_abort is told. Throws Error for one that has ended, and
  /// one that the ledger does not know.
  void end(EffectId effect, std::string_view value);
  /// It has not ended and never will: as though it had not been begun. No hook is told.
  void forget(EffectId effect);

  /// The effect by this key at the branch's end, see once.
  std::optional<Effect> find(const Branch& branch, std::string_view key) const;
  /// All of its path, the first one first.
  std::vector<Effect> path(const Branch& branch) const;
  /// A branch that is no fork (composed, or of a prompt that was put together anew) goes on with
  /// what another has, all as of its end, instead of its own.
  void follow(const Branch& branch, const Branch& from);

  /// What the branch has is final, and stays so whatever becomes of it. Throws Error where one of
  /// them has not ended.
  void commit(const Branch& branch);
  /// Calls hooks that are due. All functions that change something do so as well; branches that are
  /// dropped are told of at the next of these.
  void settle();

  /// All effects of live branches as text, for SaveOptions::attachment or a part of it. What is
  /// begun between it and the save is not in it: a branch that is restored would begin it again.
  std::string save();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dendrite
