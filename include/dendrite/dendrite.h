#pragma once

/// The whole public API. It depends on the standard library only.
#include "dendrite/build.h"         // IWYU pragma: export
#include "dendrite/chat.h"          // IWYU pragma: export
#include "dendrite/constraint.h"    // IWYU pragma: export
#include "dendrite/distribution.h"  // IWYU pragma: export
#include "dendrite/engine.h"        // IWYU pragma: export
#include "dendrite/error.h"         // IWYU pragma: export
#include "dendrite/events.h"        // IWYU pragma: export
#include "dendrite/generate.h"      // IWYU pragma: export
#include "dendrite/harmony.h"       // IWYU pragma: export
#include "dendrite/ledger.h"        // IWYU pragma: export
#include "dendrite/pending.h"       // IWYU pragma: export
#include "dendrite/reasoning.h"     // IWYU pragma: export
#include "dendrite/search.h"        // IWYU pragma: export
#include "dendrite/session.h"       // IWYU pragma: export
#include "dendrite/stats.h"         // IWYU pragma: export
#include "dendrite/tool_calls.h"    // IWYU pragma: export
#include "dendrite/tool_grammar.h"  // IWYU pragma: export
#include "dendrite/types.h"         // IWYU pragma: export
