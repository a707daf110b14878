// A ledger (dendrite/ledger.h), whose effects are tuples here; dendrite._ledger names their parts.
#include <nanobind/stl/string.h>

#include <memory>

#include "bindings.h"

namespace dendrite::python {
namespace {

nb::object id_or_none(EffectId id) {
  if (id == EffectId::kNone) return nb::none();
  return nb::int_(static_cast<std::uint64_t>(id));
}

nb::tuple tuple_of(const Effect& effect) {
  const nb::object value = effect.value ? nb::object(to_str(*effect.value)) : nb::none();
  return nb::make_tuple(id_or_none(effect.id), id_or_none(effect.parent), effect.length,
                        to_str(effect.key), value, effect.committed, effect.saved);
}

EffectId to_effect(nb::handle id, const char* what) {
  return static_cast<EffectId>(to_unsigned(id, what));
}

/// Hooks are called in functions of the ledger, whose callers have the GIL.
std::function<void(const Effect&)> to_hook(nb::handle function, const char* what) {
  const Callable callable(function, what);
  if (!callable) return {};
  return [callable](const Effect& effect) { callable.get()(tuple_of(effect)); };
}

/// In a fork of the process its locks may be held for ever.
class PyLedger {
 public:
  PyLedger(const PySession& session, nb::handle saved, nb::handle branches, nb::handle on_commit,
           nb::handle on_abort)
      : session_(session.state) {
    const Session& live = session_->live();
    LedgerHooks hooks{to_hook(on_commit, "on_commit"), to_hook(on_abort, "on_abort")};
    if (saved.is_none()) {
      ledger_ = std::make_unique<Ledger>(live, std::move(hooks));
      return;
    }
    std::vector<nb::object> kept;
    std::vector<const Branch*> handles;
    for (const nb::handle branch : items_of(branches, "branches", "a sequence of branches")) {
      kept.push_back(nb::borrow(branch));
      handles.push_back(&to_branch(branch, "branches").read("branches"));
    }
    ledger_ = std::make_unique<Ledger>(live, to_text(saved, "saved"), handles, std::move(hooks));
  }
  PyLedger(const PyLedger&) = delete;
  PyLedger& operator=(const PyLedger&) = delete;
  ~PyLedger() {
    if (session_->engine->is_foreign()) (void)ledger_.release();
  }

  Ledger& get() {
    session_->engine->refuse_fork();
    return *ledger_;
  }
  /// Throws Error for a branch of another session, whose ids are others'.
  const Branch& branch(nb::handle object) const {
    PyBranch& branch = to_branch(object, "branch");
    if (branch.is_live() && branch.session != session_) {
      throw Error("ledger: the branch belongs to another session");
    }
    return branch.read("ledger");
  }

 private:
  std::shared_ptr<SessionState> session_;
  std::unique_ptr<Ledger> ledger_;
};

std::string once(PyLedger& self, nb::handle branch, nb::handle key, nb::handle call) {
  if (!PyCallable_Check(call.ptr())) fail_type("call", call, "a callable");
  return self.get().once(self.branch(branch), to_text(key, "key"),
                         [&] { return to_text(call(), "call: what it returned"); });
}

}  // namespace

void bind_ledger(nb::module_& module) {
  nb::class_<PyLedger>(module, "LedgerHandle", "A ledger; what dendrite.Ledger is built on.")
      .def(
          "__init__",
          [](PyLedger* self, const PySession& session, nb::handle saved, nb::handle branches,
             nb::handle on_commit, nb::handle on_abort) {
            new (self) PyLedger(session, saved, branches, on_commit, on_abort);
          },
          nb::arg("session"), nb::arg("saved").none(), nb::arg("branches").none(),
          nb::arg("on_commit").none(), nb::arg("on_abort").none())
      .def(
          "once",
          [](PyLedger& self, nb::handle branch, nb::handle key, nb::handle call) {
            return to_str(once(self, branch, key, call));
          },
          nb::arg("branch").none(), nb::arg("key").none(), nb::arg("call").none(),
          nb::sig("def once(self, branch: Branch, key: str, call: object) -> str"))
      .def(
          "begin",
          [](PyLedger& self, nb::handle branch, nb::handle key) {
            return static_cast<std::uint64_t>(
                self.get().begin(self.branch(branch), to_text(key, "key")));
          },
          nb::arg("branch").none(), nb::arg("key").none())
      .def(
          "end",
          [](PyLedger& self, nb::handle effect, nb::handle value) {
            self.get().end(to_effect(effect, "effect"), to_text(value, "value"));
          },
          nb::arg("effect").none(), nb::arg("value").none())
      .def(
          "forget",
          [](PyLedger& self, nb::handle effect) { self.get().forget(to_effect(effect, "effect")); },
          nb::arg("effect").none())
      .def(
          "find",
          [](PyLedger& self, nb::handle branch, nb::handle key) -> nb::object {
            const auto found = self.get().find(self.branch(branch), to_text(key, "key"));
            return found ? nb::object(tuple_of(*found)) : nb::none();
          },
          nb::arg("branch").none(), nb::arg("key").none(),
          nb::sig("def find(self, branch: Branch, key: str) -> tuple[Any, ...] | None"))
      .def(
          "path",
          [](PyLedger& self, nb::handle branch) {
            nb::list all;
            for (const Effect& effect : self.get().path(self.branch(branch))) {
              all.append(tuple_of(effect));
            }
            return all;
          },
          nb::arg("branch").none(),
          nb::sig("def path(self, branch: Branch) -> list[tuple[Any, ...]]"))
      .def(
          "follow",
          [](PyLedger& self, nb::handle branch, nb::handle from) {
            self.get().follow(self.branch(branch), self.branch(from));
          },
          nb::arg("branch").none(), nb::arg("other").none())
      .def(
          "commit",
          [](PyLedger& self, nb::handle branch) { self.get().commit(self.branch(branch)); },
          nb::arg("branch").none())
      .def("settle", [](PyLedger& self) { self.get().settle(); })
      .def("save", [](PyLedger& self) { return self.get().save(); });
}

}  // namespace dendrite::python
