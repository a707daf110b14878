#pragma once

#include <memory>

#include "server/branch_saves.h"
#include "server/branch_store.h"
#include "server/effects.h"

namespace dendrite::server {

constexpr std::size_t kMostBranches = 4096;  // of one key
constexpr std::chrono::hours kIdleBranch{1};

/// What the endpoints of branches share.
struct Branches {
  explicit Branches(Service& service);
  /// Sends it when what was done for this key by now would survive; where nothing is saved, or
  /// nothing `changed` and all is saved already, at once.
  void acknowledge(std::uint64_t key, const Reply& reply, Answer answer, bool changed = true) const;

  Service& service;
  BranchStore store{kMostBranches, kIdleBranch};
  Effects effects;                     ///< behind the store: at the end it hears of no branch
  std::unique_ptr<BranchSaves> saves;  ///< none: branches end with the process
};

/// /v1/branches/{id}/effects, /v1/branches/{id}/commit and /v1/effects.
void add_effect_routes(const std::shared_ptr<Branches>& all);

}  // namespace dendrite::server
