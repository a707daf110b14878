// Gated delta networks, cut at absolute positions: Backend::delta_net has the formula, RecurrencePlan the
// chunks. A row of a value head reads the state before its chunk once (S^T k and S^T q), and what the rows
// between wrote. So the time is that of reading states while rows are few (4 key_dim value_dim bytes a head),
// and of 4 key_dim value_dim operations a row and head where they share the reading; a chunk's end costs half
// as many again. Where channels decay by themselves, products of two rows' keys are of channels that decayed
// since; that takes up to 16 products of a key's length a row and head more.
// A row's sums have one order, whatever shares the call. Products with the state run over key_dim upwards, one
// accumulator an output; sums over rows from the oldest on; dot products keep 16 partial sums, value i in sum
// i mod 16, and fold them by halves. All else is by element. Multiply-adds are the path's, so paths that fuse
// have the same bits.
// Source: Yang et al. 2024, arXiv:2412.06464; by channel Kimi Team 2025, arXiv:2510.26692.
// Included inside an unnamed namespace by the path's file.

/// One key head and the value heads that go by it. `t`: a position of the chunk.
class DeltaHeads {
 public:
  DeltaHeads(const DeltaNetTask& task, float* scratch, std::int64_t key_head)
      : task_(task),
        key_head_(key_head),
        heads_(task.value_heads / task.key_heads),
        first_head_(key_head * heads_),
        keys_(delta_padded(task.key_dim)),
        values_(delta_padded(task.value_dim)),
        channels_(task.channels()),
        in_place_(task.value_dim == values_) {
    const auto take = [&](std::int64_t count) {
      float* const begin = scratch;
      scratch += count;
      return begin;
    };
    conv_stride_ = 2 * keys_ + heads_ * values_;
    conv_ = take(task.taps * conv_stride_);
    states_ = take(heads_ * task.key_dim * values_);
    projected_ = take(kChunk * 2 * keys_);
    weighted_keys_ = take(kChunk * keys_);
    writes_ = take(kChunk * values_);
    convolved_ = take(kChunk * values_);
    products_ = take(kChunk * 2 * values_);
    key_dots_ = take(kChunk * kChunk);
    query_dots_ = take(kChunk * kChunk);
    write_shares_ = take(kChunk);
    decays_ = take(kChunk);
    sums_ = take(kChunk);
    factors_ = take(kChunk);
    row_factors_ = take(kChunk);
    key_weights_ = take(kChunk);
    query_weights_ = take(kChunk);
    read_ = take(values_);
    output_ = take(values_);
    if (task.by_channel) {
      left_ = ChannelDecays(take(ChannelDecays::floats(keys_)), task.key_dim);
      met_ = take(kChunk * 2 * keys_);
      decayed_ = take(keys_);
    }
    // Taps lie side by side in the weight, channels here.
    take_taps(0, query_channel(), task.key_dim, keys_);
    take_taps(keys_, key_channel(), task.key_dim, keys_);
    for (std::int64_t h = 0; h < heads_; ++h) {
      take_taps(2 * keys_ + h * values_, value_channel(h), task.value_dim, values_);
    }
  }

  void run(const RecurrencePlan::Run& run) {
    const std::int64_t tail = task_.taps - 1;
    for (std::int64_t i = 0; i < tail; ++i) {
      history_[i] = run.anchor < 0 ? task_.zeros : anchor(run.anchor) + tail_offset() + i * channels_;
    }
    load_state(run.anchor);
    const std::int32_t* known = task_.known + run.known_begin;
    const std::int32_t* slot = task_.new_anchors + run.anchors_begin;
    std::int64_t begin = run.known;
    fetch_rows(run.row_begin, smaller(run.row_begin + kChunk - begin, run.row_end));
    for (std::int64_t row = run.row_begin;;) {
      const std::int64_t end = smaller(kChunk, begin + run.row_end - row);
      for (std::int64_t t = 0; t < begin; ++t) history_[tail + t] = journal(known[t]) + convolved_offset();
      for (std::int64_t t = begin; t < end; ++t) {
        history_[tail + t] = task_.in + (row + t - begin) * task_.in_stride;
      }
      const std::int64_t next = row + end - begin;
      const bool more = next < run.row_end;
      fetch_rows(next, smaller(next + kChunk, run.row_end));
      const bool folded = end == kChunk && (more || *slot >= 0);
      chunk({known, row - begin, begin, end, folded, folded ? *slot : -1});
      if (!more) return;
      for (std::int64_t i = 0; i < tail; ++i) history_[i] = history_[kChunk + i];
      row = next;
      begin = 0;
      ++slot;
    }
  }

 private:
  /// Positions [0, end) of a chunk: [0, begin) are known, the others rows.
  struct Chunk {
    const std::int32_t* known;
    std::int64_t row;  // at position 0, or where it would be
    std::int64_t begin;
    std::int64_t end;
    bool folded;        // whether the state behind it is made
    std::int32_t slot;  // for it; -1: none
  };

  /// Brings nearer what comes in of these rows: a few hundred bytes here and there, which no machine foresees
  /// (512 rows of 16 heads of 128 x 128 took 1.2x as long). Inlined because GCC leaves out calls of a function
  /// that does nothing else.
  DENDRITE_INLINE void fetch_rows(std::int64_t begin, std::int64_t end) const {
    const std::int64_t key_bytes = task_.key_dim * 4;
    const std::int64_t value_bytes = heads_ * task_.value_dim * 4;
    for (std::int64_t row = begin; row < end; ++row) {
      const float* in = task_.in + row * task_.in_stride;
      prefetch(reinterpret_cast<const std::byte*>(in + query_channel()), key_bytes);
      prefetch(reinterpret_cast<const std::byte*>(in + key_channel()), key_bytes);
      prefetch(reinterpret_cast<const std::byte*>(in + value_channel(0)), value_bytes);
      prefetch(reinterpret_cast<const std::byte*>(in + task_.gates_at() + first_head_ * task_.value_dim), value_bytes);
      if (task_.by_channel) {
        prefetch(reinterpret_cast<const std::byte*>(in + task_.decays_at() + query_channel()), key_bytes);
      }
    }
  }

  std::int64_t query_channel() const { return key_head_ * task_.key_dim; }
  std::int64_t key_channel() const { return (task_.key_heads + key_head_) * task_.key_dim; }
  std::int64_t value_channel(std::int64_t h) const {
    return 2 * task_.key_heads * task_.key_dim + (first_head_ + h) * task_.value_dim;
  }
  float* anchor(std::int32_t slot) const { return task_.anchors + slot * task_.anchor_stride; }
  std::int64_t state_offset(std::int64_t h) const {
    return (first_head_ + h) * task_.key_dim * task_.value_dim;
  }
  std::int64_t tail_offset() const { return task_.value_heads * task_.key_dim * task_.value_dim; }
  float* journal(std::int32_t slot) const { return task_.journals + slot * task_.journal_stride; }
  std::int64_t write_offset(std::int64_t h) const {
    return task_.key_heads * task_.key_dim + (first_head_ + h) * task_.value_dim;
  }
  std::int64_t decay_offset(std::int64_t h) const { return task_.kept_decays_at() + first_head_ + h; }
  std::int64_t left_offset() const { return task_.kept_decays_at() + query_channel(); }
  std::int64_t convolved_offset() const { return task_.kept_convolved_at(); }
  float* key(std::int64_t t) const { return projected_ + t * 2 * keys_; }
  float* query(std::int64_t t) const { return key(t) + keys_; }

  static void copy(float* out, const float* x, std::int64_t count) {
    __builtin_memcpy(out, x, static_cast<std::size_t>(count) * sizeof(float));
  }
  /// And zeros up to `padded`.
  static void copy_padded(float* out, const float* x, std::int64_t count, std::int64_t padded) {
    copy(out, x, count);
    for (std::int64_t i = count; i < padded; ++i) out[i] = 0;
  }

  void take_taps(std::int64_t at, std::int64_t channel, std::int64_t count, std::int64_t padded) {
    for (std::int64_t j = 0; j < task_.taps; ++j) {
      float* out = conv_ + j * conv_stride_ + at;
      const float* weights = task_.conv + channel * task_.taps + j;
      for (std::int64_t i = 0; i < count; ++i) out[i] = weights[i * task_.taps];
      for (std::int64_t i = count; i < padded; ++i) out[i] = 0;
    }
  }

  /// Of position t, channels from `channel` on, whose taps are `at` in conv_.
  void convolve(float* out, std::int64_t t, std::int64_t at, std::int64_t channel, std::int64_t count,
                std::int64_t padded) const {
    const Float one = Vector::set1(1.0f);
    const float* taps = conv_ + at;
    for (std::int64_t i = 0; i < padded; i += kLanes) {
      const std::int64_t left = count - i;
      Float sum = Vector::zero();
      if (left > 0) {
        for (std::int64_t j = 0; j < task_.taps; ++j) {
          sum = Vector::fma(Vector::load(taps + j * conv_stride_ + i),
                            load_first(history_[t + j] + channel + i, left), sum);
        }
      }
      Vector::store(out + i, silu_mul_vector(sum, one));
    }
  }

  /// x * factor / sqrt(sum of x^2 + 1e-6)
  void normalize(float* x, float factor) const {
    const Float all = Vector::set1(factor / __builtin_sqrtf(dot_of(x, x, keys_) + 1e-6f));
    for (std::int64_t i = 0; i < keys_; i += kLanes) Vector::store(x + i, Vector::mul(Vector::load(x + i), all));
  }

  void load_state(std::int32_t slot) {
    state_ = nullptr;
    if (slot < 0) return;
    state_ = in_place_ ? anchor(slot) + state_offset(0) : states_;
    if (in_place_) return;
    for (std::int64_t i = 0; i < heads_ * task_.key_dim; ++i) {
      copy_padded(states_ + i * values_, anchor(slot) + state_offset(0) + i * task_.value_dim, task_.value_dim,
                  values_);
    }
  }

  void chunk(const Chunk& chunk) {
    for (std::int64_t t = 0; t < chunk.begin; ++t) {
      const float* keys = journal(chunk.known[t]) + query_channel();
      copy_padded(key(t), keys, task_.key_dim, keys_);
      if (task_.by_channel) {
        copy_padded(left_.of(t), journal(chunk.known[t]) + left_offset(), task_.key_dim, keys_);
      }
    }
    const float query_factor = 1.0f / __builtin_sqrtf(static_cast<float>(task_.key_dim));
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      convolve(query(t), t, 0, query_channel(), task_.key_dim, keys_);
      convolve(key(t), t, keys_, key_channel(), task_.key_dim, keys_);
      normalize(query(t), query_factor);
      normalize(key(t), 1.0f);
      if (task_.by_channel) {
        const float* in = task_.in + (chunk.row + t) * task_.in_stride + task_.decays_at();
        left_.put(t, in + query_channel(), task_.dt_bias + query_channel(), task_.decay[key_head_]);
        put_decayed_dots(t);
      } else {
        for (std::int64_t j = 0; j <= t; ++j) put_dots(t, j, key(j));
      }
      keep_inputs(chunk, t);
    }
    float* const made = chunk.slot >= 0 && in_place_ ? anchor(chunk.slot) + state_offset(0) : states_;
    for (std::int64_t h = 0; h < heads_; ++h) {
      value_head(chunk, h);
      if (chunk.folded) fold_chunk(h, made);
    }
    if (!chunk.folded) return;
    state_ = made;
    if (chunk.slot >= 0) keep_state(chunk.slot);
  }

  void put_dots(std::int64_t t, std::int64_t j, const float* key_of_j) {
    key_dots_[t * kChunk + j] = dot_of(key_of_j, key(t), keys_);
    query_dots_[t * kChunk + j] = dot_of(key_of_j, query(t), keys_);
  }

  /// Dots of row t with those up to it, and how its key and query meet the state before the chunk.
  void put_decayed_dots(std::int64_t t) {
    left_.begin();
    for (std::int64_t j = t; j >= 0; --j) put_dots(t, j, left_.step_back(j, key(j), decayed_));
    float* const met = met_ + t * 2 * keys_;
    for (std::int64_t i = 0; i < keys_; i += kLanes) {
      const Float behind = Vector::load(left_.behind() + i);
      Vector::store(met + i, Vector::mul(behind, Vector::load(key(t) + i)));
      Vector::store(met + keys_ + i, Vector::mul(behind, Vector::load(query(t) + i)));
    }
  }

  std::int32_t journal_of(const Chunk& chunk, std::int64_t t) const { return task_.row_journals[chunk.row + t]; }

  void keep_inputs(const Chunk& chunk, std::int64_t t) {
    const std::int32_t slot = journal_of(chunk, t);
    if (slot < 0) return;
    copy(journal(slot) + query_channel(), key(t), task_.key_dim);
    if (task_.by_channel) copy(journal(slot) + left_offset(), left_.of(t), task_.key_dim);
    copy_channels(journal(slot) + convolved_offset(), history_[task_.taps - 1 + t]);
  }
  /// What is convolved for these heads.
  void copy_channels(float* out, const float* x) const {
    copy(out + query_channel(), x + query_channel(), task_.key_dim);
    copy(out + key_channel(), x + key_channel(), task_.key_dim);
    copy(out + value_channel(0), x + value_channel(0), heads_ * task_.value_dim);
  }
  void keep_state(std::int32_t slot) {
    float* const to = anchor(slot);
    if (!in_place_) {
      for (std::int64_t i = 0; i < heads_ * task_.key_dim; ++i) {
        copy(to + state_offset(0) + i * task_.value_dim, states_ + i * values_, task_.value_dim);
      }
    }
    for (std::int64_t i = 0; i + 1 < task_.taps; ++i) {
      copy_channels(to + tail_offset() + i * channels_, history_[kChunk + i]);
    }
  }

  void value_head(const Chunk& chunk, std::int64_t h) {
    for (std::int64_t t = 0; t < chunk.begin; ++t) {
      const float* from = journal(chunk.known[t]);
      copy_padded(writes_ + t * values_, from + write_offset(h), task_.value_dim, values_);
      if (!task_.by_channel) sums_[t] = from[decay_offset(h)];
    }
    if (chunk.begin == chunk.end) return;
    gates(chunk, h);
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      convolve(convolved_ + t * values_, t, 2 * keys_ + h * values_, value_channel(h), task_.value_dim, values_);
    }
    if (state_ != nullptr) {  // key and query of a row are rows of x
      sum_rows({.terms = state_ + h * task_.key_dim * values_,
                .term_stride = values_,
                .count = task_.key_dim,
                .x = (task_.by_channel ? met_ : projected_) + chunk.begin * 2 * keys_,
                .x_row = keys_,
                .x_step = 1,
                .out = products_ + chunk.begin * 2 * values_,
                .out_stride = values_},
               2 * (chunk.end - chunk.begin), values_);
    }
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) value_row(chunk, h, t);
  }

  /// Of all rows: how much is written, the sum of the decays' logarithms, and its power of e.
  void gates(const Chunk& chunk, std::int64_t h) {
    const std::int64_t head = first_head_ + h;
    const float* in = task_.in + chunk.row * task_.in_stride + task_.writes_at() + head;
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) write_shares_[t] = in[t * task_.in_stride];
    for (int v = 0; v < kChunk; v += kLanes) {
      Vector::store(write_shares_ + v, sigmoid_vector(Vector::load(write_shares_ + v)));
    }
    if (task_.by_channel) return;
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      decays_[t] = in[t * task_.in_stride + task_.value_heads] + task_.dt_bias[head];
    }
    const Float decay = Vector::set1(-task_.decay[head]);
    for (int v = 0; v < kChunk; v += kLanes) {
      const Float g = Vector::mul(decay, softplus_vector(Vector::load(decays_ + v)));
      Vector::store(decays_ + v, Vector::max(g, Vector::set1(kLeastDecay)));
    }
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) sums_[t] = (t == 0 ? 0.0f : sums_[t - 1]) + decays_[t];
    for (int v = 0; v < kChunk; v += kLanes) Vector::store(factors_ + v, exp_vector(Vector::load(sums_ + v)));
  }

  /// Dots of row t, times what is left of those before it.
  void weigh(std::int64_t t) {
    const Float sum = Vector::set1(sums_[t]);
    for (int v = 0; v < kChunk; v += kLanes) {
      const Float factor = exp_vector(Vector::sub(sum, Vector::load(sums_ + v)));
      Vector::store(key_weights_ + v, Vector::mul(factor, Vector::load(key_dots_ + t * kChunk + v)));
      Vector::store(query_weights_ + v, Vector::mul(factor, Vector::load(query_dots_ + t * kChunk + v)));
    }
  }

  void value_row(const Chunk& chunk, std::int64_t h, std::int64_t t) {
    const bool apart = task_.by_channel;  // decays are in dots and products
    if (!apart) weigh(t);
    const float* products = state_ == nullptr ? nullptr : products_ + t * 2 * values_;
    WeightedSum of_rows{.terms = writes_,
                        .term_stride = values_,
                        .count = t,
                        .x = apart ? key_dots_ + t * kChunk : key_weights_,
                        .x_step = 1,
                        .from = products,
                        .factor = apart ? 1.0f : factors_[t],
                        .out = read_};
    sum_rows(of_rows, 1, values_);
    float* const write = writes_ + t * values_;
    const Float share = Vector::set1(write_shares_[t]);
    for (std::int64_t i = 0; i < values_; i += kLanes) {
      const Float missing = Vector::sub(Vector::load(convolved_ + t * values_ + i), Vector::load(read_ + i));
      Vector::store(write + i, Vector::mul(share, missing));
    }
    of_rows.count = t + 1;
    of_rows.x = apart ? query_dots_ + t * kChunk : query_weights_;
    of_rows.from = products == nullptr ? nullptr : products + values_;
    of_rows.out = output_;
    sum_rows(of_rows, 1, values_);
    put_output(chunk.row + t, h);
    const std::int32_t slot = journal_of(chunk, t);
    if (slot < 0) return;
    copy(journal(slot) + write_offset(h), write, task_.value_dim);
    if (!apart) journal(slot)[decay_offset(h)] = sums_[t];
  }

  /// norm * o / sqrt(mean(o^2) + eps) * silu(gate), or sigmoid(gate)
  void put_output(std::int64_t row, std::int64_t h) {
    const std::int64_t at = (first_head_ + h) * task_.value_dim;
    const float* gates = task_.in + row * task_.in_stride + task_.gates_at() + at;
    float* out = task_.out + row * task_.out_stride + at;
    const float mean = dot_of(output_, output_, values_) / static_cast<float>(task_.value_dim);
    const Float factor = Vector::set1(1.0f / __builtin_sqrtf(mean + task_.norm_eps));
    for (std::int64_t i = 0; i < task_.value_dim; i += kLanes) {
      const std::int64_t left = task_.value_dim - i;
      const Float normed =
          Vector::mul(Vector::mul(Vector::load(output_ + i), factor), load_first(task_.norm + i, left));
      const Float gate = load_first(gates + i, left);
      const Float gated =
          task_.by_channel ? Vector::mul(sigmoid_vector(gate), normed) : silu_mul_vector(gate, normed);
      store_first(out + i, gated, left);
    }
  }

  /// What is left of keys and of the state behind a whole chunk.
  void weigh_chunk() {
    if (task_.by_channel) {
      left_.begin();
      for (std::int64_t t = kChunk - 1; t >= 0; --t) left_.step_back(t, key(t), weighted_keys_ + t * keys_);
      return;
    }
    const Float sum = Vector::set1(sums_[kChunk - 1]);
    for (int v = 0; v < kChunk; v += kLanes) {
      Vector::store(row_factors_ + v, exp_vector(Vector::sub(sum, Vector::load(sums_ + v))));
      Vector::store(factors_ + v, exp_vector(sum));
    }
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const Float factor = Vector::set1(row_factors_[t]);
      for (std::int64_t i = 0; i < keys_; i += kLanes) {
        Vector::store(weighted_keys_ + t * keys_ + i, Vector::mul(factor, Vector::load(key(t) + i)));
      }
    }
  }

  /// The state behind a whole chunk, into rows of `made`, which may be the state before it.
  void fold_chunk(std::int64_t h, float* made) {
    weigh_chunk();
    const std::int64_t at = h * task_.key_dim * values_;
    sum_rows({.terms = writes_,
              .term_stride = values_,
              .count = kChunk,
              .x = weighted_keys_,
              .x_row = 1,
              .x_step = keys_,
              .from = state_ == nullptr ? nullptr : state_ + at,
              .from_stride = values_,
              .factor = factors_[0],
              .factors = task_.by_channel ? left_.behind() : nullptr,
              .out = made + at,
              .out_stride = values_},
             task_.key_dim, values_);
  }

  const DeltaNetTask& task_;
  std::int64_t key_head_;
  std::int64_t heads_;  // of values
  std::int64_t first_head_;
  std::int64_t keys_;  // padded dims
  std::int64_t values_;
  std::int64_t channels_;
  bool in_place_;  // rows of states need no padding

  /// What was convolved at the positions taps - 1 before the chunk, and of the chunk.
  const float* history_[2 * kChunk] = {};
  /// Of all heads before the chunk, rows of `values_`; null: zeros. A slot's own memory where in_place_.
  const float* state_ = nullptr;

  std::int64_t conv_stride_ = 0;
  float* conv_;                         // [taps][queries, keys, values of each head]
  float* states_;                       // [heads][key_dim][values]
  float* projected_;                    // [chunk][key, query]
  float* weighted_keys_;                // [chunk][keys]
  float* writes_;                       // [chunk][values]: d of one head
  float* convolved_;                    // [chunk][values]: v
  float* products_;                     // [chunk][2][values]: S^T k, S^T q
  float* key_dots_;                     // [chunk][chunk]: [t][j] = kj . kt
  float* query_dots_;                   // kj . qt
  float* write_shares_;                 // [chunk]: w
  float* decays_;                       // [chunk]: g
  float* sums_;                         // [chunk]: G
  float* factors_;                      // [chunk]: e^G
  float* row_factors_;                  // [chunk]
  float* key_weights_;                  // [chunk]: e^(G - Gj) kj . k
  float* query_weights_;                // [chunk]
  float* read_;                         // [values]
  float* output_;                       // [values]
  // Where channels decay by themselves.
  ChannelDecays left_;
  float* met_ = nullptr;      // [chunk][key, query] as they meet the state before the chunk
  float* decayed_ = nullptr;  // [keys]: what is left of a row's key
};

void delta_net_heads(const DeltaNetTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
  for (std::int64_t head = begin; head < end; ++head) {
    DeltaHeads heads(task, scratch, head);
    for (std::int64_t i = 0; i < task.run_count; ++i) heads.run(task.runs[i]);
  }
}
