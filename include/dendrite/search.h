#pragma once

/// Search strategies. They stand on the rest of the public API alone.
#include "dendrite/search/answers.h"     // IWYU pragma: export
#include "dendrite/search/beam.h"        // IWYU pragma: export
#include "dendrite/search/common.h"      // IWYU pragma: export
#include "dendrite/search/fork_join.h"   // IWYU pragma: export
#include "dendrite/search/mcts.h"        // IWYU pragma: export
#include "dendrite/search/refinement.h"  // IWYU pragma: export
#include "dendrite/search/trace.h"       // IWYU pragma: export
#include "dendrite/search/trees.h"       // IWYU pragma: export
