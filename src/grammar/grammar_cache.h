#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "grammar/grammar.h"

namespace dendrite {

/// Grammars of one model, each compiled once for equal constraints; those used last are kept.
class GrammarCache {
 public:
  /// `families`: see Grammar.
  GrammarCache(Tokenizer tokenizer, std::int64_t vocab, std::vector<Token> eos, int families);

  /// From any thread; those that want the same one wait for it. Throws ConstraintError.
  std::shared_ptr<const Grammar> compiled(const Constraint& constraint);

 private:
  struct Entry {
    explicit Entry(Constraint of) : constraint(std::move(of)) {}
    Constraint constraint;
    std::mutex mutex;
    std::shared_ptr<const Grammar> grammar;  // guarded by it
  };
  std::shared_ptr<Entry> entry_of(const Constraint& constraint);
  std::shared_ptr<const Vocabulary> vocabulary();

  const Tokenizer tokenizer_;
  const std::int64_t vocab_;
  const std::vector<Token> eos_;
  const int families_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const Vocabulary> vocabulary_;  // guarded by it; made when first wanted
  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // guarded by it; used last, first
};

}  // namespace dendrite
