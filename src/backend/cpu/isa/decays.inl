// How states decay: of a whole head by e^g, or each channel of its keys by itself.
// Included inside an unnamed namespace by the path's file.

constexpr int kChunk = static_cast<int>(kChunkTokens);

/// g is not let below this: e^g is 0 then, and the sum of 16 of them still has some digits behind the point.
constexpr float kLeastDecay = -88.0f;

/// e^x for x <= 0; 0 where it would be below 2^-125.
DENDRITE_INLINE Float exp_vector(Float x) {
  const Float t = Vector::mul(x, Vector::set1(1.44269504f));
  return Vector::zero_below(exp2_vector(t), t, Vector::set1(-125.0f));
}

/// log(1 + e^x). With y = e^-|x| and s = y / (2 + y), log(1 + y) = 2 (s + s^3 / 3 + s^5 / 5 + ...), s <= 1/3.
DENDRITE_INLINE Float softplus_vector(Float x) {
  const Float zero = Vector::zero();
  const Float y = exp_vector(Vector::sub(zero, Vector::max(x, Vector::sub(zero, x))));
  const Float s = Vector::div(y, Vector::add(Vector::set1(2.0f), y));
  const Float s2 = Vector::mul(s, s);
  Float p = Vector::set1(2.0f / 15);
  for (int power = 13; power > 0; power -= 2) {
    p = Vector::fma(p, s2, Vector::set1(2.0f / static_cast<float>(power)));
  }
  return Vector::add(Vector::max(x, zero), Vector::mul(p, s));
}

/// What is left of each channel of a head's keys between the rows of a chunk, where channels decay by themselves.
/// It is a product of e^g, formed from the last row back: sums of logarithms would lose the digits of what comes
/// behind a row that forgets a channel. `t`: a position of the chunk.
class ChannelDecays {
 public:
  ChannelDecays() = default;
  /// Vectors are padded to whole kDeltaPad.
  ChannelDecays(float* scratch, std::int64_t key_dim)
      : key_dim_(key_dim),
        keys_(delta_padded(key_dim)),
        left_(scratch),
        behind_(scratch + kChunk * keys_) {}
  static std::int64_t floats(std::int64_t keys) { return (kChunk + 1) * keys; }

  /// [keys]: e^g of row t.
  float* of(std::int64_t t) const { return left_ + t * keys_; }
  /// g = -decay * softplus(in + bias), at least kLeastDecay.
  void put(std::int64_t t, const float* in, const float* bias, float decay) {
    for (std::int64_t i = 0; i < keys_; i += kLanes) {
      const std::int64_t there = key_dim_ - i;
      Float g = Vector::zero();
      if (there > 0) {
        const Float step = softplus_vector(Vector::add(load_first(in + i, there), load_first(bias + i, there)));
        g = Vector::max(Vector::mul(Vector::set1(-decay), step), Vector::set1(kLeastDecay));
      }
      Vector::store(of(t) + i, exp_vector(g));
    }
  }

  /// Behind all rows.
  void begin() {
    for (std::int64_t i = 0; i < keys_; i += kLanes) Vector::store(behind_ + i, Vector::set1(1.0f));
  }
  /// [keys]: what is left of what was known before the rows gone back over.
  const float* behind() const { return behind_; }
  /// Puts what is left of row t's key, and goes back over the row.
  const float* step_back(std::int64_t t, const float* key, float* decayed) {
    for (std::int64_t i = 0; i < keys_; i += kLanes) {
      const Float behind = Vector::load(behind_ + i);
      Vector::store(decayed + i, Vector::mul(behind, Vector::load(key + i)));
      const Float before = Vector::mul(behind, Vector::load(of(t) + i));
      Vector::store(behind_ + i, Vector::zero_below(before, before, Vector::set1(kLeast)));
    }
    return decayed;
  }

 private:
  /// Below this nothing is left: products with less would be denormal, which take a CPU long.
  static constexpr float kLeast = 0x1p-100f;

  std::int64_t key_dim_ = 0;
  std::int64_t keys_ = 0;  // padded
  float* left_ = nullptr;    // [chunk][keys]
  float* behind_ = nullptr;  // [keys]
};
