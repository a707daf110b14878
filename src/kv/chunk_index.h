#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dendrite/stats.h"
#include "kv/chunk_key.h"
#include "kv/kv_tree.h"

namespace dendrite {

/// A chunk to be registered.
struct ChunkSpec {
  ChunkKey key;
  /// The tokens that it is computed behind; may be none, is never null. Many chunks have the same.
  std::shared_ptr<const std::vector<Token>> left;
  std::vector<Token> tokens;  // its own
  std::string name;           // for people
};

/// A chunk that is or was in an index. What it is never changes, and may be read at any time; all
/// else is the index's, under the lock of the index. Who holds the entry can register it again when
/// it was forgotten.
class ChunkEntry {
 public:
  explicit ChunkEntry(ChunkSpec spec) : spec_(std::move(spec)) {}

  const ChunkKey& key() const { return spec_.key; }
  std::span<const Token> left() const { return *spec_.left; }
  std::span<const Token> tokens() const { return spec_.tokens; }
  const std::string& name() const { return spec_.name; }
  /// Of a branch that ends with the chunk.
  std::int64_t length() const { return std::ssize(*spec_.left) + std::ssize(spec_.tokens); }

  /// Of left(), tokens(). The same one each time, so that all who wait for it wait for one source.
  const std::shared_ptr<const Lineage>& lineage();

  /// At the end of left(), tokens(), computed or not; empty: it must be made anew.
  const Tip& tip() const { return tip_; }
  std::int64_t uses() const { return uses_; }
  std::int64_t hits() const { return hits_; }
  std::int64_t reads() const { return reads_; }
  /// The index's count of touches when this was last touched: the larger, the more recent.
  std::uint64_t last_use() const { return last_use_; }
  /// What the last fill took.
  double fill_ms() const { return fill_ms_; }

 private:
  friend class ChunkIndex;
  /// Where it stands in a list of the index, if it does.
  struct Place {
    std::list<ChunkEntry*>* list = nullptr;  // null: in none
    std::list<ChunkEntry*>::iterator at;
  };

  const ChunkSpec spec_;
  std::shared_ptr<const Lineage> lineage_;  // null: nobody has asked
  Tip tip_;
  std::int64_t uses_ = 0;
  std::int64_t hits_ = 0;
  std::int64_t reads_ = 0;
  std::int64_t read_hits_ = 0;
  std::int64_t fills_ = 0;
  std::uint64_t last_use_ = 0;
  double fill_ms_ = 0;
  bool is_filling_ = false;
  bool is_forgotten_ = true;  // also before it is registered
  Place idle_place_;
  Place tip_place_;
};

struct ChunkIndexStats {
  std::int64_t entries = 0;
  std::int64_t warm = 0;
  std::int64_t tokens = 0;  // the chunks' own
  std::int64_t pages = 0;   // that their tips hold, each once
  std::int64_t lookups = 0;
  std::int64_t hits = 0;        // look-ups that found the chunk, warm or not
  std::int64_t hit_tokens = 0;  // those of its own tokens whose K and V were there then
  std::int64_t reads = 0;       // see read
  std::int64_t read_hits = 0;   // of them: warm
  std::int64_t evictions = 0;   // chunks that lost K and V to evict_one or evict
  std::int64_t forgotten = 0;   // entries, to stay below the limit or because somebody asked
  std::int64_t fills = 0;
  double fill_ms = 0;  // of all fills together
};

/// The chunks that are registered: tokens with a name, each a branch `left context, own tokens` of
/// the tree whose K and V are computed once and read by many compositions.
///
///     registered -> filling -> warm <-> cold -> filling     any -> forgotten -> (insert_again)
///
/// Warm or cold is not noted but looked up, as K and V of a tip may also be taken by KvTree::evict
/// and come back with a step. The index itself lets them go in evict_one: then the entry keeps its
/// tokens and has no tip. When an entry is forgotten, who holds it keeps its tokens and can
/// register it again.
///
/// An entry is *idle* while nobody uses it (use, unuse) or fills it. Only idle entries lose their
/// tips or are forgotten to make room: the least recently used first. Whatever is done with an
/// entry makes it the most recent one, the end of its last use too; so idle entries have lists of
/// their own, and neither evict_one nor the limit has to walk over those in use.
///
/// Invariants: `idle_` has the idle entries, `idle_tips_` those of them with a tip, `used_tips_`
/// the other entries with a tip, each from the most to the least recently used. Two entries may
/// have one key (a collision), but not the same tokens, too. No more tokens are registered than the
/// limit says, unless at most one entry is idle. The tip of an entry is at its left context and its
/// own tokens.
///
/// Used under the lock of the tree. Costs: O(left + tokens) for whatever compares tokens, else O(1)
/// but where it says more.
class ChunkIndex {
 public:
  /// `limit_tokens`: how many tokens may be registered, left contexts not counted.
  ChunkIndex(KvTree& tree, std::int64_t limit_tokens);
  ~ChunkIndex();
  ChunkIndex(const ChunkIndex&) = delete;
  ChunkIndex& operator=(const ChunkIndex&) = delete;

  // --- registration
  /// The entry with this key and these tokens, which is touched; null: there is none.
  std::shared_ptr<ChunkEntry> find(const ChunkKey& key, std::span<const Token> left,
                                   std::span<const Token> tokens);
  /// Registers a chunk, and forgets the least recently used idle ones as far as the limit asks for
  /// it, but not this one. Known already: gives that entry. Requires: spec.left is not null and
  /// spec.tokens are some.
  std::shared_ptr<ChunkEntry> insert(ChunkSpec spec);
  /// Registers an entry again that was forgotten, with its uses and counts. Gives it, or the one
  /// that was registered for the same chunk meanwhile.
  std::shared_ptr<ChunkEntry> insert_again(const std::shared_ptr<ChunkEntry>& entry);
  /// It is no longer found, and has no tip; uses and a fill go on. If nobody else holds the entry,
  /// this is its end.
  void forget(ChunkEntry& entry);
  void clear();

  // --- use: a handle, a composition that reads it now
  void use(ChunkEntry& entry);
  /// Ends one. The last one's end may make the entry be forgotten, if there are too many tokens.
  void unuse(ChunkEntry& entry);
  /// A composition takes it: counts that, and touches the entry.
  void read(ChunkEntry& entry);

  // --- computing it
  ChunkState state(const ChunkEntry& entry) const;
  /// Requires: it is registered or cold.
  void begin_fill(ChunkEntry& entry);
  /// It is computed; the index forks `tip`, which begins with the chunk's left context and tokens.
  /// If the entry was forgotten meanwhile, the tip is not kept. Requires: begin_fill.
  void end_fill(ChunkEntry& entry, const Tip& tip, double spent_ms);
  /// It was not computed to its end. What tip the entry had it keeps. Requires: begin_fill.
  void give_up_fill(ChunkEntry& entry);

  // --- giving pages back
  /// Drops the tip of the least recently used idle entry where that gives pages back; it is cold
  /// then. On the way it drops tips that have no K and V anyway. False: dropping all idle ones'
  /// tips would give none back. Where no idle tip's end gives pages back by itself, but may keep
  /// other ones from it, such ends go too, also if that was in vain. O(idle tips whose ends others
  /// hold), usually none.
  bool evict_one();
  /// Drops the tip of this entry, idle or not. Compositions that read it hold tips of their own.
  void evict(ChunkEntry& entry);

  // --- looking at it
  std::int64_t size() const { return std::ssize(entries_); }
  std::int64_t limit_tokens() const { return limit_tokens_; }
  /// O(tips and their pages).
  ChunkIndexStats stats() const;
  /// All entries, the most recently used first, without `text`. O(entries log entries + pages).
  std::vector<ChunkInfo> list() const;
  /// Appends the tips that the index holds: for KvTree::check_invariants, and for who looks for
  /// pages where evict_one finds none. O(tips).
  void collect_tips(std::vector<const Tip*>& out) const;
  /// Throws std::logic_error if an invariant does not hold. For tests.
  void check_invariants() const;

 private:
  using Entries = std::unordered_multimap<ChunkKey, std::shared_ptr<ChunkEntry>, ChunkKeyHash>;
  using Recency = std::list<ChunkEntry*>;  // the most recently used first
  /// What to do with ends whose K and V are there and whose drop alone gives no page back: others
  /// hold the only page, or chunks of the same tokens, cut elsewhere, end there, too.
  enum class Tails : std::uint8_t { kStay, kGo };

  Entries::const_iterator find_entry(const ChunkKey& key, std::span<const Token> left,
                                     std::span<const Token> tokens) const;
  std::shared_ptr<ChunkEntry> enter(const std::shared_ptr<ChunkEntry>& entry);
  bool evict_oldest(Tails tails);
  void drop_tip(ChunkEntry& entry);
  void trim(const ChunkEntry* spared);
  void touch(ChunkEntry& entry);
  static void move_to(Recency* list, ChunkEntry& entry, ChunkEntry::Place& place);
  std::int64_t computed_tokens(const ChunkEntry& entry) const;
  static bool is_idle(const ChunkEntry& entry) {
    return entry.uses_ == 0 && !entry.is_filling_ && !entry.is_forgotten_;
  }

  KvTree& tree_;
  const std::int64_t limit_tokens_;
  Entries entries_;
  Recency idle_;
  Recency idle_tips_;
  Recency used_tips_;
  std::uint64_t touches_ = 0;
  ChunkIndexStats stats_;  // but for what is counted when it is asked for: entries, warm, pages
};

}  // namespace dendrite
