// V of pages whose values are their keys (KvShape), out of K, whose layout is not what P V multiplies: a block
// at a time, once for all rows of a task. FP8 is widened first.
// Floor: the block's K out of L1 and as much written; vectors of four steps.
// Included inside an unnamed namespace by the path's file.

/// V of the first tokens of a page whose values are its keys, which are `step_bytes` from step to step: in
/// two dims of two tokens the middle ones change places, in f32 rows become columns. So much of a page stays in L1.
void turn_keys(const KvLayout& layout, const std::byte* keys, std::int64_t step_bytes, std::int64_t tokens,
               std::byte* values) {
  const std::int64_t row_bytes = layout.padded_dim * 4;
  if (layout.format == KvFormat::kF32) {
    for (std::int64_t token = 0; token < tokens; ++token, values += row_bytes) {
      for (std::int64_t dim = 0; dim < layout.padded_dim; ++dim) {
        std::uint32_t word = 0;
        if (dim < layout.head_dim) __builtin_memcpy(&word, keys + dim * step_bytes + token * 4, 4);
        __builtin_memcpy(values + dim * 4, &word, 4);
      }
    }
    return;
  }
  using Words = std::uint64_t __attribute__((vector_size(32)));  // of either token two dims
  constexpr std::int64_t kSteps = 4;
  const std::int64_t steps = (layout.head_dim + 1) / 2;
  for (std::int64_t token = 0; token < tokens; token += 2, values += row_bytes) {
    const std::byte* from = keys + token * 4;
    for (std::int64_t step = 0; step < layout.padded_dim / 2; step += kSteps, from += kSteps * step_bytes) {
      std::uint64_t loaded[kSteps] = {};
      for (std::int64_t i = 0; i < kSteps; ++i) {
        if (step + kSteps <= steps || step + i < steps) __builtin_memcpy(loaded + i, from + i * step_bytes, 8);
      }
      Words words;
      __builtin_memcpy(&words, loaded, sizeof words);
      words = (words & 0xffff00000000ffffu) | (words & 0xffff0000u) << 16 | (words >> 16 & 0xffff0000u);
      __builtin_memcpy(values + step * 8, &words, sizeof words);
    }
  }
}

/// V of a block's pages, the `tokens` first of its tokens, to `out`; `values` gets where each page's is.
void turn_block(const KvLayout& layout, const std::byte* const* pages, std::int64_t step_bytes, std::int64_t tokens,
                std::byte* out, const std::byte** values) {
  const std::int64_t rows = layout.page_tokens / (layout.format == KvFormat::kF32 ? 1 : 2);
  for (std::int64_t first = 0; first < tokens; first += layout.page_tokens) {
    turn_keys(layout, *pages++, step_bytes, smaller(layout.page_tokens, tokens - first), out);
    *values++ = out;
    out += rows * layout.padded_dim * 4;
  }
}
