#include "backend/cuda/products/block_scaled_tiles.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cuda/products/block_scaled_numbers.h"
#include "backend/host_cores.h"
#include "core/parallel.h"
#include "quant/e4m3.h"
#include "quant/formats.h"

namespace dendrite::cuda {
namespace {

bool is_nvfp4(const StoredMatrix& matrix) {
  return matrix.format == &nvfp4_packed_format() || matrix.format == &nvfp4_modelopt_format();
}

/// A number of the file that scales are multiplied with, or of compressed-tensors divided by.
float multiplier(const StoredMatrix& matrix, const Companion& number) {
  if (number.format == nullptr) return 1;
  float value = 0;
  number.widen(0, 0, {&value, 1});
  return matrix.format == &nvfp4_packed_format() ? 1 / value : value;
}

bool is_usable(float scale) {
  return std::isnormal(scale) && scale > 0 && std::isnormal(1 / scale);
}

template <typename F>
void with_format(BlockFormat format, F f) {
  if (format == BlockFormat::kMxfp8) {
    f.template operator()<BlockFormat::kMxfp8>();
  } else {
    f.template operator()<BlockFormat::kNvfp4>();
  }
}

template <BlockFormat kFormat>
bool are_numbers(std::span<const std::byte> codes, std::span<const std::byte> scales) {
  const auto is_e4m3 = [](std::byte code) { return (code & std::byte{0x7f}) != std::byte{0x7f}; };
  if constexpr (kFormat == BlockFormat::kMxfp8) {
    return std::ranges::all_of(codes, is_e4m3) &&
           std::ranges::all_of(scales, [](std::byte scale) { return scale != std::byte{255}; });
  }
  return std::ranges::all_of(scales, [](std::byte scale) { return scale < std::byte{0x7f}; });
}

template <BlockFormat kFormat>
bool write_rows(const StoredMatrix& matrix, std::int64_t first, std::int64_t weight_rows,
                std::uint32_t* out) {
  using Traits = BlockTraits<kFormat>;
  const BlockWeightLayout<kFormat> layout{weight_rows, matrix.cols};
  const auto code_bytes = static_cast<std::size_t>(matrix.cols / Traits::kWordColumns * 4);
  const auto scale_bytes = static_cast<std::size_t>(matrix.cols / Traits::kGroup);
  std::atomic<bool> good{true};
  const ThreadPool pool(usable_cores());
  pool.parallel_for(matrix.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::byte* const codes = matrix.row(i);
      const std::byte* const scales =
          matrix.scales.data + i * static_cast<std::int64_t>(scale_bytes);
      if (!are_numbers<kFormat>({codes, code_bytes}, {scales, scale_bytes})) good = false;
      const std::int64_t row = first + i;
      for (std::int64_t tile = 0; tile < layout.tiles(); ++tile) {
        std::uint32_t* const words = out + layout.words_at(row, tile);
        for (int word = 0; word < Traits::kTileWords; ++word) {
          const int at = weight_word_at<kFormat>(static_cast<int>(row % Traits::kTileRows), word);
          std::memcpy(words + at, codes + (tile * Traits::kTileWords + word) * 4, 4);
        }
        std::memcpy(out + layout.scales_at(row, tile), scales + tile * Traits::kScaleWords * 4,
                    Traits::kScaleWords * 4);
      }
    }
  });
  return good;
}

std::uint32_t code_at(const std::byte* codes, std::size_t i, int bits) {
  const auto byte = std::to_integer<std::uint32_t>(codes[i * static_cast<std::size_t>(bits) / 8]);
  return bits == 8 ? byte : byte >> i % 2 * 4 & 15;
}

}  // namespace

std::optional<BlockFormat> block_format_of(const StoredMatrix& matrix) {
  const bool mxfp8 = matrix.format == &mxfp8_format();
  if (!matrix.rounds_inputs || matrix.as_plain || matrix.groups != nullptr ||
      (!mxfp8 && !is_nvfp4(matrix)) || matrix.cols % 128 != 0 || matrix.rows % 8 != 0)
    return std::nullopt;
  if (mxfp8) return BlockFormat::kMxfp8;
  const bool usable =
      is_usable(whole_scale_of(matrix)) && is_usable(multiplier(matrix, matrix.input_whole));
  return usable ? std::optional(BlockFormat::kNvfp4) : std::nullopt;
}

float whole_scale_of(const StoredMatrix& matrix) {
  return is_nvfp4(matrix) ? multiplier(matrix, matrix.whole) : 1;
}

float whole_input_scale_of(std::span<const StoredMatrix> parts) {
  float most = 0;
  for (const StoredMatrix& part : parts) most = std::max(most, multiplier(part, part.input_whole));
  return most;
}

bool write_block_tiles(const StoredMatrix& matrix, BlockFormat format, std::int64_t first,
                       std::int64_t weight_rows, std::uint32_t* out) {
  bool good = false;
  with_format(format, [&]<BlockFormat kFormat>() {
    good = write_rows<kFormat>(matrix, first, weight_rows, out);
  });
  return good;
}

void round_block_scaled(BlockFormat format, float whole, std::span<const float> row,
                        std::byte* codes, std::byte* scales) {
  if (format == BlockFormat::kMxfp8) {
    for (std::size_t i = 0; i < row.size(); i += 32) {
      *scales++ = static_cast<std::byte>(
          round_to_e4m3(row.subspan(i, 32), reinterpret_cast<std::uint8_t*>(codes + i)));
    }
    return;
  }
  for (std::size_t i = 0; i < row.size(); i += 16) {
    std::uint32_t most = 0;
    for (const float value : row.subspan(i, 16)) {
      most = std::max(most, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    }
    const Nvfp4Rounding rounding(most, whole);
    *scales++ = static_cast<std::byte>(rounding.scale);
    for (std::size_t k = i; k < i + 16; k += 2) {
      const std::uint32_t pair =
          e2m1_code(row[k] * rounding.factor) | e2m1_code(row[k + 1] * rounding.factor) << 4;
      codes[k / 2] = static_cast<std::byte>(pair);
    }
  }
}

void widen_block_scaled(BlockFormat format, float whole, const std::byte* codes,
                        const std::byte* scales, std::span<float> row) {
  with_format(format, [&]<BlockFormat kFormat>() {
    using Traits = BlockTraits<kFormat>;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto scale = std::to_integer<std::uint32_t>(scales[i / Traits::kGroup]);
      row[i] = code_number<kFormat>(code_at(codes, i, 32 / Traits::kWordColumns)) *
               scale_number<kFormat>(scale) * whole;
    }
  });
}

}  // namespace dendrite::cuda
