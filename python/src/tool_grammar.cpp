// What an answer with tools must be, as the model's family writes calls: ToolGrammars.
#include "dendrite/tool_grammar.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace dendrite::python {
namespace {

/// Those of the engine, which are made when they are first asked for and go when it is closed.
std::shared_ptr<const ToolGrammars> grammars_of(EngineState& engine) {
  const Engine& live = engine.live();
  if (!engine.grammars) engine.grammars = std::make_shared<const ToolGrammars>(live);
  return engine.grammars;
}

std::pair<nb::object, std::vector<std::string>> tool_grammar(EngineState& self,
                                                             const std::string& tools,
                                                             nb::handle required,
                                                             nb::handle parallel,
                                                             nb::handle answer) {
  const auto grammars = grammars_of(self);
  const ToolChoice choice{to_bool(required, "required"), to_bool(parallel, "parallel")};
  const std::optional<Constraint> schema = to_optional_constraint(answer);
  const ToolGrammar made = [&] {
    const nb::gil_scoped_release released;
    return grammars->of(tools, choice, schema);
  }();
  return {to_object(made.constraint), made.warnings};
}

}  // namespace

void bind_tool_grammar(nb::class_<EngineState>& engine) {
  engine
      .def("tool_grammar", &tool_grammar, nb::arg("tools"), nb::arg("required").none(),
           nb::arg("parallel").none(), nb::arg("answer").none(),
           nb::sig("def tool_grammar(self, tools: str, required: bool, parallel: bool, answer: "
                   "Constraint | None) -> tuple[Constraint | None, list[str]]"))
      .def(
          "final_answer",
          [](EngineState& self, nb::handle answer) {
            return to_object(grammars_of(self)->final_answer(to_constraint(answer)));
          },
          nb::arg("answer").none(),
          nb::sig("def final_answer(self, answer: Constraint) -> Constraint"));
}

}  // namespace dendrite::python
