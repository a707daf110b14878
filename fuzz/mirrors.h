#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "engine/branches/internals.h"
#include "engine/branches/session_core.h"
#include "fuzz/reference.h"

namespace dendrite::fuzz {

/// A session and what it must count.
struct Owner {
  std::optional<Session> session;  // empty: the handle is gone, its branches may live on
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::map<std::vector<Token>, std::uint64_t> prompts{};  // how often each was given
  int number = 0;
  std::int64_t preemptions_counted = 0;
  std::int64_t regenerated_counted = 0;
  std::int64_t taken_counted = 0;
  std::int64_t accepted_counted = 0;
  std::int64_t moved_counted = 0;
  std::int64_t compositions = 0;  // that the session must count
  DecodeParams ahead{};           // by which tokens were last drawn ahead
};

/// A live branch and its mirror: all that it must be, kept outside of the engine.
struct Mirror {
  Branch branch;
  Owner* owner = nullptr;
  std::vector<Token> tokens;
  Spans spans;
  std::int64_t prompt_length = 0;
  std::shared_ptr<const Recipe> composed;
  std::uint64_t stream = 0;
  Lineage lineage;
  std::uint64_t forks = 0;
  double logprob = 0;
  int priority = 0;
  int number = 0;

  std::int64_t length() const { return std::ssize(tokens); }
  History history() const { return {owner->seed, stream, prompt_length, tokens, spans, composed}; }
  SessionCore& core() const { return *state_of(branch)->session; }
  /// Throws a Violation unless the branch says of itself what the mirror says.
  void check() const;

  // The branch and its mirror:
  /// Nothing: free.
  void constrain(const std::optional<Constraint>& constraint);
  /// `text`: what the tokens spell, if that is what is to be appended, else null. False: the
  /// constraint refuses one of them, and nothing was appended.
  bool append(std::span<const Token> more, const char* text = nullptr);

 private:
  void check_composition() const;
};

bool any_constrained(const std::vector<Mirror*>& mirrors);

/// "b3 b7": for the narration.
std::string names_of(const std::vector<Mirror*>& mirrors);

/// Branches out of their mirrors, as a call wants them, and back.
class Batch {
 public:
  explicit Batch(const std::vector<Mirror*>& mirrors) : mirrors_(mirrors) {
    for (Mirror* mirror : mirrors) branches_.push_back(std::move(mirror->branch));
  }
  ~Batch() {
    for (std::size_t i = 0; i < mirrors_.size(); ++i) {
      mirrors_[i]->branch = std::move(branches_[i]);
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  std::span<Branch> branches() { return branches_; }
  Branch& operator[](std::size_t i) { return branches_[i]; }

 private:
  std::vector<Mirror*> mirrors_;
  std::vector<Branch> branches_;
};

/// Some mirrors, and how new ones come about. Used by one thread at a time.
class Mirrors {
 public:
  /// `next_number`: of the next mirror, shared by all whose names must differ.
  Mirrors(Counts& counts, std::atomic<int>& next_number)
      : counts_(counts), next_number_(next_number) {}

  std::vector<std::unique_ptr<Mirror>>& all() { return all_; }
  const std::vector<std::unique_ptr<Mirror>>& all() const { return all_; }
  std::vector<Mirror*> of(const Owner& owner) const;

  Mirror& add(Branch branch, Owner& owner, History history, Lineage lineage);
  /// Of a prompt that was just given to its owner. `stream`: as given.
  Mirror& add_prompt(Branch branch, Owner& owner, const std::vector<Token>& prompt,
                     std::uint64_t before, std::optional<std::uint64_t> stream);
  /// Of a branch that was just composed, of these tokens, as a fork of `parent`; null: nobody's.
  Mirror& add_composed(Branch branch, Owner& owner, Mirror* parent, std::vector<Token> tokens,
                       std::shared_ptr<const Recipe> recipe);
  /// Of a fork that was just made of `parent` when it had `tokens`; `stream`: as given.
  Mirror& add_fork(Branch child, Mirror& parent, std::vector<Token> tokens, double logprob,
                   std::optional<std::uint64_t> stream = {});
  /// Of a child of `parent` with one more token.
  Mirror& add_child(Branch child, Mirror& parent, const TokenLogprob& token);
  void drop(const Mirror& mirror);
  /// Out of the others, and back.
  std::unique_ptr<Mirror> take(const Mirror& mirror);
  void put(std::unique_ptr<Mirror> mirror) { all_.push_back(std::move(mirror)); }
  std::atomic<int>& next_number() { return next_number_; }

 private:
  Mirror& add_birth(Branch child, Mirror& parent, History history, const Lineage::Birth& birth);
  static History history_of_birth(const Mirror& parent, std::vector<Token> tokens,
                                  std::int64_t length, std::uint64_t stream);

  std::vector<std::unique_ptr<Mirror>> all_;
  Counts& counts_;
  std::atomic<int>& next_number_;
};

}  // namespace dendrite::fuzz
