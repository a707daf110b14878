#pragma once

#include <memory>
#include <utility>

#include "dendrite/session.h"

namespace dendrite {

struct ChunkHold;
struct EngineCore;

/// What is behind the public handles, for this library's own files, its tests and its fuzzer.
struct Internals {
  static BranchState*& state(Branch& branch) { return branch.state_; }
  static BranchState* state(const Branch& branch) { return branch.state_; }
  static const std::shared_ptr<const ChunkHold>& hold(const Chunk& chunk) { return chunk.hold_; }
  static const std::shared_ptr<SessionCore>& core(const Session& session) { return session.core_; }
  static const std::shared_ptr<EngineCore>& core(const Engine& engine) { return engine.core_; }

  static Branch handle(BranchState* state) { return Branch(state); }
  static Chunk handle(std::shared_ptr<const ChunkHold> hold) { return Chunk(std::move(hold)); }
  static Session handle(std::shared_ptr<SessionCore> core) { return Session(std::move(core)); }
  static Engine handle(std::shared_ptr<EngineCore> core) { return Engine(std::move(core)); }
};

/// Of a handle that is valid.
inline BranchState* state_of(const Branch& branch) {
  return Internals::state(branch);
}
inline const std::shared_ptr<SessionCore>& core_of(const Session& session) {
  return Internals::core(session);
}
inline const std::shared_ptr<EngineCore>& core_of(const Engine& engine) {
  return Internals::core(engine);
}
/// A handle to what has none yet, or one more.
template <typename Inside>
auto handle_of(Inside&& inside) {
  return Internals::handle(std::forward<Inside>(inside));
}

}  // namespace dendrite
