// Mamba-2 behind its convolution, cut at absolute positions: Backend::mamba has the formula, RecurrencePlan the
// chunks. A row of a head reads the state before its chunk once (S^T C), and what the rows between wrote. So the
// time is that of reading states while rows are few (4 state_dim head_dim bytes a head), and of 2 state_dim
// head_dim operations a row and head where they share the reading; a chunk's end costs as many again.
// A row's sums have one order, whatever shares the call. Products with the state run over state_dim upwards, one
// accumulator an output; sums over rows from the oldest on; decays between two rows are added in the order of the
// rows; dot products keep 16 partial sums, value i in sum i mod 16, and fold them by halves. All else is by
// element. Multiply-adds are the path's, so paths that fuse have the same bits.
// Source: Dao & Gu 2024, arXiv:2405.21060.
// Included inside an unnamed namespace by the path's file.

/// One head. `t`: a position of the chunk.
class MambaHead {
 public:
  MambaHead(const MambaTask& task, float* scratch, std::int64_t head)
      : task_(task),
        sizes_(task.sizes),
        head_(head),
        value_at_(head * sizes_.head_dim),
        key_at_(head / (sizes_.heads / sizes_.groups) * sizes_.state_dim),
        states_(delta_padded(sizes_.state_dim)),
        values_(delta_padded(sizes_.head_dim)) {
    const auto take = [&](std::int64_t count) {
      float* const begin = scratch;
      scratch += count;
      return begin;
    };
    own_state_ = take(sizes_.state_dim * values_);
    own_keys_ = take(kChunk * states_);
    own_queries_ = take(kChunk * states_);
    weighted_keys_ = take(kChunk * states_);
    writes_ = take(kChunk * values_);
    products_ = take(kChunk * values_);
    dots_ = take(kChunk);
    steps_ = take(kChunk);
    decays_ = take(kChunk);
    behind_ = take(kChunk);
    weights_ = take(kChunk);
    output_ = take(values_);
  }

  void run(const RecurrencePlan::Run& run) {
    load_state(run.anchor);
    const std::int32_t* known = task_.known + run.known_begin;
    const std::int32_t* slot = task_.new_anchors + run.anchors_begin;
    std::int64_t begin = run.known;
    for (std::int64_t row = run.row_begin;;) {
      const std::int64_t end = smaller(kChunk, begin + run.row_end - row);
      const std::int64_t next = row + end - begin;
      const bool more = next < run.row_end;
      rows({known, row - begin, begin, end});
      if (end == kChunk && (more || *slot >= 0)) fold(*slot);
      if (!more) return;
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
  };

  float* state_of(std::int32_t slot) const {
    return task_.anchors + slot * task_.anchor_stride + value_at_ * sizes_.state_dim;
  }
  float* journal(std::int32_t slot) const { return task_.journals + slot * task_.journal_stride; }
  float* write_of(std::int32_t slot) const { return journal(slot) + sizes_.group_columns() + value_at_; }
  float* decay_of(std::int32_t slot) const { return journal(slot) + sizes_.decays_at() + head_; }
  /// x of a row, then B, then C, of its first head and group.
  const float* convolved(std::int64_t row) const { return task_.convolved + row * sizes_.channels(); }
  bool in_place() const { return sizes_.head_dim == values_; }  // rows of states need no padding

  static void copy(float* out, const float* x, std::int64_t count) {
    __builtin_memcpy(out, x, static_cast<std::size_t>(count) * sizeof(float));
  }
  /// And zeros up to `padded`.
  static void copy_padded(float* out, const float* x, std::int64_t count, std::int64_t padded) {
    copy(out, x, count);
    for (std::int64_t i = count; i < padded; ++i) out[i] = 0;
  }
  /// x, or in `room` with zeros behind.
  const float* padded(const float* x, float* room) const {
    if (sizes_.state_dim == states_) return x;
    copy_padded(room, x, sizes_.state_dim, states_);
    return room;
  }

  void load_state(std::int32_t slot) {
    state_ = nullptr;
    if (slot < 0) return;
    state_ = in_place() ? state_of(slot) : own_state_;
    if (in_place()) return;
    for (std::int64_t i = 0; i < sizes_.state_dim; ++i) {
      copy_padded(own_state_ + i * values_, state_of(slot) + i * sizes_.head_dim, sizes_.head_dim, values_);
    }
  }

  void rows(const Chunk& chunk) {
    for (std::int64_t t = 0; t < chunk.begin; ++t) {
      const std::int32_t slot = chunk.known[t];
      keys_[t] = padded(journal(slot) + key_at_, own_keys_ + t * states_);
      copy_padded(writes_ + t * values_, write_of(slot), sizes_.head_dim, values_);
      decays_[t] = *decay_of(slot);
    }
    if (chunk.begin < chunk.end) take_rows(chunk);
    all_ = 0;
    for (int v = 0; v < kChunk; v += kLanes) Vector::store(behind_ + v, Vector::zero());
    for (std::int64_t t = 0; t < chunk.end; ++t) {
      const Float decay = Vector::set1(decays_[t]);
      for (int v = 0; v < kChunk; v += kLanes) {
        Vector::store(behind_ + v, Vector::add(Vector::load(behind_ + v), decay));
      }
      behind_[t] = 0;
      all_ += decays_[t];
      if (t >= chunk.begin) put_row(chunk.row + t, t);
    }
  }

  /// Of all rows: B and C, how they decay, what they write, and what the state gives.
  void take_rows(const Chunk& chunk) {
    const float* steps = task_.in + sizes_.out_columns() + sizes_.channels() + head_;
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      const float* keys = convolved(chunk.row + t) + sizes_.out_columns() + key_at_;
      keys_[t] = padded(keys, own_keys_ + t * states_);
      queries_[t] = padded(keys + sizes_.group_columns(), own_queries_ + t * states_);
      steps_[t] = steps[(chunk.row + t) * task_.in_stride] + task_.dt_bias[head_];
    }
    const Float decay = Vector::set1(-task_.decay[head_]);
    for (int v = 0; v < kChunk; v += kLanes) {
      const Float least = Vector::max(softplus_vector(Vector::load(steps_ + v)), Vector::set1(task_.least_dt));
      Vector::store(steps_ + v, least);
    }
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      if (steps_[t] > task_.most_dt) steps_[t] = task_.most_dt;
    }
    float decays[kChunk];
    for (int v = 0; v < kChunk; v += kLanes) {
      const Float g = Vector::mul(decay, Vector::load(steps_ + v));
      Vector::store(decays + v, Vector::max(g, Vector::set1(kLeastDecay)));
    }
    for (std::int64_t t = chunk.begin; t < chunk.end; ++t) {
      decays_[t] = decays[t];
      const float* x = convolved(chunk.row + t) + value_at_;
      const Float step = Vector::set1(steps_[t]);
      for (std::int64_t i = 0; i < values_; i += kLanes) {
        const std::int64_t left = sizes_.head_dim - i;
        const Float value = left > 0 ? load_first(x + i, left) : Vector::zero();
        Vector::store(writes_ + t * values_ + i, Vector::mul(step, value));
      }
    }
    if (state_ == nullptr) return;
    sum_rows({.terms = state_,
              .term_stride = values_,
              .count = sizes_.state_dim,
              .x = queries_[chunk.begin],
              .x_row = sizes_.state_dim == states_ ? sizes_.channels() : states_,
              .x_step = 1,
              .out = products_ + chunk.begin * values_,
              .out_stride = values_},
             chunk.end - chunk.begin, values_);
  }

  /// e^x in one lane.
  static float exp_of(float x) {
    float lanes[kLanes];
    Vector::store(lanes, exp_vector(Vector::set1(x)));
    return lanes[0];
  }

  void put_row(std::int64_t row, std::int64_t t) {
    for (std::int64_t j = 0; j <= t; ++j) dots_[j] = dot_of(keys_[j], queries_[t], states_);
    for (int v = 0; v < kChunk; v += kLanes) {
      Vector::store(weights_ + v, Vector::mul(exp_vector(Vector::load(behind_ + v)), Vector::load(dots_ + v)));
    }
    sum_rows({.terms = writes_,
              .term_stride = values_,
              .count = t + 1,
              .x = weights_,
              .x_step = 1,
              .from = state_ == nullptr ? nullptr : products_ + t * values_,
              .factor = exp_of(all_),
              .out = output_},
             1, values_);
    const float* x = convolved(row) + value_at_;
    float* out = task_.out + row * task_.out_stride + value_at_;
    const Float skip = Vector::set1(task_.skip[head_]);
    for (std::int64_t i = 0; i < sizes_.head_dim; i += kLanes) {
      const std::int64_t left = sizes_.head_dim - i;
      store_first(out + i, Vector::fma(skip, load_first(x + i, left), Vector::load(output_ + i)), left);
    }
    const std::int32_t slot = task_.row_journals[row];
    if (slot < 0) return;
    copy(write_of(slot), writes_ + t * values_, sizes_.head_dim);
    *decay_of(slot) = decays_[t];
  }

  /// The state behind a whole chunk; to an anchor's slot, or -1.
  void fold(std::int32_t slot) {
    float* const made = slot >= 0 && in_place() ? state_of(slot) : own_state_;
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const Float factor = Vector::set1(exp_of(behind_[t]));
      for (std::int64_t i = 0; i < states_; i += kLanes) {
        Vector::store(weighted_keys_ + t * states_ + i, Vector::mul(factor, Vector::load(keys_[t] + i)));
      }
    }
    sum_rows({.terms = writes_,
              .term_stride = values_,
              .count = kChunk,
              .x = weighted_keys_,
              .x_row = 1,
              .x_step = states_,
              .from = state_,
              .from_stride = values_,
              .factor = exp_of(all_),
              .out = made,
              .out_stride = values_},
             sizes_.state_dim, values_);
    state_ = made;
    if (slot < 0 || in_place()) return;
    for (std::int64_t i = 0; i < sizes_.state_dim; ++i) {
      copy(state_of(slot) + i * sizes_.head_dim, own_state_ + i * values_, sizes_.head_dim);
    }
  }

  const MambaTask& task_;
  const MambaSizes& sizes_;
  std::int64_t head_;
  std::int64_t value_at_;  // where the head's columns begin
  std::int64_t key_at_;    // where its group's do
  std::int64_t states_;    // padded dims
  std::int64_t values_;

  const float* state_ = nullptr;  // before the chunk, rows of `values_`; null: zeros
  float all_ = 0;                 // sum of the rows' g
  const float* keys_[kChunk] = {};
  const float* queries_[kChunk] = {};

  float* own_state_;      // [state_dim][values]
  float* own_keys_;       // [chunk][states], where rows need padding
  float* own_queries_;    // the same
  float* weighted_keys_;  // [chunk][states]
  float* writes_;         // [chunk][values]: dt x
  float* products_;       // [chunk][values]: S^T C
  float* dots_;           // [chunk]: Bj . C of one row
  float* steps_;          // [chunk]: dt
  float* decays_;         // [chunk]: g
  float* behind_;         // [chunk]: sum of g of those behind each
  float* weights_;        // [chunk]
  float* output_;         // [values]
};

void mamba_heads(const MambaTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    MambaHead head(task, scratch, i);
    for (std::int64_t run = 0; run < task.run_count; ++run) head.run(task.runs[run]);
  }
}

/// norm * u / sqrt(mean(u^2) + eps), u = out * silu(gate), by group
void mamba_norm_rows(const MambaTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = task.sizes.out_columns() / task.sizes.groups;
  const std::int64_t padded = delta_padded(cols);
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t at = 0; at < task.sizes.out_columns(); at += cols) {
      const float* gates = task.in + row * task.in_stride + at;
      float* out = task.out + row * task.out_stride + at;
      for (std::int64_t i = 0; i < padded; i += kLanes) {
        const std::int64_t left = cols - i;
        const Float gated =
            left > 0 ? silu_mul_vector(load_first(gates + i, left), load_first(out + i, left)) : Vector::zero();
        Vector::store(scratch + i, gated);
      }
      const float mean = dot_of(scratch, scratch, padded) / static_cast<float>(cols);
      const Float factor = Vector::set1(1.0f / __builtin_sqrtf(mean + task.norm_eps));
      for (std::int64_t i = 0; i < cols; i += kLanes) {
        const std::int64_t left = cols - i;
        const Float normed = Vector::mul(Vector::load(scratch + i), factor);
        store_first(out + i, Vector::mul(normed, load_first(task.norm + at + i, left)), left);
      }
    }
  }
}
