#include "gil.h"

#include <atomic>

#include "arguments.h"

namespace dendrite::python {
namespace {

std::atomic<int> forks_until_here = 0;

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

Callable::Callable(nb::handle function, const char* what) : Callable(function) {
  if (!function.is_none() && !PyCallable_Check(function.ptr())) {
    fail_type(what, function, "a callable or None");
  }
}

void Callable::give_back(nb::object* function) {
  if (function == nullptr || !nb::is_alive()) return;  // (the process ends: it is left)
  const WithGil gil;
  delete function;
}

int forks() {
  return forks_until_here;
}

void note_fork() {
  ++forks_until_here;
}

}  // namespace dendrite::python
