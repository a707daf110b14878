#pragma once

#include "backend/kv_move.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// Backend::move_kv; `args` are checked.
void move_kv(const KvMoves& args, const ThreadPool& pool);

}  // namespace dendrite::cpu
