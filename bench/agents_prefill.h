#pragma once

#include <vector>

#include "options.h"

namespace dendrite::bench {

struct LongPromptOptions {
  std::vector<double> targets_ms;  // infinity: no limit; empty: some that fit the device
  std::int64_t prompt_length = 0;  // 0: 32768, on a CPU 960
  int others = 8;
  std::int64_t others_prompt = 64;
  std::int64_t others_length = 256;  // of one decode call; another follows
};

/// A long prompt that is prefilled while `others` decode, for each step target: what it takes
/// beside them and alone, and what they notice.
void measure_prefill(const CommonOptions& common, const LongPromptOptions& options, int trials,
                     Report& report);

}  // namespace dendrite::bench
