#pragma once

#include <string>

#include "dendrite/events.h"

namespace dendrite {

/// The event for people, on one line without a line break: "fork branch 7 parent 3 length 120 ...".
/// `begin_ns`: what the time in front of it counts from.
std::string to_log_line(const Event& event, std::int64_t begin_ns);

}  // namespace dendrite
