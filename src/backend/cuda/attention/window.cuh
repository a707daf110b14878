#pragma once

#include "backend/attention_plan.h"

namespace dendrite::cuda {

/// AttentionWindow::first_seen(), on a device.
__device__ inline int first_seen(const AttentionWindow& window, int position) {
  const auto size = static_cast<int>(window.size);
  if (size == 0) return 0;
  return window.chunked ? position / size * size : max(position - size + 1, 0);
}

}  // namespace dendrite::cuda
