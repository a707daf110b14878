#pragma once

#include <memory>

#include "server/branch_store.h"
#include "server/effects.h"

namespace dendrite::server {

constexpr std::size_t kMostBranches = 4096;  // of one key
constexpr std::chrono::hours kIdleBranch{1};

/// What the endpoints of branches share.
struct Branches {
  explicit Branches(Service& service) : service(service), effects(service.http) {}
  Service& service;
  BranchStore store{kMostBranches, kIdleBranch};
  Effects effects;  ///< behind the store: at the end it does not hear of all the branches
};

/// /v1/branches/{id}/effects, /v1/branches/{id}/commit and /v1/effects.
void add_effect_routes(const std::shared_ptr<Branches>& all);

}  // namespace dendrite::server
