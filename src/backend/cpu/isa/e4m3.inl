// K and V in E4M3 (quant/e4m3.h): rounded as they are stored, and a block of pages at a time widened to bf16,
// which is exact, so that attention multiplies what it would multiply of pages in bf16. Codes lie in a page
// as bf16 values would, so both ways are value by value.
// Floor of widening: the codes' bytes over the bandwidth; some ten operations for two vectors of words.
// Included inside an unnamed namespace by the path's file.

/// As e4m3_scale().
DENDRITE_INLINE std::uint32_t scale_of(const float* values, std::int64_t count) {
  std::uint32_t most = 0;  // bits of magnitudes are in their order
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, values + i, sizeof bits);
    bits &= 0x7fffffffu;
    bits = bits < 0x7f800000u ? bits : 0;
    most = bits > most ? bits : most;
  }
  const std::int64_t exponent = static_cast<std::int64_t>((most + 0x17ffffu) >> 23) - 8;
  return static_cast<std::uint32_t>(larger(kLeastScale, smaller(kMostScale, exponent)));
}

/// As round_to_e4m3(): codes of a vector, and its scale.
void round_to_codes(std::uint8_t* codes, std::uint8_t* scale, const float* values, std::int64_t count) {
  const std::uint32_t exponent = scale_of(values, count);
  *scale = static_cast<std::uint8_t>(exponent);
  const std::uint32_t inverse_bits = (254u - exponent) << 23;
  float inverse;
  __builtin_memcpy(&inverse, &inverse_bits, sizeof inverse);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = values[i] * inverse;
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    float small = __builtin_fabsf(value) + 0x1p14f;  // has steps of 2^-9, those of subnormal codes
    std::uint32_t small_code;
    __builtin_memcpy(&small_code, &small, sizeof small_code);
    small_code -= 0x46800000u;  // the bits of 2^14
    std::uint32_t code = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
    code = code < 126u ? code : 126u;
    code = magnitude < 0x3c800000u ? small_code : code;  // below 2^-6
    code = magnitude < 0x7f800000u ? code : 127u;        // not finite: NaN
    codes[i] = static_cast<std::uint8_t>(bits >> 24 & 128u) | static_cast<std::uint8_t>(code);
  }
}

/// What widen_e4m3 adds to the two codes of a word: the exponents of their scales.
DENDRITE_INLINE std::uint32_t exponents_of(std::byte even, std::byte odd) {
  const auto bits = [](std::byte scale) {
    return (static_cast<std::uint32_t>(scale) - 127u + 120u) << 7 & 0xffffu;  // E4M3's bias is 120 less
  };
  return bits(even) | bits(odd) << 16;
}

/// Rows of kLanes words, each of a pair of codes, to `out`, whose rows are `stride` bytes apart. With pages of
/// fewer tokens than lanes a vector holds rows of several steps.
DENDRITE_INLINE void widen_keys(const KvLayout& layout, const std::byte* codes, const std::byte* scales,
                                std::int64_t steps, std::byte* out, std::int64_t stride) {
  constexpr std::int64_t kMaxPageTokens = 32;
  const std::int64_t tokens = layout.page_tokens;
  std::uint32_t exponents[kMaxPageTokens];
  for (std::int64_t i = 0; i < tokens || i < kLanes; ++i) {
    exponents[i] = exponents_of(scales[i % tokens], scales[i % tokens]);
  }
  if (tokens >= kLanes) {
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::int64_t i = 0; i < tokens; i += kLanes) {
        const auto of_tokens = Vector::load_int(reinterpret_cast<const std::byte*>(exponents + i));
        Vector::store_int(out + step * stride + i * 4,
                          Vector::widen_e4m3(codes + (step * tokens + i) * 2, of_tokens));
      }
    }
    return;
  }
  const auto of_tokens = Vector::load_int(reinterpret_cast<const std::byte*>(exponents));
  for (std::int64_t step = 0; step < steps;) {
    std::byte words[kLanes * 4];
    Vector::store_int(words, Vector::widen_e4m3(codes + step * tokens * 2, of_tokens));
    for (std::int64_t i = 0; i < kLanes && step < steps; i += tokens, ++step) {
      __builtin_memcpy(out + step * stride, words + i * 4, static_cast<std::size_t>(tokens) * 4);
    }
  }
}

/// From step to step of K of a widened block: no power of two, so that steps lie in different sets of a cache.
constexpr std::int64_t kWidenedStepBytes = kBlock * 4 + 64;

/// A block's pages, the `tokens` first of its tokens, as one page of kBlock tokens in bf16.
void widen_block(const AttentionTask& task, const std::int32_t* ids, std::int64_t tokens,
                 const KvLayout& to, std::byte* out) {
  const KvLayout& from = task.layout;
  const std::int64_t steps = (from.head_dim + 1) / 2;
  const std::int64_t pages = (tokens + from.page_tokens - 1) / from.page_tokens;
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::byte* head = task.pages + ids[page] * from.page_stride;
    if (page + 1 < pages) prefetch(task.pages + ids[page + 1] * from.page_stride, from.head_stride);
    const std::int64_t first = page * from.page_tokens;
    widen_keys(from, head, head + from.scales_offset, steps, out + first * 4,
               kWidenedStepBytes);
    if (from.values_are_keys) continue;
    const std::byte* scales = head + from.scales_offset + from.page_tokens;
    const std::byte* codes = head + from.v_offset;
    std::byte* words = out + to.v_offset + first / 2 * to.padded_dim * 4;
    for (std::int64_t token = 0; token < from.page_tokens; token += 2) {
      const auto exponents =
          Vector::all(static_cast<std::int32_t>(exponents_of(scales[token], scales[token + 1])));
      for (std::int64_t i = 0; i < from.padded_dim; i += kLanes) {
        Vector::store_int(words, Vector::widen_e4m3(codes, exponents));
        codes += kLanes * 2;
        words += kLanes * 4;
      }
    }
  }
}

/// Where widen_block puts them.
DENDRITE_INLINE KvLayout widened_layout(const KvLayout& from) {
  KvLayout to;
  to.format = KvFormat::kBF16;
  to.head_dim = from.head_dim;
  to.padded_dim = from.padded_dim;
  to.values_are_keys = from.values_are_keys;
  to.page_tokens = kBlock;
  while ((std::int64_t{1} << to.page_shift) < kBlock) ++to.page_shift;
  to.v_offset = (from.head_dim + 1) / 2 * kWidenedStepBytes;
  return to;
}
