#include "kv/chunk_index.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace dendrite {
namespace {

constexpr std::size_t kBeginning = 16;  // tokens that a view of a chunk has of it

}  // namespace

const std::shared_ptr<const Lineage>& ChunkEntry::lineage() {
  if (lineage_ == nullptr) {
    auto made = std::make_shared<Lineage>();
    made->add(left());
    made->add(tokens());
    lineage_ = std::move(made);
  }
  return lineage_;
}

ChunkIndex::ChunkIndex(KvTree& tree, std::int64_t limit_tokens)
    : tree_(tree), limit_tokens_(limit_tokens) {}

ChunkIndex::~ChunkIndex() {
  clear();
}

// --- registration

ChunkIndex::Entries::const_iterator ChunkIndex::find_entry(const ChunkKey& key,
                                                           std::span<const Token> left,
                                                           std::span<const Token> tokens) const {
  const auto [first, last] = entries_.equal_range(key);
  const auto found = std::find_if(first, last, [&](const auto& known) {
    const std::span<const Token> its_left = known.second->left();
    const bool same_place = its_left.data() == left.data() && its_left.size() == left.size();
    return std::ranges::equal(known.second->tokens(), tokens) &&
           (same_place || std::ranges::equal(its_left, left));
  });
  return found == last ? entries_.end() : found;
}

std::shared_ptr<ChunkEntry> ChunkIndex::find(const ChunkKey& key, std::span<const Token> left,
                                             std::span<const Token> tokens) {
  ++stats_.lookups;
  const auto found = find_entry(key, left, tokens);
  if (found == entries_.end()) return nullptr;
  ChunkEntry& entry = *found->second;
  ++stats_.hits;
  stats_.hit_tokens += computed_tokens(entry);
  ++entry.hits_;
  touch(entry);
  return found->second;
}

std::shared_ptr<ChunkEntry> ChunkIndex::insert(ChunkSpec spec) {
  assert(spec.left != nullptr && !spec.tokens.empty());
  return enter(std::make_shared<ChunkEntry>(std::move(spec)));
}

std::shared_ptr<ChunkEntry> ChunkIndex::insert_again(const std::shared_ptr<ChunkEntry>& entry) {
  return enter(entry);
}

std::shared_ptr<ChunkEntry> ChunkIndex::enter(const std::shared_ptr<ChunkEntry>& entry) {
  const auto known = find_entry(entry->key(), entry->left(), entry->tokens());
  if (known != entries_.end()) {
    touch(*known->second);
    return known->second;
  }
  entries_.emplace(entry->key(), entry);
  entry->is_forgotten_ = false;
  stats_.tokens += std::ssize(entry->tokens());
  touch(*entry);
  trim(entry.get());
  return entry;
}

void ChunkIndex::forget(ChunkEntry& entry) {
  if (entry.is_forgotten_) return;
  const auto [first, last] = entries_.equal_range(entry.key());
  const auto found =
      std::find_if(first, last, [&](const auto& known) { return known.second.get() == &entry; });
  assert(found != last && "an entry of another index");
  drop_tip(entry);
  move_to(nullptr, entry, entry.idle_place_);
  entry.is_forgotten_ = true;
  stats_.tokens -= std::ssize(entry.tokens());
  ++stats_.forgotten;
  entries_.erase(found);  // may free the entry
}

void ChunkIndex::clear() {
  while (!entries_.empty()) forget(*entries_.begin()->second);
}

/// Forgets idle entries, the least recently used first, until the limit holds; never `spared`.
void ChunkIndex::trim(const ChunkEntry* spared) {
  while (stats_.tokens > limit_tokens_ && !idle_.empty() && idle_.back() != spared) {
    forget(*idle_.back());
  }
}

// --- use

void ChunkIndex::use(ChunkEntry& entry) {
  ++entry.uses_;
  touch(entry);
}

void ChunkIndex::unuse(ChunkEntry& entry) {
  assert(entry.uses_ > 0);
  --entry.uses_;
  touch(entry);
  trim(nullptr);
}

void ChunkIndex::read(ChunkEntry& entry) {
  const std::int64_t hit = state(entry) == ChunkState::kWarm ? 1 : 0;
  ++entry.reads_;
  entry.read_hits_ += hit;
  ++stats_.reads;
  stats_.read_hits += hit;
  touch(entry);
}

// --- computing it

/// Of its own tokens, those whose K and V are there.
std::int64_t ChunkIndex::computed_tokens(const ChunkEntry& entry) const {
  if (entry.tip_.empty()) return 0;
  return std::max<std::int64_t>(tree_.computed(entry.tip_) - std::ssize(entry.left()), 0);
}

ChunkState ChunkIndex::state(const ChunkEntry& entry) const {
  if (entry.is_forgotten_) return ChunkState::kForgotten;
  if (entry.is_filling_) return ChunkState::kFilling;
  if (computed_tokens(entry) == std::ssize(entry.tokens())) return ChunkState::kWarm;
  return entry.fills_ > 0 ? ChunkState::kCold : ChunkState::kRegistered;
}

void ChunkIndex::begin_fill(ChunkEntry& entry) {
  assert(!entry.is_filling_ && !entry.is_forgotten_);
  entry.is_filling_ = true;
  touch(entry);
}

void ChunkIndex::end_fill(ChunkEntry& entry, const Tip& tip, double spent_ms) {
  assert(entry.is_filling_ && tree_.length(tip) >= entry.length());
  entry.is_filling_ = false;
  ++entry.fills_;
  entry.fill_ms_ = spent_ms;
  ++stats_.fills;
  stats_.fill_ms += spent_ms;
  if (!entry.is_forgotten_) {
    Tip computed = tree_.at(tip, entry.length());  // before the drop: `tip` may be the entry's own
    tree_.drop(entry.tip_);
    entry.tip_ = std::move(computed);
  }
  touch(entry);
  trim(nullptr);
}

void ChunkIndex::give_up_fill(ChunkEntry& entry) {
  assert(entry.is_filling_);
  entry.is_filling_ = false;
  touch(entry);
  trim(nullptr);
}

// --- giving pages back

bool ChunkIndex::evict_one() {
  if (evict_oldest(Tails::kStay)) return true;
  // A tail keeps the segment above it from being dropped, whose entry may be older than its own.
  for (std::size_t before = idle_tips_.size() + 1; idle_tips_.size() < before;) {
    before = idle_tips_.size();
    if (evict_oldest(Tails::kGo)) return true;
  }
  return false;
}

/// One walk from the least recently used idle tip on, until dropping one has given pages back.
bool ChunkIndex::evict_oldest(Tails tails) {
  std::unordered_map<const Segment*, std::int32_t> ends;  // how many idle tips end there
  if (tails == Tails::kGo) {
    for (const ChunkEntry* entry : idle_tips_) ++ends[tree_.segment(entry->tip_)];
  }
  for (auto place = idle_tips_.end(); place != idle_tips_.begin();) {
    --place;
    ChunkEntry& entry = **place;
    const Segment* end = tree_.segment(entry.tip_);
    if (end->refs > 1 && (tails == Tails::kStay || end->refs > ends[end])) continue;
    const bool gives_pages = end->refs == 1 && tree_.own_pages(entry.tip_) > 0;
    if (tails == Tails::kGo) {
      --ends[end];
    } else if (!gives_pages && computed_tokens(entry) > 0) {
      continue;
    }
    ++place;  // away from what is taken out
    evict(entry);
    if (gives_pages) return true;
  }
  return false;
}

void ChunkIndex::evict(ChunkEntry& entry) {
  if (computed_tokens(entry) > 0) ++stats_.evictions;
  drop_tip(entry);
}

void ChunkIndex::drop_tip(ChunkEntry& entry) {
  tree_.drop(entry.tip_);
  move_to(nullptr, entry, entry.tip_place_);
}

// --- recency

/// The entry is the most recent one, and in the lists in which it belongs.
void ChunkIndex::touch(ChunkEntry& entry) {
  entry.last_use_ = ++touches_;
  const bool idle = is_idle(entry);
  move_to(idle ? &idle_ : nullptr, entry, entry.idle_place_);
  Recency* tips = idle ? &idle_tips_ : &used_tips_;
  move_to(entry.tip_.empty() ? nullptr : tips, entry, entry.tip_place_);
}

/// From where it stands to the front of `list`; null: to nowhere.
void ChunkIndex::move_to(Recency* list, ChunkEntry& entry, ChunkEntry::Place& place) {
  if (list == nullptr) {
    if (place.list != nullptr) place.list->erase(place.at);
  } else if (place.list == nullptr) {
    list->push_front(&entry);
    place.at = list->begin();
  } else {
    list->splice(list->begin(), *place.list, place.at);  // place.at stays valid
  }
  place.list = list;
}

// --- looking at it

ChunkIndexStats ChunkIndex::stats() const {
  ChunkIndexStats stats = stats_;
  stats.entries = size();
  for (const Recency* tips : {&idle_tips_, &used_tips_}) {
    stats.warm += std::ranges::count_if(
        *tips, [&](const ChunkEntry* entry) { return state(*entry) == ChunkState::kWarm; });
  }
  std::vector<const Tip*> tips;
  collect_tips(tips);
  stats.pages = tree_.usage(tips).unique_pages;
  return stats;
}

std::vector<ChunkInfo> ChunkIndex::list() const {
  std::vector<ChunkInfo> infos;
  infos.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) {
    const std::span<const Token> tokens = entry->tokens();
    const auto beginning = tokens.first(std::min(tokens.size(), kBeginning));
    ChunkInfo info{.name = entry->name(),
                   .key = to_hex(key.content),
                   .id = to_text(key),
                   .beginning = {beginning.begin(), beginning.end()},
                   .text = {},
                   .left_tokens = std::ssize(entry->left()),
                   .tokens = std::ssize(tokens),
                   .tokens_held = computed_tokens(*entry),
                   .state = state(*entry),
                   .uses = entry->uses_,
                   .hits = entry->hits_,
                   .reads = entry->reads_,
                   .read_hits = entry->read_hits_,
                   .last_use = entry->last_use_,
                   .fill_ms = entry->fill_ms_};
    if (const Tip* tip = &entry->tip_; !tip->empty()) {
      info.pages = tree_.usage(std::span(&tip, 1)).unique_pages;
      info.own_pages = tree_.own_pages(*tip);
    }
    infos.push_back(std::move(info));
  }
  std::ranges::sort(infos, std::ranges::greater{}, &ChunkInfo::last_use);
  return infos;
}

void ChunkIndex::collect_tips(std::vector<const Tip*>& out) const {
  for (const Recency* tips : {&idle_tips_, &used_tips_}) {
    for (const ChunkEntry* entry : *tips) out.push_back(&entry->tip_);
  }
}

void ChunkIndex::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("ChunkIndex: ") + what);
  };
  const auto check_list = [&](const Recency& list, ChunkEntry::Place ChunkEntry::*place) {
    std::uint64_t newer = touches_ + 1;
    for (auto at = list.begin(); at != list.end(); ++at) {
      const ChunkEntry& entry = **at;
      require(entry.last_use_ < newer, "a list is not in the order of use");
      require((entry.*place).list == &list && (entry.*place).at == at,
              "an entry knows another place");
      newer = entry.last_use_;
    }
  };
  check_list(idle_, &ChunkEntry::idle_place_);
  check_list(idle_tips_, &ChunkEntry::tip_place_);
  check_list(used_tips_, &ChunkEntry::tip_place_);
  std::int64_t tokens = 0;
  std::int64_t idle = 0;
  std::int64_t tips = 0;
  for (const auto& [key, entry] : entries_) {
    require(key == entry->key() && !entry->is_forgotten_, "a forgotten entry is found");
    require(find_entry(key, entry->left(), entry->tokens())->second == entry,
            "a chunk is registered twice");
    require(entry->uses_ >= 0, "uses are negative");
    tokens += std::ssize(entry->tokens());
    const bool has_tip = !entry->tip_.empty();
    const bool has_idle_place = entry->idle_place_.list == &idle_;
    const Recency* tips_list = is_idle(*entry) ? &idle_tips_ : &used_tips_;
    idle += is_idle(*entry) ? 1 : 0;
    tips += has_tip ? 1 : 0;
    require(has_idle_place == is_idle(*entry), "idle_ is not the idle entries");
    require(entry->tip_place_.list == (has_tip ? tips_list : nullptr), "a tip is not in its list");
    if (!has_tip) continue;
    std::vector<Token> path(entry->left().begin(), entry->left().end());
    path.insert(path.end(), entry->tokens().begin(), entry->tokens().end());
    require(path == tree_.tokens(entry->tip_), "a tip has other tokens than its entry");
  }
  require(idle == std::ssize(idle_) && tips == std::ssize(idle_tips_) + std::ssize(used_tips_),
          "a list is too long");
  require(tokens == stats_.tokens, "statistics do not match");
  require(tokens <= limit_tokens_ || idle <= 1, "more tokens are registered than may be");
}

}  // namespace dendrite
