#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/session.h"
#include "engine/branches/engine_core.h"
#include "io/snapshot_file.h"

namespace dendrite {

struct SessionCore;

/// Session::save and snapshot, and Engine::restore. All hold `compute` for as long as they run, so
/// that no page of the tree is written meanwhile, and the tree lock only to look at the tree or to
/// build it: never while the disk works. Other threads may fork, append and drop in between; the
/// branches as they were at the beginning are what is saved.
void save_session(SessionCore& session, const std::filesystem::path& file, ConstBranches branches,
                  const SaveOptions& options);
std::vector<std::byte> snapshot_session(SessionCore& session, ConstBranches branches,
                                        const SaveOptions& options);
Restored restore_session(const std::shared_ptr<EngineCore>& engine, const SnapshotReader& reader,
                         std::function<bool()> poll);

}  // namespace dendrite
