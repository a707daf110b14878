// Row-wise ops: RMSNorm, SiLU * up, gates, RoPE with the store to KV pages. All are a few percent of a
// step's time; each row runs the same code whatever its company.
// Included inside an unnamed namespace by the path's file.

/// sum of x^2: four vector sums over ascending elements, folded by a fixed tree; the tail (dim %
/// (4 lanes)) in scalar order.
DENDRITE_INLINE float sum_of_squares(const float* x, std::int64_t dim) {
  Float a[4] = {Vector::zero(), Vector::zero(), Vector::zero(), Vector::zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
    DENDRITE_UNROLL
    for (int c = 0; c < 4; ++c) {
      const Float value = Vector::load(x + i + c * kLanes);
      a[c] = Vector::fma(value, value, a[c]);
    }
  }
  float sum = Vector::sum(Vector::add(Vector::add(a[0], a[1]), Vector::add(a[2], a[3])));
  for (; i < dim; ++i) sum += x[i] * x[i];
  return sum;
}

// RMSNorm: out = x / sqrt(mean(x^2) + eps) * weight.   out, x  [rows, dim] f32; sums in f32.
// Source: Zhang & Sennrich 2019, arXiv:1910.07467.
DENDRITE_INLINE void norm_row(float* out, const float* x, const float* weight, std::int64_t dim,
                              float eps) {
  const float mean = sum_of_squares(x, dim) / static_cast<float>(dim);
  const float factor = 1.0f / __builtin_sqrtf(mean + eps);
  const Float factors = Vector::set1(factor);
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    Vector::store(out + i,
                  Vector::mul(Vector::mul(Vector::load(x + i), factors), Vector::load(weight + i)));
  }
  for (; i < dim; ++i) out[i] = x[i] * factor * weight[i];
}

void rms_norm(const NormArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    norm_row(args.out + row * args.out_stride, args.x + row * args.x_stride, args.weight, args.dim,
             args.eps);
  }
}

/// 1 / (1 + e^-x), through 2^-|t| so that nothing overflows.
DENDRITE_INLINE Float sigmoid_vector(Float x) {
  const Float zero = Vector::zero();
  const Float one = Vector::set1(1.0f);
  const Float magnitude = Vector::max(x, Vector::sub(zero, x));
  const Float e = exp2_vector(Vector::mul(magnitude, Vector::set1(-1.44269504f)));
  // x >= 0: 1 / (1 + e);  x < 0: e / (1 + e)
  const Float positive = Vector::zero_below(one, x, zero);
  const Float numerator = Vector::max(positive, e);  // e <= 1
  return Vector::div(numerator, Vector::add(one, e));
}

/// silu(gate) * up = gate * up / (1 + e^-gate)
DENDRITE_INLINE Float silu_mul_vector(Float gate, Float up) {
  return Vector::mul(Vector::mul(gate, sigmoid_vector(gate)), up);
}

/// The first `count` values, zeros in the other lanes; count >= 1, and all lanes from kLanes on.
DENDRITE_INLINE Float load_first(const float* p, std::int64_t count) {
  if (count >= kLanes) return Vector::load(p);
  float lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<std::size_t>(count) * sizeof(float));
  return Vector::load(lanes);
}
DENDRITE_INLINE void store_first(float* p, Float x, std::int64_t count) {
  if (count >= kLanes) return Vector::store(p, x);
  float lanes[kLanes];
  Vector::store(lanes, x);
  __builtin_memcpy(p, lanes, static_cast<std::size_t>(count) * sizeof(float));
}

/// out = x * sigmoid(gate) of one gate
DENDRITE_INLINE void gate_columns(float* out, const float* x, const float* g, std::int64_t cols) {
  float lanes[kLanes];
  Vector::store(lanes, sigmoid_vector(load_first(g, 1)));
  const Float factor = Vector::set1(lanes[0]);
  for (std::int64_t i = 0; i < cols; i += kLanes) {
    store_first(out + i, Vector::mul(load_first(x + i, cols - i), factor), cols - i);
  }
}

// out = x * sigmoid(gate)
void gate(const GateArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.x + row * args.x_stride;
    const float* g = args.gate + row * args.gate_stride;
    float* out = args.out + row * args.out_stride;
    if (args.of_gate > 1) {
      for (std::int64_t i = 0; i < args.cols; i += args.of_gate) {
        gate_columns(out + i, x + i, g + i / args.of_gate, args.of_gate);
      }
      continue;
    }
    for (std::int64_t i = 0; i < args.cols; i += kLanes) {
      const std::int64_t left = args.cols - i;
      const Float factor = sigmoid_vector(load_first(g + i, left));
      store_first(out + i, Vector::mul(load_first(x + i, left), factor), left);
    }
  }
}

/// out = e^(x - max) / sum of it. The sum runs in ascending order.
DENDRITE_INLINE void softmax_row(float* out, const float* x, std::int64_t count) {
  float most = x[0];
  for (std::int64_t i = 1; i < count; ++i) most = x[i] > most ? x[i] : most;
  const Float shift = Vector::set1(most);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Float below = Vector::sub(load_first(x + i, count - i), shift);
    store_first(out + i, exp2_vector(Vector::mul(below, Vector::set1(1.44269504f))), count - i);
  }
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += out[i];
  for (std::int64_t i = 0; i < count; ++i) out[i] /= sum;
}
DENDRITE_INLINE void sigmoid_row(float* out, const float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store_first(out + i, sigmoid_vector(load_first(x + i, count - i)), count - i);
  }
}

// Scores of experts; the last column sigmoid(x).
void route(const RouteArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.logits + row * args.stride;
    float* out = args.out + row * args.out_stride;
    if (args.sigmoid) {
      sigmoid_row(out, x, args.experts);
    } else {
      softmax_row(out, x, args.experts);
    }
    if (args.gate) {
      store_first(out + args.experts, sigmoid_vector(load_first(x + args.experts, 1)), 1);
    }
  }
}

// out[rows[i]] += factors[i] * x[i]
void add_rows(const AddRowsArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float* x = args.x + i * args.x_stride;
    float* out = args.out + args.rows[i] * args.out_stride;
    const Float factor = Vector::set1(args.factors[i]);
    for (std::int64_t k = 0; k < args.cols; k += kLanes) {
      const std::int64_t left = args.cols - k;
      store_first(out + k, Vector::fma(factor, load_first(x + k, left), load_first(out + k, left)),
                  left);
    }
  }
}

/// Half-split rotation of one head in place. Source: Su et al. 2021, arXiv:2104.09864.
DENDRITE_INLINE void rotate(float* head, const float* cos_sin, std::int64_t half) {
  const float* cosine = cos_sin;
  const float* sine = cos_sin + half;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Float a = Vector::load(head + i);
    const Float b = Vector::load(head + half + i);
    const Float c = Vector::load(cosine + i);
    const Float s = Vector::load(sine + i);
    Vector::store(head + i, Vector::sub(Vector::mul(a, c), Vector::mul(b, s)));
    Vector::store(head + half + i, Vector::add(Vector::mul(b, c), Vector::mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i];
    const float b = head[half + i];
    head[i] = a * cosine[i] - b * sine[i];
    head[half + i] = b * cosine[i] + a * sine[i];
  }
}

void store_key(const KvLayout& layout, std::byte* page, std::int64_t offset, const float* key) {
  const std::int64_t tokens = layout.page_tokens;
  if (layout.format == KvFormat::kF32) {
    auto* k = reinterpret_cast<float*>(page) + offset;
    for (std::int64_t i = 0; i < layout.head_dim; ++i) k[i * tokens] = key[i];
    return;
  }
  if (layout.format == KvFormat::kFP8) {
    std::uint8_t codes[kMaxHeadDim + 1];
    auto* scales = reinterpret_cast<std::uint8_t*>(page + layout.scales_offset);
    round_to_codes(codes, scales + offset, key, layout.head_dim);
    codes[layout.head_dim] = 0;
    auto* k = reinterpret_cast<std::uint8_t*>(page) + 2 * offset;
    for (std::int64_t i = 0; i < layout.head_dim; i += 2) {
      __builtin_memcpy(k + i * tokens, codes + i, 2);
    }
    return;
  }
  auto* k = reinterpret_cast<std::uint32_t*>(page) + offset;
  std::int64_t i = 0;
  for (; i + 2 <= layout.head_dim; i += 2) {
    k[i / 2 * tokens] = bf16_bits(key[i]) | bf16_bits(key[i + 1]) << 16;
  }
  if (i < layout.head_dim) k[i / 2 * tokens] = bf16_bits(key[i]);
}

void store_value(const KvLayout& layout, std::byte* page, std::int64_t offset, const float* value) {
  std::byte* base = page + layout.v_offset;
  if (layout.format == KvFormat::kF32) {
    auto* v = reinterpret_cast<float*>(base) + offset * layout.padded_dim;
    for (std::int64_t i = 0; i < layout.head_dim; ++i) v[i] = value[i];
    return;
  }
  if (layout.format == KvFormat::kFP8) {
    std::uint8_t codes[kMaxHeadDim];
    auto* scales = reinterpret_cast<std::uint8_t*>(page + layout.scales_offset) + layout.page_tokens;
    round_to_codes(codes, scales + offset, value, layout.head_dim);
    auto* v = reinterpret_cast<std::uint8_t*>(base) + offset / 2 * layout.padded_dim * 2 + offset % 2;
    for (std::int64_t i = 0; i < layout.head_dim; ++i) v[2 * i] = codes[i];
    return;
  }
  auto* v =
      reinterpret_cast<std::uint16_t*>(base) + offset / 2 * layout.padded_dim * 2 + offset % 2;
  for (std::int64_t i = 0; i < layout.head_dim; ++i) {
    v[2 * i] = static_cast<std::uint16_t>(bf16_bits(value[i]));
  }
}

DENDRITE_INLINE void store_slot(const RopeArgs& args, std::int64_t slot, std::int64_t head,
                                const float* key, const float* value) {
  const std::int64_t tokens = args.layout.page_tokens;
  std::byte* page =
      args.pages + slot / tokens * args.layout.page_stride + head * args.layout.head_stride;
  store_key(args.layout, page, slot % tokens, key);
  if (!args.layout.values_are_keys) store_value(args.layout, page, slot % tokens, value);
}

void rope_and_store(const RopeArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = args.head_dim;
  const std::int64_t half = args.rotary_dim / 2;
  float key[kMaxHeadDim];
  float value[kMaxHeadDim];
  for (std::int64_t row = begin; row < end; ++row) {
    const float* cos_sin = args.cos_sin + row * args.rotary_dim;
    float* q = args.qkv + row * args.stride;
    for (std::int64_t head = 0; head < args.heads; ++head, q += dim) {
      if (args.q_norm != nullptr) norm_row(q, q, args.q_norm, dim, args.norm_eps);
      rotate(q, cos_sin, half);
    }
    const std::int64_t slot = args.slots[row];
    std::int64_t extra = 0;  // first extra place of this row
    while (extra < args.extra_count && args.extra_rows_slots[2 * extra] != row) ++extra;
    if (slot < 0 && extra == args.extra_count) continue;
    const float* k = q;
    const float* v = k + args.kv_heads * dim;
    for (std::int64_t head = 0; head < args.kv_heads; ++head) {
      if (args.k_norm != nullptr) {
        norm_row(key, k, args.k_norm, dim, args.norm_eps);
      } else {
        __builtin_memcpy(key, k, static_cast<std::size_t>(dim) * sizeof(float));
      }
      rotate(key, cos_sin, half);
      if (args.v_norm != nullptr) norm_row(value, v, args.v_norm, dim, args.norm_eps);
      const float* kept = args.v_norm != nullptr ? value : v;
      if (slot >= 0) store_slot(args, slot, head, key, kept);
      for (std::int64_t e = extra; e < args.extra_count; ++e) {
        if (args.extra_rows_slots[2 * e] == row) {
          store_slot(args, args.extra_rows_slots[2 * e + 1], head, key, kept);
        }
      }
      k += dim;
      v += dim;
    }
  }
}
