// Events: C++ fills a bounded queue under the engine's lock, and Python reads it outside.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <fstream>

#include "bindings.h"

namespace dendrite::python {
namespace {

EventMask mask_of_names(const std::vector<std::string>& kinds) {
  if (kinds.empty()) return kAllEvents;
  EventMask mask = 0;
  for (const std::string& name : kinds) {
    int kind = 0;
    while (kind < kEventKinds && name != name_of(static_cast<EventKind>(kind))) ++kind;
    if (kind == kEventKinds) {
      std::string known;
      for (int i = 0; i < kEventKinds; ++i) {
        known += std::string(i == 0 ? "" : ", ") + name_of(static_cast<EventKind>(i));
      }
      throw Error("events: there is no kind '" + name + "'; expected some of " + known);
    }
    mask |= mask_of(static_cast<EventKind>(kind));
  }
  return mask;
}

/// Events as the lines of JSON that the library writes of them.
std::vector<std::string> to_lines(const std::vector<StoredEvent>& events) {
  std::vector<std::string> lines;
  for (const StoredEvent& event : events) lines.push_back(to_json_line(event));
  return lines;
}

std::vector<std::string> wait_for(EventQueue& queue, double seconds) {
  const nb::gil_scoped_release released;
  return to_lines(queue.wait_for(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(seconds, 1e6)))));
}

/// Writes events to a file as they happen, without Python.
class FileLog {
 public:
  FileLog(const Engine& engine, const std::string& path, EventMask kinds)
      : file_(std::make_shared<std::ofstream>(path)) {
    if (!*file_) throw Error("write_events: cannot write " + path);
    subscription_ = engine.on_event(
        kinds, [file = file_](const Event& event) { *file << to_json_line(event) << '\n'; });
  }
  void close() {
    const nb::gil_scoped_release released;
    subscription_.off();
    file_->flush();
  }

 private:
  std::shared_ptr<std::ofstream> file_;
  EventSubscription subscription_;
};

}  // namespace

void bind_events(nb::module_& module) {
  nb::class_<EventQueue>(module, "EventQueue", "A bounded queue of an engine's events.")
      .def("take", [](EventQueue& self) { return to_lines(self.take()); })
      .def("wait_for", &wait_for, nb::arg("seconds"))
      .def("dropped", &EventQueue::dropped)
      .def("close", &EventQueue::close, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<FileLog>(module, "FileLog", "Events that go to a file.").def("close", &FileLog::close);
  module.def(
      "events",
      [](EngineState& engine, nb::handle kinds, nb::handle capacity) {
        const EventMask mask = mask_of_names(to_texts(kinds, "kinds"));
        return engine.live().events(mask, static_cast<std::size_t>(std::max<std::int64_t>(
                                              0, to_int(capacity, "capacity"))));
      },
      nb::arg("engine"), nb::arg("kinds").none(), nb::arg("capacity").none(),
      nb::sig("def events(engine: EngineHandle, kinds: Sequence[str], capacity: int) -> "
              "EventQueue"));
  module.def(
      "write_events",
      [](EngineState& engine, const std::string& path, nb::handle kinds) {
        return std::make_unique<FileLog>(engine.live(), path,
                                         mask_of_names(to_texts(kinds, "kinds")));
      },
      nb::arg("engine"), nb::arg("path"), nb::arg("kinds").none(),
      nb::sig("def write_events(engine: EngineHandle, path: str, kinds: Sequence[str]) -> "
              "FileLog"));
}

}  // namespace dendrite::python
