#include "quantize/config_text.h"

#include <nlohmann/json.hpp>

#include "io/json_file.h"

namespace dendrite {
namespace {

using Json = nlohmann::ordered_json;

const char* format_of(PackedKind kind) {
  switch (kind) {
    case PackedKind::kFp8:
      return "float-quantized";
    case PackedKind::kInt8:
      return "int-quantized";
    case PackedKind::kInt4:
      break;
  }
  return "pack-quantized";
}

Json weights_of(const RowPacking& packing) {
  const bool four = packing.kind == PackedKind::kInt4;
  Json json{{"num_bits", four ? 4 : 8},
            {"type", packing.kind == PackedKind::kFp8 ? "float" : "int"},
            {"symmetric", true},
            {"strategy", four ? "group" : "channel"},
            {"dynamic", false}};
  if (four) json["group_size"] = packing.group;
  return json;
}

Json activations_of(const RowPacking& packing) {
  if (packing.kind == PackedKind::kInt4) return nullptr;
  return {{"num_bits", 8},
          {"type", packing.kind == PackedKind::kFp8 ? "float" : "int"},
          {"symmetric", true},
          {"strategy", "token"},
          {"dynamic", true}};
}

Json group_of(const RowPacking& packing, const char* target) {
  return {{"targets", Json::array({target})},
          {"weights", weights_of(packing)},
          {"input_activations", activations_of(packing)}};
}

}  // namespace

std::string packed_config(const std::string& config, const Packings& packings,
                          std::span<const std::string> left) {
  constexpr const char* kOutput = "lm_head";
  Json json = Json::parse(with_named_floats(config));
  Json ignored = Json::array();
  if (!packings.output) ignored.push_back(kOutput);
  for (const std::string& module : left) ignored.push_back(module);
  const PackedKind kind = packings.layers.kind;
  Json groups{{"group_0", group_of(packings.layers, "Linear")}};
  const bool mixed = packings.output && packings.output->kind != kind;
  if (mixed) {  // a module's name goes before its class
    const bool usual = packings.output_name == Packings::kOutput;
    groups["group_1"] = group_of(*packings.output, usual ? kOutput : "re:.*lm_head$");
    groups["group_0"]["format"] = format_of(kind);
    groups["group_1"]["format"] = format_of(packings.output->kind);
  }
  json.erase("compression_config");
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", mixed ? "mixed-precision" : format_of(kind)},
                                 {"quantization_status", "compressed"},
                                 {"config_groups", groups},
                                 {"ignore", ignored}};
  return json.dump(2) + "\n";
}

}  // namespace dendrite
