#include "params.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string_view>

#include "bindings.h"

namespace dendrite::python {
namespace {

template <typename T>
void read(nb::handle value, std::optional<T>& out) {
  out = value.is_none() ? std::nullopt : std::optional<T>(nb::cast<T>(value));
}

std::vector<std::string> to_texts(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) {
    throw nb::type_error("stop: got a str; expected a sequence of them");
  }
  std::vector<std::string> texts;
  for (const nb::handle text : value) texts.push_back(nb::cast<std::string>(text));
  return texts;
}

using Setter = void (*)(DecodeParams&, nb::handle);
const std::map<std::string_view, Setter>& setters() {
  static const std::map<std::string_view, Setter> all = {
      {"max_tokens",
       [](DecodeParams& to, nb::handle from) { to.max_tokens = nb::cast<std::int64_t>(from); }},
      {"stop", [](DecodeParams& to, nb::handle from) { to.stop = to_texts(from); }},
      {"stop_tokens", [](DecodeParams& to, nb::handle from) { to.stop_tokens = to_tokens(from); }},
      {"temperature", [](DecodeParams& to, nb::handle from) { read(from, to.temperature); }},
      {"top_k", [](DecodeParams& to, nb::handle from) { read(from, to.top_k); }},
      {"top_p", [](DecodeParams& to, nb::handle from) { read(from, to.top_p); }},
      {"min_p", [](DecodeParams& to, nb::handle from) { read(from, to.min_p); }},
      {"repetition_penalty",
       [](DecodeParams& to, nb::handle from) { read(from, to.repetition_penalty); }},
      {"logit_bias",
       [](DecodeParams& to, nb::handle from) {
         to.logit_bias.clear();
         if (from.is_none()) return;
         for (const nb::handle item : nb::object(from.attr("items")())) {
           to.logit_bias.emplace_back(nb::cast<Token>(item[0]), nb::cast<float>(item[1]));
         }
       }},
      {"constraint",
       [](DecodeParams& to, nb::handle from) { to.constraint = to_optional_constraint(from); }},
      {"ignore_eos",
       [](DecodeParams& to, nb::handle from) { to.ignore_eos = nb::cast<bool>(from); }},
      {"top_logprobs",
       [](DecodeParams& to, nb::handle from) { to.top_logprobs = nb::cast<int>(from); }},
      {"speculate",
       [](DecodeParams& to, nb::handle from) {
         to.speculate = speculate_of(nb::cast<std::string>(from));
       }},
      {"speculate_budget",
       [](DecodeParams& to, nb::handle from) {
         to.speculate_budget = nb::cast<std::int64_t>(from);
       }},
      {"speculate_tokens",
       [](DecodeParams& to, nb::handle from) {
         to.speculate_tokens = nb::cast<std::int64_t>(from);
       }},
      {"speculate_top_k",
       [](DecodeParams& to, nb::handle from) {
         to.speculate_top_k = nb::cast<std::int64_t>(from);
       }},
      {"speculate_temperature",
       [](DecodeParams& to, nb::handle from) {
         to.speculate_temperature = nb::cast<double>(from);
       }},
      {"speculate_chain_seed",
       [](DecodeParams& to, nb::handle from) { read(from, to.speculate_chain_seed); }},
      {"slack", [](DecodeParams& to, nb::handle from) { to.slack = nb::cast<double>(from); }},
  };
  return all;
}

void make_params(NativeParams* self, const nb::kwargs& fields) {
  DecodeParams params;
  for (const auto& [key, value] : fields) {
    const auto found = setters().find(nb::cast<std::string_view>(nb::str(key)));
    if (found == setters().end()) {
      throw nb::type_error(("decode: unexpected keyword argument '" +
                            std::string(nb::cast<std::string_view>(nb::str(key))) +
                            "'; expected a field of DecodeParams")
                               .c_str());
    }
    try {
      found->second(params, value);
    } catch (const std::bad_cast&) {
      throw nb::type_error((std::string(found->first) + ": got a " +
                            nb::cast<std::string>(nb::str(value.type().attr("__name__"))) +
                            ", which DecodeParams cannot take there")
                               .c_str());
    }
  }
  new (self) NativeParams{std::move(params)};
}

}  // namespace

DecodeParams with_callables(const DecodeParams& params, const DecodeCallables& callables) {
  DecodeParams with = params;
  if (callables.on_token) {
    with.on_token = [call = callables.on_token](const TokenEvent& event) {
      const WithGil gil;
      call.get()(nb::cast(OwnedTokenEvent(event)));
    };
  }
  if (callables.on_step) {
    with.on_step = [call = callables.on_step](std::span<const TokenEvent> events) {
      const WithGil gil;
      nb::list all;
      for (const TokenEvent& event : events) all.append(OwnedTokenEvent(event));
      const nb::object said = call.get()(all);
      return said.is_none() || nb::cast<bool>(nb::bool_(said));
    };
  }
  if (callables.enough) {
    with.enough = [call = callables.enough](std::size_t index, const Generation& generation) {
      const WithGil gil;
      return nb::cast<bool>(nb::bool_(nb::object(call.get()(index, nb::cast(generation)))));
    };
  }
  return with;
}

void bind_params(nb::module_& module) {
  nb::class_<NativeParams>(module, "Params", "The fields of a DecodeParams as C++ has them.")
      .def("__init__", &make_params, nb::sig("def __init__(self, **fields: Any) -> None"));
}

}  // namespace dendrite::python
