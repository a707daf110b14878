#include "sample/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define DENDRITE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DENDRITE_VECTOR_CLONES
#endif

namespace dendrite {
namespace {

constexpr std::size_t kLanes = 16;

/// e^x for x <= 0, relative error below 3e-7; 0 below -87. Cephes' expf reduction, without
/// branches, so that the compiler can vectorise the loop around it.
inline float exp_nonpositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = std::floor(clamped * 1.44269504f + 0.5f);
  float r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto scale = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23;
  return x < -87.0f ? 0.0f : p * std::bit_cast<float>(scale);
}

DENDRITE_VECTOR_CLONES
float lane_max(const float* values, std::size_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  float best = lanes[0];
  for (const float lane : lanes) best = lane > best ? lane : best;
  return best;
}

/// Adds exp(values - max) lane by lane; at most 4096 values, so that f32 lanes stay exact enough.
DENDRITE_VECTOR_CLONES
void add_exponentials(const float* values, std::size_t count, float max, float* lanes) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += exp_nonpositive(values[i + j] - max);
  }
  for (; i < count; ++i) lanes[i % kLanes] += exp_nonpositive(values[i] - max);
}

}  // namespace

Token argmax(std::span<const float> logits) {
  const float best = lane_max(logits.data(), logits.size());
  const auto found = std::find(logits.begin(), logits.end(), best);
  return found == logits.end() ? 0 : static_cast<Token>(found - logits.begin());
}

Token argmax(std::span<const float> logits, Mask mask) {
  Token best = -1;
  float value = std::numeric_limits<float>::quiet_NaN();
  for_each_allowed(mask, logits.size(), [&](Token token) {
    const float other = logits[static_cast<std::size_t>(token)];
    if (best < 0 || other > value || (std::isnan(value) && !std::isnan(other))) {
      best = token;
      value = other;
    }
  });
  return best;
}

double log_sum_exp(std::span<const float> logits) {
  const float max = lane_max(logits.data(), logits.size());
  if (!std::isfinite(max)) return max;
  double sum = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += 4096) {
    float lanes[kLanes] = {};
    add_exponentials(logits.data() + begin, std::min<std::size_t>(4096, logits.size() - begin), max,
                     lanes);
    for (const float lane : lanes) sum += lane;
  }
  return max + std::log(sum);
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double lse, std::size_t n,
                                       Mask mask) {
  n = std::min(n, logits.size());
  const auto better = [&](Token a, Token b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<Token> heap;  // worst of the best on top
  heap.reserve(n + 1);
  const auto consider = [&](Token id) {
    if (heap.size() < n) {
      heap.push_back(id);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (logits[static_cast<std::size_t>(id)] >
               logits[static_cast<std::size_t>(heap.front())]) {
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = id;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  };
  if (n == 0) return {};
  if (mask.empty()) {
    for (std::size_t i = 0; i < logits.size(); ++i) consider(static_cast<Token>(i));
  } else {
    for_each_allowed(mask, logits.size(), consider);
  }
  std::sort(heap.begin(), heap.end(), better);
  std::vector<TokenLogprob> out;
  out.reserve(heap.size());
  for (const Token id : heap) {
    out.push_back({id, static_cast<float>(logits[static_cast<std::size_t>(id)] - lse)});
  }
  return out;
}

}  // namespace dendrite
