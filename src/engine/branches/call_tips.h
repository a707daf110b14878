#pragma once

#include "engine/branches/engine_core.h"

namespace dendrite {

/// Tips that a call has beside those of branches. The engine knows of them, and they go with this.
class CallTips {
 public:
  explicit CallTips(EngineCore& engine) : engine_(engine) {}
  ~CallTips() DENDRITE_EXCLUDES(kTreeLock);
  CallTips(const CallTips&) = delete;
  CallTips& operator=(const CallTips&) = delete;

  /// A fork of the tip; its address stays.
  Tip& fork(const Tip& from) DENDRITE_REQUIRES(kTreeLock);
  void drop() DENDRITE_REQUIRES(kTreeLock);

  std::vector<Tip*> all() DENDRITE_REQUIRES(kTreeLock);

 private:
  EngineCore& engine_;
  EngineCore::Tips tips_;
};

}  // namespace dendrite
