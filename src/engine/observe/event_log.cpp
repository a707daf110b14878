#include "engine/observe/event_log.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/observe/event_text.h"

namespace dendrite {

bool flag_is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

void add_log_readers(EventHub& events) {
  EventMask kinds = 0;
  if (flag_is_set("DENDRITE_LOG_FORK")) kinds |= kForkEvents;
  if (flag_is_set("DENDRITE_LOG_SCHEDULER")) kinds |= kSchedulerEvents;
  if (kinds == 0) return;
  const std::int64_t begin_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                    std::chrono::steady_clock::now().time_since_epoch())
                                    .count();
  events.add(kinds, [begin_ns](const Event& event) {
    std::string line = "dendrite: ";
    line.append(to_log_line(event, begin_ns)).append("\n");
    std::fwrite(line.data(), 1, line.size(), stderr);  // at once: lines of threads do not mix
  });
}

}  // namespace dendrite
