#include "io/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dendrite/error.h"

namespace dendrite {
namespace {

template <class T>
T number_at(const std::byte* data) {
  T out;
  std::memcpy(&out, data, sizeof out);
  return out;
}

bool is_integer(GgufKind kind) {
  return kind != GgufKind::kF32 && kind != GgufKind::kF64 && kind != GgufKind::kBool &&
         size_of(kind) > 0;
}

/// An integer of the file; nullopt beyond 2^63 - 1.
std::optional<std::int64_t> integer_at(GgufKind kind, const std::byte* data) {
  switch (kind) {
    case GgufKind::kU8:
      return number_at<std::uint8_t>(data);
    case GgufKind::kI8:
      return number_at<std::int8_t>(data);
    case GgufKind::kU16:
      return number_at<std::uint16_t>(data);
    case GgufKind::kI16:
      return number_at<std::int16_t>(data);
    case GgufKind::kU32:
      return number_at<std::uint32_t>(data);
    case GgufKind::kI32:
      return number_at<std::int32_t>(data);
    case GgufKind::kI64:
      return number_at<std::int64_t>(data);
    default:
      break;
  }
  const auto number = number_at<std::uint64_t>(data);
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
  return static_cast<std::int64_t>(number);
}

double real_at(GgufKind kind, const std::byte* data) {
  return kind == GgufKind::kF32 ? static_cast<double>(number_at<float>(data))
                                : number_at<double>(data);
}

std::string_view string_at(const std::byte* data) {
  const auto length = number_at<std::uint64_t>(data);
  return {reinterpret_cast<const char*>(data) + 8, static_cast<std::size_t>(length)};
}

std::string shown(const GgufValue& value) {
  if (value.array) return "an array of " + std::to_string(value.count) + " values";
  if (value.kind == GgufKind::kString) return in_quotes(string_at(value.data));
  if (value.kind == GgufKind::kBool) return std::to_integer<int>(*value.data) ? "true" : "false";
  if (!is_integer(value.kind)) return std::to_string(real_at(value.kind, value.data));
  const auto number = integer_at(value.kind, value.data);
  return number ? std::to_string(*number) : "a number of 2^63 or more";
}

/// Of a key that must be there.
template <class T>
T required(const GgufMetadata& metadata, std::string_view key, std::optional<T> value,
           const char* expected) {
  if (!value) metadata.fail(key, expected);
  return *std::move(value);
}

}  // namespace

std::int64_t size_of(GgufKind kind) {
  switch (kind) {
    case GgufKind::kU8:
    case GgufKind::kI8:
    case GgufKind::kBool:
      return 1;
    case GgufKind::kU16:
    case GgufKind::kI16:
      return 2;
    case GgufKind::kU32:
    case GgufKind::kI32:
    case GgufKind::kF32:
      return 4;
    case GgufKind::kU64:
    case GgufKind::kI64:
    case GgufKind::kF64:
      return 8;
    case GgufKind::kString:
    case GgufKind::kArray:
      break;
  }
  return 0;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = std::ranges::lower_bound(values_, key, {}, &GgufValue::key);
  return it != values_.end() && it->key == key ? &*it : nullptr;
}

void GgufMetadata::fail(std::string_view key, const std::string& expected) const {
  const GgufValue* const value = find(key);
  throw Error(std::string(file_) + ": key " + in_quotes(key) + " is " +
              (value == nullptr ? "missing" : shown(*value)) + ", expected " + expected);
}

std::optional<std::int64_t> GgufMetadata::find_int(std::string_view key, IntRange range) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || !is_integer(value->kind)) fail(key, "an integer");
  const auto number = integer_at(value->kind, value->data);
  if (!number || *number < range.min || *number > range.max) {
    fail(key, std::to_string(range.min) + " to " + std::to_string(range.max));
  }
  return number;
}

std::int64_t GgufMetadata::require_int(std::string_view key, IntRange range) const {
  return required(*this, key, find_int(key, range), "an integer");
}

std::optional<double> GgufMetadata::find_number(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  const bool real = value->kind == GgufKind::kF32 || value->kind == GgufKind::kF64;
  if (value->array || !(real || is_integer(value->kind))) fail(key, "a number");
  if (!real) return static_cast<double>(find_int(key).value_or(0));
  const double number = real_at(value->kind, value->data);
  if (!std::isfinite(number)) fail(key, "a finite number");
  return number;
}

double GgufMetadata::require_number(std::string_view key) const {
  return required(*this, key, find_number(key), "a number");
}

std::optional<bool> GgufMetadata::find_bool(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->kind != GgufKind::kBool) fail(key, "true or false");
  return std::to_integer<int>(*value->data) != 0;
}

std::optional<std::string_view> GgufMetadata::find_string(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->kind != GgufKind::kString) fail(key, "a string");
  return string_at(value->data);
}

std::string_view GgufMetadata::require_string(std::string_view key) const {
  return required(*this, key, find_string(key), "a string");
}

std::optional<std::vector<std::string_view>> GgufMetadata::find_strings(
    std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->array || value->kind != GgufKind::kString) fail(key, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(value->count);
  const std::byte* at = value->data;
  for (std::uint64_t i = 0; i < value->count; ++i) {
    out.push_back(string_at(at));
    at += 8 + out.back().size();
  }
  return out;
}

std::vector<std::string_view> GgufMetadata::require_strings(std::string_view key) const {
  return required(*this, key, find_strings(key), "an array of strings");
}

std::optional<std::vector<std::int64_t>> GgufMetadata::find_ints(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->array || !is_integer(value->kind)) fail(key, "an array of integers");
  std::vector<std::int64_t> out;
  out.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number =
        integer_at(value->kind, value->data + static_cast<std::int64_t>(i) * size_of(value->kind));
    if (!number) fail(key, "integers below 2^63");
    out.push_back(*number);
  }
  return out;
}

std::optional<std::vector<float>> GgufMetadata::find_floats(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->array || value->kind != GgufKind::kF32) fail(key, "an array of f32");
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->data, out.size() * sizeof(float));
  return out;
}

std::optional<std::vector<bool>> GgufMetadata::find_flags(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->array || value->kind != GgufKind::kBool) fail(key, "an array of true and false");
  std::vector<bool> out;
  for (std::uint64_t i = 0; i < value->count; ++i) {
    out.push_back(std::to_integer<int>(value->data[i]) != 0);
  }
  return out;
}

bool GgufMetadata::is_array(std::string_view key) const {
  const GgufValue* const value = find(key);
  return value != nullptr && value->array;
}

}  // namespace dendrite
