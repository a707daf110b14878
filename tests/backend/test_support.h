#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "quant/formats.h"

// What the backend tests share. No test framework here: kernels_selftest.cpp uses it too.
namespace dendrite::testing_support {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Seeded random numbers for inputs.
class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::vector<float> normal(std::int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, deviation);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = distribution(engine_);
    return values;
  }
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  std::byte byte() { return static_cast<std::byte>(engine_() & 255u); }

 private:
  std::mt19937 engine_;
};

/// A dense tensor of a backend and its memory, filled with NaN; rows are `stride` apart.
struct Owned {
  std::unique_ptr<Buffer> buffer;
  Tensor tensor;

  Owned(Backend& backend, std::int64_t rows, std::int64_t cols, std::int64_t stride = 0) {
    if (stride == 0) stride = cols;
    buffer = backend.make_buffer(rows * stride);
    tensor = {buffer->data(), rows, cols, stride};
    const std::vector<float> nan(static_cast<std::size_t>(rows * stride), kNan);
    backend.upload(buffer->data(), nan);
  }
  void set(Backend& backend, std::span<const float> values) {
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      backend.upload(tensor.data + r * tensor.stride,
                     values.subspan(static_cast<std::size_t>(r * tensor.cols),
                                    static_cast<std::size_t>(tensor.cols)));
    }
  }
  std::vector<float> get(Backend& backend) const {
    std::vector<float> values(static_cast<std::size_t>(tensor.rows * tensor.cols));
    for (std::int64_t r = 0; r < tensor.rows; ++r) {
      backend.download(std::span(values).subspan(static_cast<std::size_t>(r * tensor.cols),
                                                 static_cast<std::size_t>(tensor.cols)),
                       tensor.data + r * tensor.stride);
    }
    return values;
  }
};

/// Whether bf16 products on this path round their activations to bf16.
inline bool rounds_activations(const std::string& path) {
  return path == "avx512_bf16" || path.starts_with("amx_bf16") || path == "cuda";
}

/// Rounds an f32 to the nearest half, for test inputs in the normal range of halves.
inline std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) return static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) |
                                    ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

/// A format of blocks that a CPU keeps packed.
struct Blocks {
  const Format* format;
  std::vector<std::int64_t> halves;  // where in a block its numbers of f16 are
  double bits;                       // that a weight takes on a CPU
  double most_on_gpu;                // and on a GPU, where rows are whole tiles
};

inline std::vector<Blocks> all_blocks() {
  return {{&q4_0_format(), {0}, 4.5, 5},          {&q4_1_format(), {0, 2}, 5, 5},
          {&q5_0_format(), {0}, 8.5, 9.2},        {&q5_1_format(), {0, 2}, 9, 16},
          {&q8_0_format(), {0}, 8.5, 9.2},        {&iq4_nl_format(), {0}, 4.5, 9.2},
          {&q2_k_format(), {80, 82}, 9.125, 9.2}, {&q3_k_format(), {108}, 8.5625, 9.2},
          {&q4_k_format(), {0, 2}, 4.625, 5},     {&q5_k_format(), {0, 2}, 8.625, 9.2},
          {&q6_k_format(), {208}, 8.5625, 9.2},   {&iq4_xs_format(), {0}, 4.3125, 9.2},
          {&mxfp4_format(), {}, 4.25, 4.5},       {&nvfp4_format(), {}, 4.5, 6}};
}

/// The values of a stored matrix [rows, cols], as files mean them.
inline std::vector<float> widened(const StoredMatrix& matrix) {
  const auto cols = static_cast<std::size_t>(matrix.cols);
  std::vector<float> values(static_cast<std::size_t>(matrix.rows) * cols);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    matrix.format->widen(matrix, row, 0,
                         std::span(values).subspan(static_cast<std::size_t>(row) * cols, cols));
  }
  return values;
}

/// A matrix as a file would hold it, and its exact values.
struct FileMatrix {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  StoredMatrix host;

  /// Random blocks; `halves` as Blocks has them.
  FileMatrix(std::int64_t rows, std::int64_t cols, const Format& format,
             std::span<const std::int64_t> halves, Random& random) {
    const std::int64_t stride = cols / format.block() * format.block_bytes();
    for (std::int64_t i = 0; i < rows * stride; ++i) bytes.push_back(random.byte());
    for (std::int64_t block = 0; block < rows * stride; block += format.block_bytes()) {
      for (const std::int64_t half : halves) {
        const float value = static_cast<float>(random.in(-1000, 1000)) / 65536.0f;
        const std::uint16_t bits = half_bits(value);
        std::memcpy(&bytes[static_cast<std::size_t>(block + half)], &bits, 2);
      }
      const auto first = static_cast<std::size_t>(block);
      if (&format == &mxfp4_format()) {  // small powers of two, and small E4M3
        bytes[first] = static_cast<std::byte>(118 + random.in(0, 3));
      } else if (&format == &nvfp4_format()) {
        for (std::size_t i = 0; i < 4; ++i) bytes[first + i] &= std::byte{0x37};
      }
    }
    host = {.format = &format,
            .data = bytes.data(),
            .rows = rows,
            .cols = cols,
            .stride = stride,
            .name = "test.weight",
            .file = "test.gguf"};
    values = widened(host);
  }

  FileMatrix(std::int64_t rows, std::int64_t cols, DType dtype, std::span<const float> wanted) {
    const std::int64_t count = rows * cols;
    bytes.resize(static_cast<std::size_t>(count * size_of(dtype)));
    values.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        values[i] = wanted[i];
        std::memcpy(&bytes[i * 4], &wanted[i], 4);
      } else if (dtype == DType::kBF16) {
        const BF16 bits = to_bf16(wanted[i]);
        values[i] = to_f32(bits);
        std::memcpy(&bytes[i * 2], &bits, 2);
      } else {
        const std::uint16_t bits = half_bits(wanted[i]);
        values[i] = to_f32(static_cast<F16>(bits));
        std::memcpy(&bytes[i * 2], &bits, 2);
      }
    }
    host = {.format = &plain_format(dtype),
            .data = bytes.data(),
            .rows = rows,
            .cols = cols,
            .stride = cols * size_of(dtype),
            .name = "test.weight",
            .file = "test.safetensors"};
  }
};

/// Whether rope_and_store leaves in pages in FP8 the bytes that KvStore::write does, which rounds
/// on the host: of values of every size, with zeros, infinity and NaN among them.
inline bool stores_fp8_as_the_host(Backend& backend) {
  bool good = true;
  for (const std::int64_t dim : {25, 64, 80}) {
    const std::int64_t rows = 40;
    Random random(static_cast<std::uint32_t>(dim));
    std::vector<float> x = random.normal(rows * 3 * dim);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / (3 * dim);
      // Rows of all exponents of floats; in each row values far below the largest one.
      x[i] = std::ldexp(x[i], static_cast<int>(6 * row - 120 - random.in(0, 18)));
      const auto place = static_cast<std::int64_t>(i) % dim;
      if (place == 7 && row % 5 == 1) x[i] = std::numeric_limits<float>::infinity();
      if (place == 9 && row % 5 == 2) x[i] = kNan;
      if (place == 11 || (row == 3 && place > 1)) x[i] = place % 2 == 0 ? 0.0F : -0.0F;
    }
    Owned qkv(backend, rows, 3 * dim);
    qkv.set(backend, x);
    Owned angles(backend, rows, 2);
    std::vector<float> rotation;
    std::vector<std::int64_t> slots;
    for (std::int64_t row = 0; row < rows; ++row) {
      rotation.insert(rotation.end(), {1.0F, 0.0F});
      slots.push_back(row);
    }
    angles.set(backend, rotation);
    const KvShape shape{1, 1, dim, 5, 8, KvFormat::kFP8};
    const auto stored = backend.make_kv_store(shape);
    RopeStore rope;
    rope.qkv = qkv.tensor;
    rope.heads = 1;
    rope.kv_heads = 1;
    rope.head_dim = dim;
    rope.rotary_dim = 2;
    rope.cos_sin = angles.tensor.data;
    rope.slots = slots;
    rope.kv = stored.get();
    backend.rope_and_store(rope);
    const auto expected = backend.make_kv_store(shape);
    for (std::int32_t page = 0; page < 5; ++page) {
      std::vector<float> k;
      std::vector<float> v;
      for (std::int64_t row = page * 8; row < page * 8 + 8; ++row) {
        const auto from = x.begin() + row * 3 * dim;
        k.insert(k.end(), from + dim, from + 2 * dim);
        v.insert(v.end(), from + 2 * dim, from + 3 * dim);
      }
      expected->write(page, 0, 8, k, v);
      std::vector<std::byte> got(static_cast<std::size_t>(shape.page_bytes()));
      std::vector<std::byte> wanted(got.size());
      stored->export_page(page, 8, got);
      expected->export_page(page, 8, wanted);
      good = good && got == wanted;
    }
  }
  return good;
}

/// max |got - expected| / rms(expected); infinite if anything is not finite.
inline double relative_error(std::span<const float> got, std::span<const double> expected) {
  double square = 0;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    square += expected[i] * expected[i];
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(error <= std::numeric_limits<double>::max()))
      return std::numeric_limits<double>::infinity();
    worst = std::max(worst, error);
  }
  return worst / std::sqrt(square / static_cast<double>(expected.size()) + 1e-300);
}

/// What becomes of a gate and what it lets through.
inline double activated(double gate, double up, const Activation& activation) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return gate * sigmoid(gate) * up;
    case Activation::Kind::kGelu: {
      const double inner = std::sqrt(2 / 3.14159265358979) * (gate + 0.044715 * gate * gate * gate);
      return gate * 0.5 * (1 + std::tanh(inner)) * up;
    }
    case Activation::Kind::kClamped: {
      const auto limit = static_cast<double>(activation.limit);
      const double g = std::min(gate, limit);
      return g * sigmoid(static_cast<double>(activation.alpha) * g) *
             (std::clamp(up, -limit, limit) + 1);
    }
  }
  return 0;
}

/// Index of the first value whose bits differ, or -1.
inline std::int64_t first_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], 4) != 0) return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// What a weight gives of x, [x.rows, weight.rows()]; with a bias, added to 0.5.
inline std::vector<float> product(Backend& backend, const Weight& weight, Tensor x,
                                  const float* bias = nullptr) {
  Owned out(backend, x.rows, weight.rows());
  out.set(backend, std::vector<float>(static_cast<std::size_t>(x.rows * weight.rows()), 0.5F));
  backend.matmul(out.tensor, x, weight, bias,
                 bias == nullptr ? Backend::Store::kOverwrite : Backend::Store::kAdd);
  return out.get(backend);
}

/// What pack() says of a matrix that it refuses; "" where it takes it.
inline std::string refusal(Backend& backend, const StoredMatrix& matrix) {
  try {
    backend.pack({&matrix, 1});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The first of several matrices that gives other bits in one weight than alone, or -1.
inline std::int64_t first_different_part(Backend& backend, std::span<const StoredMatrix> parts,
                                         Tensor x) {
  const auto together = backend.pack(parts);
  const std::vector<float> got = product(backend, *together, x);
  std::int64_t column = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::vector<float> alone = product(backend, *backend.pack(parts.subspan(i, 1)), x);
    const auto columns = static_cast<std::size_t>(parts[i].rows);
    for (std::int64_t row = 0; row < x.rows; ++row) {
      const auto from = static_cast<std::size_t>(row * together->rows() + column);
      const auto from_alone = static_cast<std::size_t>(row) * columns;
      if (first_difference(std::span(got).subspan(from, columns),
                           std::span(alone).subspan(from_alone, columns)) != -1) {
        return static_cast<std::int64_t>(i);
      }
    }
    column += parts[i].rows;
  }
  return -1;
}

/// Activations [rows, k] as products of grouped weights take them: 8 bits for each 32 of a row.
inline std::vector<float> rounded_in_groups(std::span<const float> x, std::int64_t k) {
  std::vector<float> out(x.begin(), x.end());
  for (std::size_t row = 0; row < out.size(); row += static_cast<std::size_t>(k)) {
    for (std::int64_t i = 0; i < k; i += 32) {
      const auto group = std::span(out).subspan(row + static_cast<std::size_t>(i), 32);
      float most = 0;
      for (const float value : group) most = std::max(most, std::abs(value));
      for (float& value : group) value = std::nearbyint(value * (127 / most)) * (most / 127);
    }
  }
  return out;
}

/// y = x * W^T (+ bias) in double.
inline std::vector<double> reference_matmul(std::span<const float> x, std::span<const float> w,
                                            std::int64_t rows, std::int64_t n, std::int64_t k) {
  std::vector<double> out(static_cast<std::size_t>(rows * n));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        sum += static_cast<double>(x[static_cast<std::size_t>(r * k + i)]) *
               static_cast<double>(w[static_cast<std::size_t>(j * k + i)]);
      }
      out[static_cast<std::size_t>(r * n + j)] = sum;
    }
  }
  return out;
}

}  // namespace dendrite::testing_support
