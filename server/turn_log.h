#pragma once

#include <memory>

#include "server/http.h"
#include "server/turn.h"

namespace dendrite::server {

/// Hears of a turn what `sink` does, and tells the reply's account of tokens, times and ends,
/// before the answer can end.
std::shared_ptr<TurnSink> accounted(Reply reply, std::shared_ptr<TurnSink> sink);

}  // namespace dendrite::server
