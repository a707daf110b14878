#include "backend/rounding.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <utility>

#include "backend/host_cores.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "quant/formats.h"
#include "quant/packed_rows.h"

namespace dendrite {

RoundedMatrix::RoundedMatrix(const StoredMatrix& matrix, WeightRounding rounding)
    : matrix_(matrix) {
  const auto number = matrix.format->number();
  if (rounding == WeightRounding::kNone || !number) return;
  if (rounding == WeightRounding::kFp8) {
    round_to_fp8();
  } else if (matrix.cols % 32 == 0) {
    matrix_.format = &rounded_format(*number, rounding);
  }
}

void RoundedMatrix::round_to_fp8() {
  const StoredMatrix& plain = matrix_;
  std::vector<std::byte> codes(static_cast<std::size_t>(plain.rows * plain.cols));
  std::vector<float> scales(static_cast<std::size_t>(plain.rows));
  std::atomic<bool> finite = true;
  const ThreadPool pool(usable_cores());
  pool.parallel_for(plain.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(plain.cols));
    for (std::int64_t r = begin; r < end; ++r) {
      plain.format->widen(plain, r, 0, row);
      if (!std::ranges::all_of(row, [](float value) { return std::isfinite(value); })) {
        finite = false;
        return;
      }
      pack_row({.kind = PackedKind::kFp8}, row, {}, codes.data() + r * plain.cols,
               std::span(scales).subspan(static_cast<std::size_t>(r), 1));
    }
  });
  if (!finite) return;
  codes_ = std::move(codes);
  scales_ = std::move(scales);
  matrix_.format = &fp8_format();
  matrix_.data = codes_.data();
  matrix_.stride = matrix_.cols;
  matrix_.scales = {&f32_format(), reinterpret_cast<const std::byte*>(scales_.data()), matrix_.rows,
                    1};
}

std::unique_ptr<Weight> random_rounded_weight(Backend& backend, std::int64_t rows,
                                              std::int64_t cols, WeightRounding rounding,
                                              std::uint64_t seed, bool of_expert,
                                              const Split& split) {
  const float width = std::sqrt(3.0F / static_cast<float>(cols));
  std::vector<float> values(static_cast<std::size_t>(rows + cols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = (2 * static_cast<float>(uniform_at(seed, 0, i)) - 1) * width;
  }
  const StoredMatrix plain{.format = &f32_format(),
                           .data = reinterpret_cast<const std::byte*>(values.data()),
                           .rows = rows,
                           .cols = cols,
                           .stride = sizeof(float)};  // each row begins a value further on
  const RoundedMatrix rounded(plain, rounding);
  const std::span parts(&rounded.matrix(), 1);
  return of_expert ? backend.pack_expert(parts) : backend.pack_split(parts, split);
}

std::unique_ptr<Weight> random_mxfp4_expert(Backend& backend, std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed) {
  const Format& format = mxfp4_format();
  const std::int64_t of_row = cols / format.block();
  const auto bytes = static_cast<std::size_t>(format.block_bytes());
  std::vector<std::byte> blocks(static_cast<std::size_t>(rows + of_row) * bytes);
  // E2M1 are 2.6 in the mean of squares.
  const double deviation = 1 / (2.6 * std::sqrt(static_cast<double>(cols)));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = i % bytes == 0 ? static_cast<std::byte>(127 + std::lround(std::log2(deviation)))
                               : static_cast<std::byte>(256 * uniform_at(seed, 0, i));
  }
  const StoredMatrix matrix{.format = &format,
                            .data = blocks.data(),
                            .rows = rows,
                            .cols = cols,
                            .stride = format.block_bytes(),  // each row begins a block further on
                            .name = "random"};
  return backend.pack_expert({&matrix, 1});
}

}  // namespace dendrite
