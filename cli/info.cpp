#include <cmath>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "common.h"
#include "dendrite/model_files.h"

namespace dendrite::cli {
namespace {

/// Bits a weight, to three places.
double bits_of(const StoredWeights& weights) {
  const double bits =
      8.0 * static_cast<double>(weights.bytes) / static_cast<double>(weights.parameters);
  return std::round(1000 * bits) / 1000;
}

/// "q4_k: 29 tensors, 1040187392 parameters, 4.50 bits each"
std::string line_of(const StoredWeights& weights) {
  std::ostringstream out;
  out << weights.format << ": " << weights.tensors << " tensors, " << weights.parameters
      << " parameters, " << std::fixed << std::setprecision(2) << bits_of(weights) << " bits each";
  return out.str();
}

/// "incompatible (score 0.12 at ...q_proj.weight, norm weights up to 96.5 times the typical one); 4
/// of 9 products do not round their inputs"
std::string line_of(const Compatibility& c) {
  std::ostringstream out;
  out << name_of(c.verdict) << std::setprecision(3) << " (score " << c.score
      << (c.product.empty() ? "" : " at " + c.product) << ", norm weights up to " << c.largest
      << " times the typical one)";
  if (c.unrounded > 0) {
    out << "; " << c.unrounded << " of " << c.products << " products do not round their inputs";
  }
  return out.str();
}

int run(const CommonFlags& flags) {
  const Engine engine = flags.load(/*weights=*/false);
  const EngineInfo& i = engine.info();
  const std::vector<StoredWeights> stored = stored_weights(i.model_path);
  Json formats = Json::array();
  StoredWeights all;
  for (const StoredWeights& weights : stored) {
    formats.push_back({{"format", weights.format},
                       {"tensors", weights.tensors},
                       {"parameters", weights.parameters},
                       {"bytes", weights.bytes},
                       {"bits_per_weight", bits_of(weights)}});
    all.parameters += weights.parameters;
    all.bytes += weights.bytes;
  }
  const Json model{
      {"path", i.model_path},
      {"model_type", i.model_type},
      {"parameters", i.parameters},
      {"weight_bytes", i.weight_bytes},
      {"layers", i.layers},
      {"dim", i.dim},
      {"ffn_dim", i.ffn_dim},
      {"heads", i.heads},
      {"kv_heads", i.kv_heads},
      {"head_dim", i.head_dim},
      {"vocab", i.vocab},
      {"experts", i.experts},
      {"experts_per_token", i.experts_per_token},
      {"max_positions", i.max_positions},
      {"rope", i.rope},
      {"stored_dtype", i.stored_dtype},
      {"compute_dtype", i.compute_dtype},
      {"quantization", i.quantization},
      {"output_quantization", i.output_quantization},
      {"kv_dtype", i.kv_dtype},
      {"kv_token_bytes", i.kv_token_bytes},
      {"recurrent_layers", i.recurrent_layers},
      {"state_bytes", i.state_bytes},
      {"state_token_bytes", i.state_token_bytes},
      {"mtp_layers", i.mtp_layers},
      {"bos", i.bos},
      {"eos", i.eos},
      {"tokenizer", i.has_tokenizer},
      {"chat_template", i.has_chat_template},
      {"active_parameters", (stored.empty() ? i.parameters : all.parameters) - i.idle_parameters},
      {"bits_per_weight", stored.empty() ? Json() : Json(bits_of(all))},
      {"stored", std::move(formats)}};
  const Compatibility c = engine.compatibility();
  const Json compatibility{{"verdict", name_of(c.verdict)},  {"score", c.score},
                           {"largest", c.largest},           {"product", c.product},
                           {"products", c.products},         {"warned", c.warned},
                           {"incompatible", c.incompatible}, {"unrounded", c.unrounded}};
  const Json device{{"kind", i.device},
                    {"name", i.device_name},
                    {"threads", i.threads},
                    {"kernels", i.kernels},
                    {"available_kernels", i.available_kernels},
                    {"attention", i.attention},
                    {"graphs", i.graphs},
                    {"numerics_key", i.numerics_key}};
  if (flags.json) {
    print_json({{"model", model}, {"compatibility", compatibility}, {"device", device}});
    return 0;
  }
  for (const auto& [section, values] : {std::pair{"model", &model}, std::pair{"device", &device}}) {
    std::cout << section << "\n";
    for (const auto& [key, value] : values->items()) {
      if (key == "stored") continue;
      std::cout << "  " << std::left << std::setw(18) << key
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
    if (values != &model) continue;
    for (const StoredWeights& weights : stored) {
      std::cout << "  " << std::left << std::setw(18) << "stored" << line_of(weights) << "\n";
    }
    std::cout << "  " << std::left << std::setw(18) << "compatibility" << line_of(c) << "\n";
  }
  return 0;
}

int list_families(bool json) {
  const std::vector<ModelFamily> families = model_families();
  if (json) {
    Json all = Json::array();
    for (const ModelFamily& family : families) {
      all.push_back({{"model_type", family.model_type}, {"architectures", family.architectures}});
    }
    print_json({{"families", all}});
    return 0;
  }
  for (const ModelFamily& family : families) {
    std::cout << std::left << std::setw(18) << family.model_type;
    for (const std::string& name : family.architectures) std::cout << ' ' << name;
    std::cout << '\n';
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, int& status) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = app.add_subcommand(
      "info", "What a model holds, what the machine offers, which kernels would run");
  flags->add_to(*command);
  auto families = std::make_shared<bool>(false);
  command->add_flag("--families", *families,
                    "List the families of models that can be loaded, as config.json names them");
  command->callback([flags, families, &status] {
    status = *families ? list_families(flags->json) : run(*flags);
  });
}

}  // namespace dendrite::cli
