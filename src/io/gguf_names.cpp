#include "io/gguf_names.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace dendrite {
namespace {

constexpr GgufName kWhole[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                               {"output_norm.weight", "model.norm.weight"},
                               {"output.weight", "lm_head.weight"},
                               {"rope_freqs.weight", "rope_freqs.weight"}};

/// Of an MTP head, beside its layer.
constexpr GgufName kHead[] = {{"nextn.eh_proj", "fc"},
                              {"nextn.enorm", "pre_fc_norm_embedding"},
                              {"nextn.hnorm", "pre_fc_norm_hidden"},
                              {"nextn.shared_head_norm", "norm"}};

constexpr std::string_view kLayer = "blk.";

/// Of a layer: what stands behind its number. Empty: it is of none.
std::string_view behind_layer(std::string_view gguf_name) {
  if (!gguf_name.starts_with(kLayer)) return {};
  const std::string_view rest = gguf_name.substr(kLayer.size());
  const auto dot = rest.find('.');
  return dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
}

std::optional<std::string> named(std::span<const GgufName> names, std::string_view part) {
  const auto last = part.rfind('.');
  const std::string_view kind = last == part.npos ? std::string_view() : part.substr(last + 1);
  for (const GgufName& name : names) {
    if (name.whole && part == name.gguf) return std::string(name.here);
    const bool known = kind == "weight" || kind == "scale" || (kind == "bias" && name.bias);
    if (!name.whole && known && part.substr(0, last) == name.gguf) {
      return std::string(name.here) + "." + std::string(kind);
    }
  }
  return std::nullopt;
}

std::optional<std::string> part_of(const GgufFamily& family, std::string_view part) {
  for (const std::span<const GgufName> names : family.names) {
    if (auto name = named(names, part)) return name;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> layer_of(std::string_view gguf_name) {
  const std::string_view behind = behind_layer(gguf_name);
  if (behind.empty()) return std::nullopt;
  const std::string_view number =
      gguf_name.substr(kLayer.size(), gguf_name.size() - kLayer.size() - behind.size() - 1);
  const bool is_number = !number.empty() && number.size() <= 4 &&
                         std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; }) &&
                         (number == "0" || number.front() != '0');
  if (!is_number) return std::nullopt;
  std::int64_t layer = 0;
  std::from_chars(number.data(), number.data() + number.size(), layer);
  return layer;
}

std::optional<std::string> tensor_name_of(const GgufFamily& family, std::string_view gguf_name,
                                          std::int64_t further) {
  const auto own = std::ranges::find(family.of_model, gguf_name, &GgufName::gguf);
  if (own != family.of_model.end()) return std::string(own->here);
  const auto* const whole = std::ranges::find(kWhole, gguf_name, &GgufName::gguf);
  if (whole != std::end(kWhole)) return std::string(whole->here);
  const auto layer = layer_of(gguf_name);
  if (!layer) return std::nullopt;
  const std::string_view behind = behind_layer(gguf_name);
  const bool of_head = *layer >= further;
  if (of_head) {
    if (const auto name = named(kHead, behind)) return "mtp." + *name;
  }
  const auto part = part_of(family, behind);
  if (!part) return std::nullopt;
  return (of_head ? "mtp.layers." : "model.layers.") +
         std::to_string(of_head ? *layer - further : *layer) + "." + *part;
}

bool is_own_of_head(std::string_view gguf_name) {
  const std::string_view behind = behind_layer(gguf_name);
  return behind.starts_with("nextn.embed_tokens.") || behind.starts_with("nextn.shared_head_head.");
}

bool says_nothing(std::string_view gguf_name) {
  return gguf_name.ends_with(".attn_rot_embd") || gguf_name.ends_with(".rope_freqs") ||
         gguf_name.ends_with(".input_scale");
}

}  // namespace dendrite
