#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "fuzz/mirrors.h"
#include "fuzz/plan.h"
#include "fuzz/program.h"

namespace dendrite::fuzz {

/// What a world is made of beside its setting.
struct Ground {
  std::string model;
  EngineOptions engine{};         // what the setting does not say
  std::filesystem::path scratch;  // a folder for files
  bool narrate = false;
  /// Runs a thread's job. What that throws is a finding, and ends the process.
  std::function<void(const std::function<void()>&)> guard{};
};

/// The engine that is fuzzed, its sessions and branches, and their mirrors.
class World {
 public:
  static constexpr std::int64_t kMostBranches = 40;
  static constexpr std::int64_t kMostSessions = 3;
  static constexpr std::int64_t kMostTokens = 2000;  // of a branch

  World(Ground ground, const Setting& setting, Reference& reference);
  ~World();

  /// One operation, and the checks of everything after it.
  void run(const Op& op, Draws& draws);
  /// Compares every branch, drops all, and looks for what is left behind.
  void finish();

  // --- choosing
  std::vector<std::unique_ptr<Mirror>>& branches() { return mirrors_.all(); }
  std::vector<std::unique_ptr<Owner>>& owners() { return owners_; }
  /// A live branch; null: there is none.
  Mirror* any_branch(Draws& draws);
  /// One whose session's handle is there; null: there is none.
  Mirror* any_decodable(Draws& draws);
  /// Some branches of the owner's, at least `first`, in random order.
  std::vector<Mirror*> company(Draws& draws, Mirror& first, std::int64_t most);
  Owner& any_session(Draws& draws);  // opens one when there is none
  Owner& open_session(std::uint64_t seed, std::uint64_t stream = 0);
  /// A session from elsewhere that had this seed, this stream and these prompts.
  Owner& adopt(Session session, std::uint64_t seed, std::uint64_t stream,
               std::map<std::vector<Token>, std::uint64_t> prompts);
  bool full() const { return std::ssize(mirrors_.all()) >= kMostBranches; }

  /// Where what happens is mirrored.
  Mirrors& mirrors() { return mirrors_; }
  void drop(Mirror& mirror);
  void close(Owner& owner, bool with_branches);

  // --- comparing
  /// K, V and logits as far as they are there. Computes nothing.
  void compare_bits(Mirror& mirror);
  /// The random stream, with that of the branch's lineage alone.
  void compare_stream(const Mirror& mirror);
  /// Computes what is missing first. False: it got no pages.
  bool compare_whole(Mirror& mirror);
  /// What may follow under its constraint, with what its grammar says of every token by itself.
  void compare_mask(Mirror& mirror);
  /// A call over these branches got no pages. Counted; a violation unless one of them does not even
  /// fit alone with `tokens` more, that are forked inside a page at most `forks` times.
  void refused(const std::vector<Mirror*>& mirrors, std::int64_t tokens = 0,
               std::int64_t forks = 0);

  template <typename... T>
  void say(const T&... parts) {
    if (!ground_.narrate) return;
    std::ostringstream line;
    (line << ... << parts);
    print(line.str());
  }

  void guard(const std::function<void()>& job) const { ground_.guard(job); }

  /// Drops everything and goes on with a new engine of the same setting.
  void restart();

  const Engine& engine() const { return engine_; }
  const std::filesystem::path& scratch() const { return ground_.scratch; }
  Reference& reference() { return reference_; }
  Counts& counts() { return reference_.counts; }
  std::int64_t vocab() const { return engine_.info().vocab; }
  bool has_text() const { return engine_.info().has_tokenizer; }
  std::vector<std::vector<Token>>& prompts() { return prompts_; }
  /// Those with a handle.
  std::vector<KnownChunk>& chunks() { return chunks_; }

 private:
  void set_clock();
  void check();
  void check_emptied();
  static void compare_composition(const Composition& got, const Composition& expected,
                                  const std::string& name);
  void compare_first_keys(const Mirror& mirror, std::span<const float> kv, std::int64_t positions);
  void count_events();
  std::int64_t chain_pages(const Mirror& mirror) const;
  void print(const std::string& line) const;

  Ground ground_;
  Setting setting_;
  Reference& reference_;
  Engine engine_;
  std::vector<std::unique_ptr<Owner>> owners_;
  std::atomic<int> next_branch_{0};
  Mirrors mirrors_{reference_.counts, next_branch_};
  std::vector<std::vector<Token>> prompts_;  // some that were prefilled
  std::vector<KnownChunk> chunks_;
  std::vector<const Tip*> tips_;  // scratch of check
  std::int64_t copies_counted_ = 0;
  std::int64_t evictions_counted_ = 0;
  int next_session_ = 0;
  std::int64_t done_ = 0;
};

}  // namespace dendrite::fuzz
