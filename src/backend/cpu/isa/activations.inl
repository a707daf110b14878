// Activations of MLPs, caps on scores and logits, and how a layer's output joins the stream: row-wise ops that only
// some families have. Each row runs the same code whatever its company.
// Included inside an unnamed namespace by the path's file.

/// cap * tanh(x * factor), with factor 1 / cap or a multiple of it: through e^(-2 |x|), so that nothing overflows.
/// The error is of cap's size, not of x's.
DENDRITE_INLINE Float capped(Float x, float factor, float cap) {
  const Float zero = Vector::zero();
  const Float one = Vector::set1(1.0f);
  const Float t = Vector::mul(x, Vector::set1(factor));
  const Float magnitude = Vector::max(t, Vector::sub(zero, t));
  const Float e = exp2_vector(Vector::mul(magnitude, Vector::set1(-2 * 1.44269504f)));
  const Float size = Vector::mul(Vector::set1(cap), Vector::div(Vector::sub(one, e), Vector::add(one, e)));
  // t >= 0: size; else -size
  const Float positive = Vector::zero_below(size, t, zero);
  return Vector::sub(Vector::add(positive, positive), size);
}

/// Scores of a row in lanes [begin, end) and what is around them in their vectors.
DENDRITE_NOINLINE void cap_scores(float* scores, int begin, int end, float factor, float cap) {
  for (int i = begin / kLanes * kLanes; i < end; i += kLanes) {
    Vector::store(scores + i, capped(Vector::load(scores + i), factor, cap));
  }
}

/// What a row's weighted values are multiplied by, of maximum m and sum l of its softmax; 0 if it saw nothing. A
/// sink: AttentionArgs::sinks.
DENDRITE_INLINE float output_factor(float m, float l, float scale_log2e, const float* sink) {
  if (!(l > 0)) return 0.0f;
  if (sink == nullptr) return 1.0f / l;
  const float seen = m * scale_log2e;
  const float other = *sink * 1.44269504f;
  const float top = seen > other ? seen : other;
  float factors[kLanes];
  Vector::store(factors, exp2_vector(Vector::set1(seen - top)));
  const float seen_factor = factors[0];
  Vector::store(factors, exp2_vector(Vector::set1(other - top)));
  return seen_factor / (l * seen_factor + factors[0]);
}

// x = factor * x, then with a cap cap * tanh(x / cap)
void scale(const ScaleArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* x = args.x + row * args.stride;
    for (std::int64_t i = 0; i < args.cols; i += kLanes) {
      const std::int64_t left = args.cols - i;
      const Float value = load_first(x + i, left);
      store_first(x + i,
                  args.cap > 0 ? capped(value, args.factor / args.cap, args.cap)
                               : Vector::mul(value, Vector::set1(args.factor)),
                  left);
    }
  }
}

// x = max(x, 0)^2; factor and cap are not looked at
void squared_relu(const ScaleArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* x = args.x + row * args.stride;
    for (std::int64_t i = 0; i < args.cols; i += kLanes) {
      const std::int64_t left = args.cols - i;
      const Float value = Vector::max(load_first(x + i, left), Vector::zero());
      store_first(x + i, Vector::mul(value, value), left);
    }
  }
}

// out += factor * x, or factor * rms_norm(x)
void add_normed(const AddNormedArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    float factor = args.factor;
    if (args.weight != nullptr) {
      const float mean = sum_of_squares(x, args.cols) / static_cast<float>(args.cols);
      factor *= 1.0f / __builtin_sqrtf(mean + args.eps);
    }
    const Float factors = Vector::set1(factor);
    for (std::int64_t i = 0; i < args.cols; i += kLanes) {
      const std::int64_t left = args.cols - i;
      Float value = load_first(x + i, left);
      if (args.weight != nullptr) value = Vector::mul(value, load_first(args.weight + i, left));
      store_first(out + i, Vector::fma(factors, value, load_first(out + i, left)), left);
    }
  }
}

/// Activation::Kind::kGelu: g * P(g) = g * sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)).
DENDRITE_INLINE Float gelu_mul_vector(Float gate, Float up) {
  const Float square = Vector::mul(gate, gate);
  const Float inner = Vector::fma(Vector::mul(square, gate), Vector::set1(0.044715f), gate);
  const Float part = sigmoid_vector(Vector::mul(inner, Vector::set1(1.59576912f)));
  return Vector::mul(Vector::mul(gate, part), up);
}

/// Activation::Kind::kClamped.
DENDRITE_INLINE Float clamped_mul_vector(Float gate, Float up, float limit, float alpha) {
  const Float zero = Vector::zero();
  const auto at_most = [&](Float x) {  // limit - max(limit - x, 0)
    const Float bound = Vector::set1(limit);
    return Vector::sub(bound, Vector::max(Vector::sub(bound, x), zero));
  };
  const Float g = at_most(gate);
  const Float u = Vector::max(at_most(up), Vector::set1(-limit));
  const Float part = sigmoid_vector(Vector::mul(g, Vector::set1(alpha)));
  return Vector::mul(Vector::mul(g, part), Vector::add(u, Vector::set1(1.0f)));
}

template <class Vectors>
DENDRITE_INLINE void activate_rows(const ActivateArgs& args, std::int64_t begin, std::int64_t end,
                                   Vectors vectors) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* gate = args.gate_up + row * args.gate_up_stride;
    const float* up = gate + args.ffn;
    float* out = args.out + row * args.out_stride;
    std::int64_t i = 0;
    for (; i + kLanes <= args.ffn; i += kLanes) {
      Vector::store(out + i, vectors(Vector::load(gate + i), Vector::load(up + i)));
    }
    const std::int64_t left = args.ffn - i;
    if (left == 0) continue;
    store_first(out + i, vectors(load_first(gate + i, left), load_first(up + i, left)), left);
  }
}

void activate(const ActivateArgs& args, std::int64_t begin, std::int64_t end) {
  switch (args.kind) {
    case Gating::kSilu:
      return activate_rows(args, begin, end, [](Float g, Float u) { return silu_mul_vector(g, u); });
    case Gating::kGelu:
      return activate_rows(args, begin, end, [](Float g, Float u) { return gelu_mul_vector(g, u); });
    case Gating::kClamped:
      return activate_rows(args, begin, end, [&](Float g, Float u) {
        return clamped_mul_vector(g, u, args.limit, args.alpha);
      });
  }
}
