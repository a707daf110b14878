#pragma once

#include <cstdint>
#include <vector>

#include "quant/small_floats.h"
#include "test_support.h"

// Weights of E4M3 with scales. No test framework here: kernels_selftest.cpp uses it too.
namespace dendrite::testing_support {

/// What shares a scale.
enum class Share { kTensor, kRow, kSquare, kThirtyTwo };
inline constexpr Share kShares[] = {Share::kTensor, Share::kRow, Share::kSquare, Share::kThirtyTwo};

/// Random codes with scales as files have them.
struct Coded {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<std::byte> powers;
  StoredMatrix matrix;

  Coded(std::int64_t n, std::int64_t k, Share share, Random& random) {
    for (std::int64_t i = 0; i < n * k; ++i) {
      // Most rows of 16 have no small code, as it is in files.
      std::byte code = random.byte();
      if ((code & std::byte{0x70}) == std::byte{0} && i / k % 3 != 0) code |= std::byte{0x40};
      codes.push_back((code & std::byte{0x7f}) == std::byte{0x7f} ? std::byte{1} : code);
    }
    const bool powers_of_two = share == Share::kThirtyTwo;
    const std::int64_t down = share == Share::kTensor   ? 1
                              : share == Share::kSquare ? (n + 127) / 128
                                                        : n;
    const std::int64_t across = powers_of_two             ? k / 32
                                : share == Share::kSquare ? (k + 127) / 128
                                                          : 1;
    for (std::int64_t i = 0; i < down * across; ++i) {
      powers.push_back(static_cast<std::byte>(random.in(110, 125)));
      scales.push_back(static_cast<float>(random.in(1, 100000)) / 33554432);
    }
    matrix = {.format = powers_of_two ? &mxfp8_format() : &fp8_format(),
              .data = codes.data(),
              .rows = n,
              .cols = k,
              .stride = k,
              .name = "test.weight",
              .file = "test.safetensors"};
    matrix.scales = {&f32_format(), reinterpret_cast<const std::byte*>(scales.data()), down,
                     across};
    if (powers_of_two) matrix.scales = {&e8m0_scales(), powers.data(), down, across};
  }
};

}  // namespace dendrite::testing_support
