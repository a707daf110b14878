// How well a model foretells texts, and files of models with fewer bits a weight.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bindings.h"
#include "dendrite/perplexity.h"
#include "dendrite/quantize.h"
#include "record.h"

namespace dendrite::python {
namespace {

/// Tells a callable, if there is one, how far a call is; what that or a signal raises ends the
/// call.
template <typename... Arguments>
std::function<void(Arguments...)> progress_of(nb::handle on_progress) {
  return [poll = poll_for_signals(),
          tell = Callable(on_progress, "on_progress")](Arguments... arguments) {
    poll();
    if (!tell) return;
    const WithGil gil;
    tell.get()(arguments...);
  };
}

/// Pairs of str: a text, and what stands before it.
std::vector<TextSample> to_samples(nb::list texts) {
  std::vector<TextSample> out;
  for (const nb::handle sample : texts) {
    out.push_back({to_text(sample[0], "text"), to_text(sample[1], "prompt")});
  }
  return out;
}

Perplexity measure(const std::shared_ptr<EngineState>& self, nb::list texts, nb::handle window,
                   nb::handle max_tokens, nb::handle likeliest, nb::handle on_progress) {
  const Engine engine = self->live();
  const std::vector<TextSample> samples = to_samples(std::move(texts));
  const PerplexityParams params{
      .window = to_int(window, "window"),
      .tokens = to_int(max_tokens, "max_tokens"),
      .likeliest = to_bool(likeliest, "likeliest"),
      .poll = poll_for_signals(),
      .on_progress = progress_of<std::int64_t, std::int64_t>(on_progress)};
  const nb::gil_scoped_release released;
  return perplexity(engine, samples, params);
}

Quantized write_quantized(const std::string& model, const std::string& out, nb::handle format,
                          nb::handle group, nb::handle output_quantization, nb::list calibration,
                          nb::handle threads, nb::handle on_progress) {
  const QuantizeOptions options{
      .format = to_text(format, "format"),
      .group = to_int(group, "group"),
      .output_quantization = to_text(output_quantization, "output_quantization"),
      .calibration = to_samples(std::move(calibration)),
      .threads = to_small_int(threads, "threads"),
      .on_progress = progress_of<const std::string&, std::int64_t, std::int64_t>(on_progress)};
  const nb::gil_scoped_release released;
  return quantize(model, out, options);
}

}  // namespace

void bind_measures(nb::module_& module) {
  Record<Perplexity> told(module, "Perplexity", "How well a model foretold texts.");
  told.property("value", &Perplexity::value,
                "exp(nats / tokens): as unsure as a choice among so many equal ones.")
      .property("error", &Perplexity::error,
                "The standard error of value, as if tokens were independent.")
      .field("nats", &Perplexity::nats, "The sum over tokens of -log(probability).")
      .field("squares", &Perplexity::squares, "The sum of the squares of that.")
      .field("tokens", &Perplexity::tokens, "That were scored.")
      .field("windows", &Perplexity::windows, "That they were in.")
      .field("window", &Perplexity::window, "Tokens of one, at most.")
      .field("likeliest", &Perplexity::likeliest,
             "In the place of each token the one that was held for the likeliest, where asked for.")
      .finish();
  Record<Quantized> done(module, "Quantized", "What became of a model's matrices.");
  done.field("matrices", &Quantized::matrices, "That were rounded.")
      .field("left", &Quantized::left, "Matrices of layers that were not.")
      .field("group", &Quantized::group, "Of int4: neighbours that share a scale.")
      .field("calibration_tokens", &Quantized::calibration_tokens, "That were taken.")
      .field("places", &Quantized::places, "Where inputs can be scaled.")
      .field("scaled", &Quantized::scaled, "Of them: where that makes the error less.")
      .field("error_ratio", &Quantized::error_ratio,
             "The mean over places of the error beside that without scaling; 1: no less.")
      .finish();
  module.def("perplexity", &measure, nb::arg("engine"), nb::arg("texts"), nb::arg("window").none(),
             nb::arg("max_tokens").none(), nb::arg("likeliest").none(),
             nb::arg("on_progress").none(),
             nb::sig("def perplexity(engine: EngineHandle, texts: list[tuple[str, str]], window: "
                     "int, max_tokens: int, likeliest: bool, on_progress: Any) -> Perplexity"));
  module.def("top1_agreement", &top1_agreement, nb::arg("one"), nb::arg("other"),
             "The part of places in which both hold the same token for the likeliest.");
  module.def("quantize", &write_quantized, nb::arg("model"), nb::arg("out"),
             nb::arg("format").none(), nb::arg("group").none(),
             nb::arg("output_quantization").none(), nb::arg("calibration"),
             nb::arg("threads").none(), nb::arg("on_progress").none(),
             nb::sig("def quantize(model: str, out: str, format: str, group: int, "
                     "output_quantization: str, calibration: list[tuple[str, str]], threads: int, "
                     "on_progress: Any) -> Quantized"));
}

}  // namespace dendrite::python
