#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "dendrite/error.h"

namespace dendrite {
namespace {

constexpr std::uint64_t kMaxKeys = std::uint64_t{1} << 16;
constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxName = 65535;  // of a key, as the format says
constexpr std::uint32_t kMaxRank = 4;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 20;
constexpr std::uint64_t kKeyBytes = 8 + 4 + 1;         // of the shortest
constexpr std::uint64_t kTensorBytes = 8 + 4 + 4 + 8;  // likewise

/// A type of tensors by its number in files, also those that no format reads.
struct StoredType {
  std::uint32_t id;
  std::string_view name;
  std::int64_t block;
  std::int64_t bytes;
};

constexpr StoredType kStoredTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18}};

/// Reads the parts of a file's head one after the other, each only where it lies inside.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view path) : bytes_(bytes), path_(path) {}

  std::size_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  const std::byte* here() const { return bytes_.data() + at_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(path_) + ": " + what);
  }

  /// Goes on by `count` bytes, which `of` takes.
  const std::byte* take(std::uint64_t count, std::string_view of) {
    if (count > left()) {
      fail("ends inside of " + std::string(of) + ": " + std::to_string(count) +
           " bytes are expected at byte " + std::to_string(at_) + ", got " +
           std::to_string(left()) + " (cut short?)");
    }
    const std::byte* const out = here();
    at_ += static_cast<std::size_t>(count);
    return out;
  }

  template <class T>
  T number(std::string_view of) {
    T out;
    std::memcpy(&out, take(sizeof out, of), sizeof out);
    return out;
  }

  std::string_view string(std::string_view of) {
    const auto length = number<std::uint64_t>(of);
    return {reinterpret_cast<const char*>(take(length, of)), static_cast<std::size_t>(length)};
  }

  /// The name of a key or a tensor.
  std::string_view name(std::string_view of) {
    const std::string_view out = string(of);
    if (out.empty() || out.size() > kMaxName) {
      fail(std::string(of) + " has a name of " + std::to_string(out.size()) +
           " bytes, expected 1 to " + std::to_string(kMaxName));
    }
    return out;
  }

  /// How many of something follow, each of `least` bytes or more.
  std::uint64_t count(std::string_view of, std::uint64_t most, std::uint64_t least) {
    const auto out = number<std::uint64_t>(of);
    const std::uint64_t fits = std::min(most, left() / least);
    if (out > fits) {
      fail("says it has " + std::to_string(out) + " " + std::string(of) + ", expected at most " +
           std::to_string(fits) + (fits == most ? "" : ", as many as fit into what follows"));
    }
    return out;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view path_;
  std::size_t at_ = 0;
};

GgufKind read_kind(Reader& in, const std::string& of) {
  const auto kind = in.number<std::uint32_t>(of);
  if (kind > static_cast<std::uint32_t>(GgufKind::kF64)) {
    in.fail(of + " has a value of type " + std::to_string(kind) + ", expected 0 to 12");
  }
  return static_cast<GgufKind>(kind);
}

void check_bools(Reader& in, const std::byte* data, std::uint64_t count, const std::string& of) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const int value = std::to_integer<int>(data[i]);
    if (value > 1) in.fail(of + " has a bool of " + std::to_string(value) + ", expected 0 or 1");
  }
}

GgufValue read_value(Reader& in) {
  GgufValue value;
  value.key = in.name("a key");
  const std::string of = "key " + in_quotes(value.key);
  value.kind = read_kind(in, of);
  if (value.kind == GgufKind::kArray) {
    value.array = true;
    value.kind = read_kind(in, of);
    if (value.kind == GgufKind::kArray) {
      in.fail(of + " is an array of arrays, expected one of numbers, bools or strings");
    }
    const std::int64_t size = size_of(value.kind);
    value.count = in.count("values in " + of, std::numeric_limits<std::uint64_t>::max(),
                           size > 0 ? static_cast<std::uint64_t>(size) : 8);
  }
  value.data = in.here();
  if (value.kind == GgufKind::kString) {
    for (std::uint64_t i = 0; i < value.count; ++i) in.string(of);
  } else {
    in.take(value.count * static_cast<std::uint64_t>(size_of(value.kind)), of);
  }
  if (value.kind == GgufKind::kBool) check_bools(in, value.data, value.count, of);
  return value;
}

/// One tensor as the head describes it, not yet checked against the data.
struct Entry {
  TensorInfo tensor;
  std::uint64_t begin = 0;
};

/// Bytes of rows of `type`; the product of sizes fits into 63 bits.
std::int64_t bytes_of(const StoredType& type, const std::vector<std::int64_t>& shape,
                      const Reader& in, const std::string& of) {
  const std::int64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block != 0) {
    in.fail(of + " has rows of " + std::to_string(row) + " values, expected a multiple of " +
            std::to_string(type.block) + ", the block of " + std::string(type.name));
  }
  std::int64_t blocks = row / type.block;
  bool fits = true;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) {
    fits = fits && !__builtin_mul_overflow(blocks, shape[i], &blocks);
  }
  std::int64_t bytes = 0;
  if (!fits || __builtin_mul_overflow(blocks, type.bytes, &bytes)) {
    in.fail(of + " has shape " + shape_text(shape) + ", expected one of less than 2^63 bytes");
  }
  return bytes;
}

Entry read_tensor(Reader& in, std::string_view path) {
  Entry entry;
  entry.tensor.name = in.name("a tensor");
  const std::string of = "tensor " + in_quotes(entry.tensor.name);
  const auto rank = in.number<std::uint32_t>(of);
  if (rank > kMaxRank) {
    in.fail(of + " has " + std::to_string(rank) + " dimensions, expected at most " +
            std::to_string(kMaxRank));
  }
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto size = in.number<std::uint64_t>(of);
    if (size < 1 || size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      in.fail(of + " has a dimension of " + std::to_string(size) + ", expected 1 to 2^63 - 1");
    }
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto id = in.number<std::uint32_t>(of);
  const auto* const type = std::ranges::find(kStoredTypes, id, &StoredType::id);
  if (type == std::end(kStoredTypes)) {
    in.fail(of + " is of type " + std::to_string(id) + ", expected the number of a type of GGUF");
  }
  entry.tensor.stored_type = type->name;
  entry.tensor.size_bytes = bytes_of(*type, entry.tensor.shape, in, of);
  entry.tensor.file = path;
  entry.begin = in.number<std::uint64_t>(of);
  return entry;
}

/// Tensors lie one after the other, each at the next multiple of the alignment, and inside.
void place(std::vector<Entry>& entries, std::span<const std::byte> data, std::uint64_t alignment,
           const Reader& in) {
  std::ranges::sort(entries, {}, &Entry::begin);
  std::uint64_t next = 0;
  for (Entry& entry : entries) {
    TensorInfo& tensor = entry.tensor;
    const auto fail = [&](const std::string& what) {
      in.fail("tensor " + in_quotes(tensor.name) + " begins at byte " +
              std::to_string(entry.begin) + " of the data, " + what);
    };
    if (entry.begin % alignment != 0) {
      fail("expected a multiple of " + std::to_string(alignment));
    }
    if (entry.begin != next) {
      fail("expected byte " + std::to_string(next) +
           (entry.begin < next ? ", where the one before ends (they overlap)"
                               : " (before it is a hole)"));
    }
    const auto size = static_cast<std::uint64_t>(tensor.size_bytes);
    if (entry.begin > data.size() || size > data.size() - entry.begin) {
      fail("and has " + std::to_string(size) + ", but the file holds only " +
           std::to_string(data.size()) + " of data (cut short?)");
    }
    tensor.data = data.data() + entry.begin;
    next = (entry.begin + size + alignment - 1) / alignment * alignment;
  }
}

void check_magic(Reader& in) {
  const std::string_view magic(reinterpret_cast<const char*>(in.take(4, "its first four bytes")),
                               4);
  if (magic != "GGUF") {
    in.fail("begins with " + in_quotes(magic) + ", expected \"GGUF\" (not a GGUF file?)");
  }
  const auto version = in.number<std::uint32_t>("its version");
  if (version != 2 && version != 3) {
    const bool swapped = version == 2U << 24 || version == 3U << 24;
    in.fail(swapped ? "is big-endian, expected a little-endian GGUF file"
                    : "is of version " + std::to_string(version) + ", expected 2 or 3");
  }
}

}  // namespace

GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view path) {
  Reader in(bytes, path);
  check_magic(in);
  const auto tensor_count = in.count("tensors", kMaxTensors, kTensorBytes);
  const auto key_count = in.count("keys", kMaxKeys, kKeyBytes);
  std::vector<GgufValue> values;
  for (std::uint64_t i = 0; i < key_count; ++i) values.push_back(read_value(in));
  std::ranges::sort(values, {}, &GgufValue::key);
  const auto same = std::ranges::adjacent_find(values, {}, &GgufValue::key);
  if (same != values.end()) in.fail("key " + in_quotes(same->key) + " is written twice");
  GgufMetadata metadata(path, std::move(values));

  constexpr const char* kAlignment = "general.alignment";
  const auto alignment = static_cast<std::uint64_t>(
      metadata.find_int(kAlignment, {1, static_cast<std::int64_t>(kMaxAlignment)}).value_or(32));
  if (!std::has_single_bit(alignment)) metadata.fail(kAlignment, "a power of two");

  std::vector<Entry> entries;
  for (std::uint64_t i = 0; i < tensor_count; ++i) entries.push_back(read_tensor(in, path));
  const std::uint64_t begin = (in.at() + alignment - 1) / alignment * alignment;
  place(entries, bytes.subspan(std::min<std::size_t>(begin, bytes.size())), alignment, in);

  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) tensors.push_back(std::move(entry.tensor));
  std::ranges::sort(tensors, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(tensors, {}, &TensorInfo::name);
  if (twice != tensors.end()) in.fail("tensor " + in_quotes(twice->name) + " is written twice");
  return {std::move(metadata), std::move(tensors)};
}

}  // namespace dendrite
