// Short convolutions: Backend::short_conv has the formula, and Backend::mamba that of its own. A row reads three values a channel and writes one,
// beside its journal; what it reads of the rows before lies in their journals, in an anchor, or here. So the
// time is that of reading what comes in.
// A row's sum runs over the taps from the oldest on, one multiply-add each; all else is by element. So it has
// one order, whatever shares the call. Multiply-adds are the path's, so paths that fuse have the same bits.
// Included inside an unnamed namespace by the path's file.

/// Some channels of a layer, over runs in order.
class ShortConvChannels {
 public:
  ShortConvChannels(const ShortConvTask& task, float* scratch, std::int64_t begin, std::int64_t end)
      : task_(task),
        begin_(begin),
        count_(end - begin),
        stride_((count_ + kHeadPad - 1) / kHeadPad * kHeadPad),
        conv_(scratch),
        made_(scratch + task.taps * stride_) {
    for (std::int64_t j = 0; j < task.taps; ++j) {  // taps lie side by side in the weight, channels here
      const float* weights = task.conv + begin * task.taps + j;
      float* out = conv_ + j * stride_;
      for (std::int64_t i = 0; i < count_; ++i) out[i] = weights[i * task.taps];
      for (std::int64_t i = count_; i < stride_; ++i) out[i] = 0;
    }
  }

  void run(const RecurrencePlan::Run& run) {
    for (std::int64_t i = 0; i + 1 < task_.taps; ++i) {
      push(run.anchor < 0 ? task_.zeros + begin_ : anchor(run.anchor) + i * task_.channels);
    }
    for (std::int64_t t = 0; t < run.known; ++t) push(journal(task_.known[run.known_begin + t]));
    const std::int32_t* slot = task_.new_anchors + run.anchors_begin;
    if (run.known == kChunk) keep_anchor(*slot++);
    std::int64_t position = run.first_position;
    for (std::int64_t row = run.row_begin; row < run.row_end; ++row) {
      push_row(row);
      if (++position % kChunk == 0) keep_anchor(*slot++);
    }
  }

 private:
  float* anchor(std::int32_t slot) const { return task_.anchors + slot * task_.anchor_stride + begin_; }
  float* journal(std::int32_t slot) const { return task_.journals + slot * task_.journal_stride + begin_; }

  void push(const float* convolved) {
    for (std::int64_t j = 0; j + 1 < task_.taps; ++j) history_[j] = history_[j + 1];
    history_[task_.taps - 1] = convolved;
  }
  void copy(float* out, const float* x) const {
    __builtin_memcpy(out, x, static_cast<std::size_t>(count_) * sizeof(float));
  }
  void keep_anchor(std::int32_t slot) const {
    if (slot < 0) return;
    for (std::int64_t j = 1; j < task_.taps; ++j) copy(anchor(slot) + (j - 1) * task_.channels, history_[j]);
  }

  void push_row(std::int64_t row) {
    if (task_.gated) return convolve_gated(row);
    convolve(row);
  }

  Float sum_of_taps(std::int64_t i) const {
    const std::int64_t left = count_ - i;
    Float sum = task_.bias == nullptr ? Vector::zero() : load_first(task_.bias + begin_ + i, left);
    for (std::int64_t j = 0; j < task_.taps; ++j) {
      sum = Vector::fma(Vector::load(conv_ + j * stride_ + i), load_first(history_[j] + i, left), sum);
    }
    return sum;
  }

  void convolve_gated(std::int64_t row) {
    float* const made = made_ + row % task_.taps * stride_;  // that of taps rows before is needed no more
    push(made);
    const float* before = task_.in + row * task_.in_stride + begin_;
    const float* behind = before + task_.channels;
    const float* x = behind + task_.channels;
    float* out = task_.out + row * task_.out_stride + begin_;
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      const std::int64_t left = count_ - i;
      Vector::store(made + i, Vector::mul(load_first(before + i, left), load_first(x + i, left)));
      store_first(out + i, Vector::mul(load_first(behind + i, left), sum_of_taps(i)), left);
    }
    const std::int32_t slot = task_.row_journals[row];
    if (slot >= 0) copy(journal(slot), made);
  }

  void convolve(std::int64_t row) {
    const float* in = task_.in + row * task_.in_stride + begin_;
    push(in);
    float* out = task_.out + row * task_.out_stride + begin_;
    const Float one = Vector::set1(1.0f);
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      store_first(out + i, silu_mul_vector(sum_of_taps(i), one), count_ - i);
    }
    const std::int32_t slot = task_.row_journals[row];
    if (slot < 0) return;
    copy(journal(slot), in);
    const std::int64_t first = begin_ > task_.kept_begin ? begin_ : task_.kept_begin;
    const std::int64_t kept = smaller(begin_ + count_, task_.kept_end) - first;
    if (kept <= 0) return;
    __builtin_memcpy(task_.kept + slot * task_.journal_stride + first - task_.kept_begin, out + first - begin_,
                     static_cast<std::size_t>(kept) * sizeof(float));
  }

  const ShortConvTask& task_;
  std::int64_t begin_;
  std::int64_t count_;
  std::int64_t stride_;                 // count_, padded
  float* conv_;                         // [taps][stride]
  float* made_;                         // [taps][stride]: u of the last rows
  const float* history_[kChunk] = {};  // [taps]: u of the last positions, oldest first
};

void short_conv_channels(const ShortConvTask& task, float* scratch, std::int64_t begin, std::int64_t end) {
  ShortConvChannels channels(task, scratch, begin, end);
  for (std::int64_t i = 0; i < task.run_count; ++i) channels.run(task.runs[i]);
}
