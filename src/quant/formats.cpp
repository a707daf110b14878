#include "quant/formats.h"

#include <algorithm>
#include <array>
#include <string>

#include "dendrite/error.h"

namespace dendrite {
namespace {

/// "F32, F16 or BF16": those of which is_one says so.
template <class Fn>
std::string types_where(Fn is_one) {
  std::vector<std::string_view> types;
  for (const Format* format : formats()) {
    if (is_one(*format) && std::ranges::find(types, format->stored_type()) == types.end()) {
      types.push_back(format->stored_type());
    }
  }
  std::string out(types.front());
  for (std::size_t i = 1; i < types.size(); ++i) {
    out += (i + 1 == types.size() ? " or " : ", ") + std::string(types[i]);
  }
  return out;
}

[[noreturn]] void fail_type(const TensorInfo& tensor, const std::string& expected) {
  throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" is stored as " +
              std::string(tensor.stored_type) + ", expected " + expected);
}

}  // namespace

const PlainFormat& plain_format(DType number) {
  switch (number) {
    case DType::kF32:
      return f32_format();
    case DType::kF16:
      return f16_format();
    case DType::kBF16:
      break;
  }
  return bf16_format();
}

void throw_stored_type(const TensorInfo& tensor) {
  fail_type(tensor, types_where([](const Format&) { return true; }));
}

const Format& require_format(const TensorInfo& tensor) {
  const auto found = std::ranges::find(formats(), tensor.stored_type, &Format::stored_type);
  if (found == formats().end()) throw_stored_type(tensor);
  return **found;
}

const PlainFormat& require_plain(const TensorInfo& tensor) {
  const auto plain = [](const Format& format) { return format.number().has_value(); };
  for (const Format* format : formats()) {
    if (plain(*format) && format->stored_type() == tensor.stored_type)
      return plain_format(*format->number());
  }
  fail_type(tensor, types_where(plain));
}

std::vector<float> numbers_of(const TensorInfo& tensor) {
  const Format& format = require_plain(tensor);
  std::vector<float> out(static_cast<std::size_t>(tensor.size_bytes / format.block_bytes()));
  const auto count = static_cast<std::int64_t>(out.size());
  format.widen({.format = &format, .data = tensor.data, .rows = 1, .cols = count}, 0, 0, out);
  return out;
}

std::optional<StoredMatrix> find_matrix(const TensorSource& source, std::string_view name,
                                        std::int64_t rows, std::int64_t cols,
                                        std::span<const Format* const> among) {
  for (const Format* format : among) {
    if (auto found = format->find(source, name, rows, cols)) return found;
  }
  return std::nullopt;
}

}  // namespace dendrite
