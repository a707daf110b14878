#include "params.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

#include "bindings.h"

namespace dendrite::python {
namespace {

std::optional<double> to_optional_number(nb::handle value, const char* what) {
  if (value.is_none()) return std::nullopt;
  return to_number(value, what);
}

using Biases = decltype(DecodeParams::logit_bias);
Biases to_biases(nb::handle value, const char* what) {
  Biases biases;
  if (value.is_none()) return biases;
  if (!nb::hasattr(value, "items")) fail_type(what, value, "a mapping of token ids to numbers");
  for (const nb::handle item : nb::object(value.attr("items")())) {
    const nb::object id = item[0];
    const nb::object bias = item[1];
    const std::string of_one = std::string(what) + "[" + nb::cast<std::string>(nb::repr(id)) + "]";
    biases.emplace_back(to_small_int(id, (std::string(what) + ": a key").c_str()),
                        static_cast<float>(to_number(bias, of_one.c_str())));
  }
  return biases;
}

/// Texts, and sequences of tokens.
void read_bad_words(DecodeParams& to, nb::handle words, const char* what) {
  to.bad_words.clear();
  to.bad_word_ids.clear();
  if (nb::isinstance<nb::str>(words) || !nb::hasattr(words, "__iter__")) {
    fail_type(what, words, "a sequence of str and token ids");
  }
  for (const nb::handle word : words) {
    if (nb::isinstance<nb::str>(word)) {
      to.bad_words.push_back(to_text(word, what));
    } else {
      to.bad_word_ids.push_back(to_tokens(word, what));
    }
  }
}

/// The function gets an array of its own, which may outlive the call.
void show_logits(nb::handle function, const LogitsBatch& batch) {
  const std::size_t count = batch.rows.size();
  auto values = std::make_unique<float[]>(batch.logits.size());
  float* const copy = values.get();
  std::ranges::copy(batch.logits, copy);
  const nb::capsule owner(values.get(),
                          [](void* data) noexcept { delete[] static_cast<float*>(data); });
  const nb::object array = nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(
      values.release(), {count, count == 0 ? 0 : batch.logits.size() / count}, owner));
  nb::list indices;
  nb::list ids;
  for (const LogitsBatch::Row& row : batch.rows) {
    indices.append(row.index);
    ids.append(nb::cast(std::vector<Token>(row.ids.begin(), row.ids.end())));
  }
  function(array, indices, ids);
  std::copy_n(copy, batch.logits.size(), batch.logits.begin());
}

void read_on_logits(DecodeParams& to, nb::handle function, const char* what) {
  to.on_logits = nullptr;
  if (function.is_none()) return;
  if (PyCallable_Check(function.ptr()) == 0) fail_type(what, function, "a callable");
  to.on_logits = [call = Callable(function)](const LogitsBatch& batch) {
    const WithGil gil;
    show_logits(call.get(), batch);
  };
}

/// Sets a field, whose name errors tell.
using Setter = void (*)(DecodeParams&, nb::handle, const char*);
const std::map<std::string_view, Setter>& setters() {
  using P = DecodeParams;
  using H = nb::handle;
  using N = const char*;
  static const std::map<std::string_view, Setter> all = {
      {"max_tokens", [](P& to, H from, N name) { to.max_tokens = to_int(from, name); }},
      {"stop", [](P& to, H from, N name) { to.stop = to_texts(from, name); }},
      {"stop_tokens", [](P& to, H from, N name) { to.stop_tokens = to_tokens(from, name); }},
      {"temperature",
       [](P& to, H from, N name) { to.temperature = to_optional_number(from, name); }},
      {"top_k",
       [](P& to, H from, N name) {
         to.top_k.reset();
         if (!from.is_none()) to.top_k = to_int(from, name);
       }},
      {"top_p", [](P& to, H from, N name) { to.top_p = to_optional_number(from, name); }},
      {"min_p", [](P& to, H from, N name) { to.min_p = to_optional_number(from, name); }},
      {"repetition_penalty",
       [](P& to, H from, N name) { to.repetition_penalty = to_optional_number(from, name); }},
      {"presence_penalty",
       [](P& to, H from, N name) { to.presence_penalty = to_optional_number(from, name); }},
      {"frequency_penalty",
       [](P& to, H from, N name) { to.frequency_penalty = to_optional_number(from, name); }},
      {"min_tokens",
       [](P& to, H from, N name) {
         to.min_tokens.reset();
         if (!from.is_none()) to.min_tokens = to_int(from, name);
       }},
      {"bad_words", &read_bad_words},
      {"seed",
       [](P& to, H from, N name) {
         to.seed.reset();
         if (!from.is_none()) to.seed = to_unsigned(from, name);
       }},
      {"on_logits", &read_on_logits},
      {"logit_bias", [](P& to, H from, N name) { to.logit_bias = to_biases(from, name); }},
      {"constraint", [](P& to, H from, N) { to.constraint = to_optional_constraint(from); }},
      {"ignore_eos", [](P& to, H from, N name) { to.ignore_eos = to_bool(from, name); }},
      {"top_logprobs", [](P& to, H from, N name) { to.top_logprobs = to_small_int(from, name); }},
      {"speculate",
       [](P& to, H from, N name) { to.speculate = speculate_of(to_text(from, name)); }},
      {"speculate_budget", [](P& to, H from, N name) { to.speculate_budget = to_int(from, name); }},
      {"speculate_tokens", [](P& to, H from, N name) { to.speculate_tokens = to_int(from, name); }},
      {"speculate_top_k", [](P& to, H from, N name) { to.speculate_top_k = to_int(from, name); }},
      {"speculate_temperature",
       [](P& to, H from, N name) { to.speculate_temperature = to_number(from, name); }},
      {"speculate_chain_seed",
       [](P& to, H from, N name) {
         to.speculate_chain_seed.reset();
         if (!from.is_none()) to.speculate_chain_seed = to_bool(from, name);
       }},
      {"slack", [](P& to, H from, N name) { to.slack = to_number(from, name); }},
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
    found->second(params, value, found->first.data());
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
