#include "backend/cuda/padded_inputs.h"

namespace dendrite::cuda {

std::int64_t PaddedInputs::size_for(std::int64_t count) const {
  for (const std::int64_t size : kPaddedSizes) {
    if (count <= size && has(size)) return size;
  }
  return -1;
}

std::vector<FirstPass> PaddedInputs::first_passes(bool records) const {
  std::vector<FirstPass> passes = {{2048, 1, 1}, {512, 1, 1}};
  for (auto size = kPaddedSizes.rbegin(); size != kPaddedSizes.rend(); ++size) {
    if (*size > 0 && has(*size)) passes.push_back({*size, *size, records ? 2 : 1});
  }
  return passes;
}

PassInputs PaddedInputs::pad(const PassInputs& inputs, std::int64_t rows, std::int64_t logit_rows) {
  if (inputs.padded) return inputs;
  logit_rows_.reserve(1);  // so that they are somewhere
  extra_stores_.reserve(1);
  tokens_.assign(inputs.tokens.begin(), inputs.tokens.end());
  tokens_.resize(static_cast<std::size_t>(rows), 0);
  slots_.assign(inputs.slots.begin(), inputs.slots.end());
  slots_.resize(static_cast<std::size_t>(rows), -1);
  logit_rows_.assign(inputs.logit_rows.begin(), inputs.logit_rows.end());
  logit_rows_.resize(static_cast<std::size_t>(logit_rows), 0);
  extra_stores_.assign(inputs.extra_stores.begin(), inputs.extra_stores.end());
  PassInputs padded = inputs;
  padded.padded = true;
  padded.tokens = tokens_;
  padded.slots = slots_;
  padded.logit_rows = logit_rows_;
  padded.extra_stores = extra_stores_;
  return padded;
}

}  // namespace dendrite::cuda
