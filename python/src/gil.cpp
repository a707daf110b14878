#include "gil.h"

#include <atomic>

namespace dendrite::python {
namespace {

std::atomic<bool> forked = false;

}  // namespace

struct WithGil::Kept {
  Kept() : had_one(PyGILState_GetThisThreadState() != nullptr) {
    if (had_one) return;
    state = PyGILState_Ensure();
    thread = PyEval_SaveThread();
  }
  ~Kept() {
    if (had_one || !nb::is_alive()) return;
    PyEval_RestoreThread(thread);
    PyGILState_Release(state);
  }
  bool had_one;
  PyGILState_STATE state{};
  PyThreadState* thread = nullptr;
};

WithGil::Kept& WithGil::keep() {
  thread_local Kept kept;
  return kept;
}

void Callable::give_back(nb::object* function) {
  if (function == nullptr || !nb::is_alive()) return;  // (the process ends: it is left)
  const WithGil gil;
  delete function;
}

bool is_forked() {
  return forked;
}

void note_fork() {
  forked = true;
}

}  // namespace dendrite::python
