#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace dendrite::python {

namespace nb = nanobind;

/// A thread of the library that calls Python keeps one thread state for as long as it lives: making
/// one costs some microseconds, attaching it again a tenth of one.
class WithGil {
 public:
  WithGil() : kept_(keep()), state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  struct Kept;
  static Kept& keep();
  Kept& kept_;
  PyGILState_STATE state_;
};

/// A Python callable in the library's hands: copies share it, and the last one gives it back with
/// the GIL, from whatever thread. Empty for None.
class Callable {
 public:
  explicit Callable(nb::handle function)
      : function_(function.is_none() ? nullptr : new nb::object(nb::borrow(function)), give_back) {}
  /// Throws TypeError for what cannot be called. `what`: as errors call it.
  Callable(nb::handle function, const char* what);
  explicit operator bool() const { return function_ != nullptr; }
  /// With the GIL.
  const nb::object& get() const { return *function_; }

 private:
  static void give_back(nb::object* function);
  std::shared_ptr<nb::object> function_;
};

/// How many forks lie between this process and the first one. What was made at another count is of
/// a process whose threads are not here, and its locks may be held for ever.
int forks();
/// This process is a new fork; called in it once, by Python.
void note_fork();

}  // namespace dendrite::python
