#include "grammar/grammar_cache.h"

#include <algorithm>

namespace dendrite {

GrammarCache::GrammarCache(Tokenizer tokenizer, std::int64_t vocab, std::vector<Token> eos,
                           int families)
    : tokenizer_(std::move(tokenizer)), vocab_(vocab), eos_(std::move(eos)), families_(families) {}

std::shared_ptr<const Grammar> GrammarCache::compiled(const Constraint& constraint) {
  const std::shared_ptr<Entry> entry = entry_of(constraint);
  const std::scoped_lock lock(entry->mutex);
  if (entry->grammar == nullptr) {
    entry->grammar = std::make_shared<const Grammar>(vocabulary(), constraint, families_);
  }
  return entry->grammar;
}

std::shared_ptr<GrammarCache::Entry> GrammarCache::entry_of(const Constraint& constraint) {
  constexpr std::size_t kMost = 128;  // some 300 KB each
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(
      entries_, constraint, [](const auto& entry) -> const auto& { return entry->constraint; });
  if (found == entries_.end()) {
    entries_.push_front(std::make_shared<Entry>(constraint));
    if (entries_.size() > kMost) entries_.pop_back();
  } else {
    entries_.splice(entries_.begin(), entries_, found);
  }
  return entries_.front();
}

std::shared_ptr<const Vocabulary> GrammarCache::vocabulary() {
  const std::scoped_lock lock(vocabulary_mutex_);
  if (vocabulary_ == nullptr) {
    vocabulary_ = std::make_shared<const Vocabulary>(tokenizer_, vocab_, eos_);
  }
  return vocabulary_;
}

}  // namespace dendrite
