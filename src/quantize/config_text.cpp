#include "quantize/config_text.h"

#include <nlohmann/json.hpp>

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

}  // namespace

std::string packed_config(const std::string& config, const RowPacking& packing,
                          std::span<const std::string> left) {
  Json json = Json::parse(config);
  Json ignored{"lm_head"};
  for (const std::string& module : left) ignored.push_back(module);
  json.erase("compression_config");
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", format_of(packing.kind)},
                                 {"quantization_status", "compressed"},
                                 {"config_groups",
                                  {{"group_0",
                                    {{"targets", Json::array({"Linear"})},
                                     {"weights", weights_of(packing)},
                                     {"input_activations", activations_of(packing)}}}}},
                                 {"ignore", ignored}};
  return json.dump(2) + "\n";
}

}  // namespace dendrite
