#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "dendrite/session.h"
#include "engine/engine_core.h"

namespace dendrite {

struct SessionCore;

/// Session::save and Engine::restore. Both hold `compute` for as long as they run, so that no page
/// of the tree is written meanwhile, and the tree lock only to look at the tree or to build it:
/// never while the disk works. Other threads may fork, append and drop in between; the branches as
/// they were at the beginning are what is saved.
void save_session(SessionCore& session, const std::filesystem::path& file,
                  std::span<const Branch> branches, std::string_view attachment);
Restored restore_session(const std::shared_ptr<EngineCore>& engine,
                         const std::filesystem::path& file);

}  // namespace dendrite
