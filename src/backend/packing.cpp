#include "backend/packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "dendrite/error.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

[[noreturn]] void fail(const StoredMatrix& matrix, const std::string& what) {
  throw Error(std::string(matrix.file) + ": tensor \"" + std::string(matrix.name) + "\" " + what);
}

}  // namespace

void convert(std::byte* out, DType to, const StoredMatrix& matrix, std::int64_t row,
             std::int64_t begin, std::int64_t count) {
  const std::int64_t size = size_of(to);
  if (matrix.format->number() == to) {
    std::memcpy(out, matrix.row(row) + begin * size, static_cast<std::size_t>(count * size));
    return;
  }
  const PlainFormat& kept = plain_format(to);
  float widened[Format::kMostBlock];
  for (std::int64_t i = 0; i < count; i += Format::kMostBlock) {
    const auto run = static_cast<std::size_t>(std::min(Format::kMostBlock, count - i));
    const std::span<float> values(widened, run);
    matrix.format->widen(matrix, row, begin + i, values);
    kept.narrow(values, out + i * size);
  }
}

std::int64_t stacked_rows(std::span<const StoredMatrix> parts) {
  if (parts.empty()) throw Error("pack: no matrices given, expected at least one");
  std::int64_t rows = 0;
  for (const StoredMatrix& part : parts) {
    if (part.rows <= 0 || part.cols <= 0) {
      fail(part, "has shape [" + std::to_string(part.rows) + ", " + std::to_string(part.cols) +
                     "], expected positive sizes");
    }
    if (part.cols != parts[0].cols) {
      fail(part, "has " + std::to_string(part.cols) + " columns, expected " +
                     std::to_string(parts[0].cols) + " as in \"" + std::string(parts[0].name) +
                     "\"");
    }
    rows += part.rows;
  }
  return rows;
}

void throw_not_finite(std::span<const StoredMatrix> parts, DType kept) {
  const PlainFormat& format = plain_format(kept);
  for (const StoredMatrix& part : parts) {
    std::vector<float> values(static_cast<std::size_t>(part.cols));
    for (std::int64_t row = 0; row < part.rows; ++row) {
      part.format->widen(part, row, 0, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float value = values[i];
        std::byte rounded[4];
        format.narrow({&value, 1}, rounded);
        if (std::isfinite(stored_value(rounded, kept, 0))) continue;
        const std::string element =
            " at element " + std::to_string(row * part.cols + static_cast<std::int64_t>(i));
        if (std::isfinite(value)) {
          fail(part, "holds " + std::to_string(value) + element +
                         ", which is beyond the range of " + name_of(kept) +
                         "; expected values up to 65504");
        }
        fail(part, std::string("holds ") +
                       (std::isnan(value) ? "NaN"
                        : value > 0       ? "infinity"
                                          : "-infinity") +
                       element + "; expected finite values");
      }
    }
  }
  throw Error("pack: a value is not finite");
}

}  // namespace dendrite
