#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine.h"
#include "options.h"
#include "oracle_drafter.h"

namespace dendrite::bench {

/// Who drafts in a bench's calls.
class DraftMode {
 public:
  /// One of the engine's own.
  DraftMode(Speculate speculate, std::int64_t budget, bool is_free)
      : name_(dendrite::name_of(speculate)),
        speculate_(speculate),
        budget_(budget),
        is_free_(is_free) {}
  /// An oracle, which knows `texts`.
  DraftMode(const Engine& engine, const KnownTexts& texts, const OracleOptions& oracle,
            std::int64_t budget, bool is_free);

  const std::string& name() const { return name_; }
  /// Of a report's rows: "mode", and an oracle's acceptance.
  Json params() const;
  /// A mode that drafts chains, and what drafts trees otherwise alike.
  bool is_chain_of(const DraftMode& tree) const;
  bool is_oracle() const { return oracle_ != nullptr; }

  /// Calls `decode` with these parameters and this mode's.
  template <typename Decode>
  auto with(DecodeParams params, Decode&& decode) {
    params.speculate = speculate_;
    params.speculate_budget = budget_;
    if (is_free_) params.slack = std::numeric_limits<double>::infinity();
    if (oracle_ == nullptr) return decode(params);
    const DraftModelInPlace in_place(*engine_, oracle_);
    return decode(params);
  }

 private:
  std::string name_;
  Speculate speculate_;
  std::int64_t budget_;
  bool is_free_;
  std::optional<Engine> engine_{};
  std::unique_ptr<DraftProvider> oracle_{};  // what it learns it keeps
  OracleOptions told_{};
};

/// The flags that choose modes.
struct DraftOptions {
  std::vector<std::string> modes;  // empty: what the engine has, and both oracles
  std::vector<double> acceptances = {0.8};
  OracleOptions oracle;
  std::int64_t budget = 16;
  std::int64_t tree_budget = 0;  // 0: the same
  bool is_free = false;          // drafts whatever time they take
  bool cpu_clock = false;

  void add_to(CLI::App& app, CommonOptions& common);
  Clock clock() const { return cpu_clock ? Clock::kCpu : Clock::kWall; }
  std::int64_t largest_budget() const { return std::max(budget, tree_budget); }
  /// Throws Error for a clock that does not fit the engine's threads.
  std::vector<DraftMode> make(const Engine& engine, const CommonOptions& common,
                              const KnownTexts& texts) const;
};

}  // namespace dendrite::bench
