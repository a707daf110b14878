// dendrite._core: the public headers in Python. What people call is in the package around it.
#include "bindings.h"

NB_MODULE(_core, module) {
  using namespace dendrite::python;
  module.doc() = "Dendrite's C++ library; see the package dendrite.";
  const nb::exception<dendrite::Error> error(module, "Error", PyExc_RuntimeError);
  const nb::exception<dendrite::BranchEmpty> empty(module, "BranchEmpty", error);
  const nb::exception<dendrite::BranchBusy> busy(module, "BranchBusy", error);
  const nb::exception<dendrite::ConstraintError> constraint(module, "ConstraintError", error);
  const nb::exception<EngineClosed> closed(module, "EngineClosed", error);
  module.def("note_fork", &note_fork,
             "This process is a fork: the engines that it has from its parent are of no use.");
  // What Python still refers to when it ends is no leak of ours; tests ask for the report.
  nanobind::set_leak_warnings(false);
  module.def(
      "report_leaks", [] { nanobind::set_leak_warnings(true); },
      "At the end of the process, tell of objects that are still alive.");
  bind_types(module);
  bind_constraint(module);
  bind_params(module);
  bind_records(module);
  bind_engine(module);
  bind_measures(module);
  bind_branch(module);
  nb::class_<PySession> session = bind_session(module);
  bind_compose(module, session);
  bind_pending(module);
  bind_events(module);
  bind_search(module);
  bind_ledger(module);
}
