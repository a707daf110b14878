// Constraints: dendrite.JsonSchema and its siblings have each made its C++ twin.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace dendrite::python {

Constraint to_constraint(nb::handle object) {
  const nb::object native = nb::getattr(object, "_native", nb::none());
  if (!nb::isinstance<Constraint>(native)) {
    fail_type("constraint", object, "a JsonSchema, JsonObject, Regex, Lark or Choice");
  }
  return nb::cast<const Constraint&>(native);
}

std::optional<Constraint> to_optional_constraint(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return to_constraint(object);
}

nb::object to_object(const std::optional<Constraint>& constraint) {
  if (!constraint) return nb::none();
  return nb::module_::import_("dendrite._constraint").attr("of")(*constraint);
}

void check(const Engine& engine, const Constraint& constraint) {
  const Engine kept = engine;  // somebody may close it meanwhile
  const nb::gil_scoped_release released;
  kept.check(constraint);
}

void bind_constraint(nb::module_& module) {
  nb::class_<Constraint>(module, "NativeConstraint", "A Constraint as C++ has it.")
      .def_static("json_schema", &Constraint::json_schema, nb::arg("schema"))
      .def_static("json_object", &Constraint::json_object)
      .def_static("regex", &Constraint::regex, nb::arg("pattern"))
      .def_static("lark", &Constraint::lark, nb::arg("grammar"))
      .def_static("choice", &Constraint::choice, nb::arg("options"))
      .def_prop_ro("kind", [](const Constraint& self) { return name_of(self.kind()); })
      .def_prop_ro("text", [](const Constraint& self) { return to_str(self.text()); })
      .def(
          "__eq__",
          [](const Constraint& self, nb::handle other) {
            return nb::isinstance<Constraint>(other) && self == nb::cast<const Constraint&>(other);
          },
          nb::arg("other"), nb::sig("def __eq__(self, other: object) -> bool"));
}

}  // namespace dendrite::python
