// Any bytes as config.json, up to the first zero byte, and generation_config.json, behind it:
// refused with an Error, or a config within its limits whose RoPE can be computed.
#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "fuzz.h"
#include "model/config_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dendrite;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto cut = text.find('\0');
  std::optional<std::string_view> generation;
  if (cut != std::string_view::npos) generation = text.substr(cut + 1);
  try {
    const DecoderConfig config = parse_config(text.substr(0, cut), generation, "folder");
    fuzz_check(config.dim > 0 && config.ffn_dim > 0 && config.vocab > 0, "sizes are positive");
    fuzz_check(config.kv_heads > 0 && config.heads % config.kv_heads == 0, "heads can be grouped");
    fuzz_check(config.rotary_dim > 0 && config.rotary_dim % 2 == 0, "heads can be rotated");
    fuzz_check(static_cast<std::int64_t>(config.windows.size()) == config.layers,
               "a window a layer");
    fuzz_check(std::ranges::all_of(config.windows, [](std::int64_t w) { return w >= 0; }),
               "no window is negative");
    fuzz_check(std::ranges::all_of(config.eos,
                                   [&](std::int64_t id) { return id >= 0 && id < config.vocab; }),
               "ids that end are in the vocabulary");
    fuzz_check(std::ranges::all_of(inv_freq(config.rope, config.rotary_dim),
                                   [](float f) { return std::isfinite(f); }),
               "frequencies are finite");
    fuzz_check(std::isfinite(attention_scaling(config.rope)), "the scaling is finite");
  } catch (const Error&) {
  }
  return 0;
}
