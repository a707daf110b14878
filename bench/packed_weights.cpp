#include "packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "core/dtype.h"
#include "dendrite/error.h"
#include "quant/e4m3.h"
#include "quant/formats.h"
#include "quant/small_floats.h"

namespace dendrite::bench {
namespace {

struct Kind {
  std::string name;
  const Format* format;
  std::vector<std::int64_t> halves;  // places of f16 in a block
  // Columns that share a scale of the tensor beside; 0: a block has its own, -1: a row has one,
  // -32: of powers of two.
  std::int64_t share = 0;
  std::int64_t scale_bytes = 0;  // a block begins with, of 8 bits each
  int scale = 0;                 // what they are
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{{"q4_0", &q4_0_format(), {0}},
                                     {"q4_1", &q4_1_format(), {0, 2}},
                                     {"q4_k", &q4_k_format(), {0, 2}},
                                     {"int4-128", &int4_packed_format(), {}, 128},
                                     {"q8_0", &q8_0_format(), {0}},
                                     {"q6_k", &q6_k_format(), {208}},
                                     {"q5_k", &q5_k_format(), {0, 2}},
                                     {"int8", &int8_format(), {}, -1},
                                     {"fp8", &fp8_format(), {}, -1},
                                     {"mxfp8", &mxfp8_format(), {}, -32},
                                     {"iq4_nl", &iq4_nl_format(), {0}},
                                     {"iq4_xs", &iq4_xs_format(), {0}},
                                     {"mxfp4", &mxfp4_format(), {}, 0, 1, 0x78},
                                     {"nvfp4", &nvfp4_format(), {}, 0, 4, 0x08}};
  return all;
}

}  // namespace

std::vector<std::string> packed_weight_names() {
  std::vector<std::string> names{"bf16"};
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  return names;
}

std::unique_ptr<Weight> random_packed_weight(Backend& backend, const std::string& format,
                                             std::int64_t rows, std::int64_t cols) {
  const auto kind = std::ranges::find(kinds(), format, &Kind::name);
  if (kind == kinds().end()) throw Error("weights are \"" + format + "\"; expected a format");
  const Format& of = *kind->format;
  const bool words = kind->share > 0;  // eight codes each
  const std::int64_t stride = words ? cols / 2 : cols / of.block() * of.block_bytes();
  std::vector<std::byte> data(static_cast<std::size_t>(stride * rows));
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i + 8 <= data.size(); i += 8) {
    const std::uint64_t bits = random();
    std::memcpy(&data[i], &bits, sizeof bits);
  }
  if (of.stored_type() == "F8_E4M3") {  // as files have them: few are small beside the largest
    std::normal_distribution<float> normal(0, kMostE4M3 / 4);
    std::vector<std::byte> codes(std::size_t{1} << 16);
    for (std::byte& code : codes) code = static_cast<std::byte>(e4m3_code(normal(random)));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = codes[random() % codes.size()];
  }
  const float deviation = 1 / std::sqrt(static_cast<float>(cols)) / 64;
  const F16 half = to_f16(deviation);
  for (const std::int64_t place : kind->halves) {
    for (std::size_t at = 0; at < data.size(); at += static_cast<std::size_t>(of.block_bytes())) {
      std::memcpy(&data[at + static_cast<std::size_t>(place)], &half, sizeof half);
    }
  }
  for (std::size_t at = 0; at < data.size(); at += static_cast<std::size_t>(of.block_bytes())) {
    std::memset(&data[at], kind->scale, static_cast<std::size_t>(kind->scale_bytes));
  }
  StoredMatrix matrix{.format = &of,
                      .data = data.data(),
                      .rows = rows,
                      .cols = cols,
                      .stride = stride,
                      .name = "random",
                      .file = "no file"};
  const std::int64_t scales_of_row = words ? cols / kind->share : 1;
  const std::vector<float> scales(static_cast<std::size_t>(rows * scales_of_row), deviation);
  const std::vector<std::byte> powers(static_cast<std::size_t>(rows * cols / 32), std::byte{0x70});
  if (kind->share == -32) {
    matrix.scales = {&e8m0_scales(), powers.data(), rows, cols / 32};
  } else if (kind->share != 0) {
    matrix.scales = {&f32_format(), reinterpret_cast<const std::byte*>(scales.data()), rows,
                     scales_of_row};
  }
  return backend.pack({&matrix, 1});
}

}  // namespace dendrite::bench
