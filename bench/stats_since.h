#pragma once

#include "dendrite/stats.h"

namespace dendrite::bench {

/// What a session's calls did after `before`: its counters of tokens, steps and speculation.
Stats stats_since(const Stats& before, const Stats& after);

}  // namespace dendrite::bench
