#pragma once

#include <ostream>

namespace dendrite {

/// A model and its types (test::dtype_of) to compose with.
struct ComposeCase {
  const char* model;
  const char* dtype;
  int page_tokens = 16;
};

inline void PrintTo(const ComposeCase& c, std::ostream* out) {
  *out << c.model << " " << c.dtype << " " << c.page_tokens;
}

inline constexpr ComposeCase kComposeCases[] = {
    {"llama_f32", "f32", 8}, {"tinyllama", "bf16", 16},     {"mistral_swa", "f32", 32},
    {"qwen3", "bf16", 8},    {"tinyllama", "bf16_fp8", 16}, {"deepseek_v3", "bf16", 16}};

}  // namespace dendrite
