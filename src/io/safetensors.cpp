#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "dendrite/error.h"
#include "io/json_file.h"

namespace dendrite {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxTensors = std::size_t{1} << 20;
constexpr std::size_t kMaxRank = 8;

struct StoredType {
  std::string_view name;
  std::uint64_t bits;
};

constexpr StoredType kStoredTypes[] = {
    {"F32", 32},    {"F16", 16},    {"BF16", 16},       {"BOOL", 8},        {"U8", 8},
    {"I8", 8},      {"U16", 16},    {"I16", 16},        {"U32", 32},        {"I32", 32},
    {"U64", 64},    {"I64", 64},    {"F64", 64},        {"C64", 64},        {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4},
};

/// One tensor as the header describes it, nothing checked yet against the file.
struct Entry {
  std::string name;
  const StoredType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads the header event by event into entries, without building a document: a hostile header of
/// 100 MB would cost gigabytes as a tree. Anything out of place throws.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view path) : path_(path) {}

  std::vector<Entry> take() {
    check_metadata_keys();
    return std::move(entries_);
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kEntryValue) {
      place_ = Place::kEntry;
    } else if (place_ == Place::kMetadataValue) {
      place_ = Place::kMetadata;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    if (place_ == Place::kTop) {
      if (name == "__metadata__") {
        if (std::exchange(has_metadata_, true)) fail("key \"__metadata__\" is written twice");
        place_ = Place::kMetadataValue;
      } else {
        if (entries_.size() == kMaxTensors) {
          fail("holds more than " + std::to_string(kMaxTensors) + " tensors");
        }
        entries_.emplace_back().name = name;
        has_type_ = has_shape_ = has_offsets_ = false;
        place_ = Place::kEntryValue;
      }
    } else if (place_ == Place::kMetadata) {
      metadata_keys_.push_back(name);
    } else if (name == "dtype") {
      open_field(has_type_, name, Place::kType);
    } else if (name == "shape") {
      open_field(has_shape_, name, Place::kShapeStart);
    } else if (name == "data_offsets") {
      open_field(has_offsets_, name, Place::kOffsetsStart);
    } else {
      fail_tensor("has an unknown key " + in_quotes(name) +
                  ", expected dtype, shape and data_offsets");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      if (!has_type_) fail_tensor("has no dtype");
      if (!has_shape_) fail_tensor("has no shape");
      if (!has_offsets_) fail_tensor("has no data_offsets");
      place_ = Place::kTop;
    } else {
      place_ = place_ == Place::kMetadata ? Place::kTop : Place::kDone;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShapeStart) {
      place_ = Place::kShape;
    } else if (place_ == Place::kOffsetsStart) {
      place_ = Place::kOffsets;
      offsets_ = 0;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) {
      fail_tensor("has " + std::to_string(offsets_) + " data_offsets, expected 2");
    }
    place_ = Place::kEntry;
    return true;
  }

  bool number_unsigned(std::uint64_t number) override {
    if (place_ == Place::kShape) {
      auto& shape = entries_.back().shape;
      if (shape.size() == kMaxRank) {
        fail_tensor("has more than " + std::to_string(kMaxRank) + " dimensions");
      }
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail_tensor("has a dimension of " + std::to_string(number) + ", expected below 2^63");
      }
      shape.push_back(static_cast<std::int64_t>(number));
    } else if (place_ == Place::kOffsets) {
      if (offsets_ == 0) entries_.back().begin = number;
      if (offsets_ == 1) entries_.back().end = number;
      ++offsets_;
    } else {
      unexpected(std::to_string(number));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kType) unexpected(in_quotes(text));
    const auto* type = std::ranges::find(kStoredTypes, text, &StoredType::name);
    if (type == std::end(kStoredTypes))
      fail_tensor("has dtype " + in_quotes(text) + ", which the format does not know");
    entries_.back().type = type;
    place_ = Place::kEntry;
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(std::int64_t number) override { unexpected(std::to_string(number)); }
  bool number_float(double, const std::string& text) override { unexpected(in_quotes(text, 40)); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("bytes"); }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail("the header is not valid JSON, reading stopped at its byte " + std::to_string(byte));
  }

 private:
  enum class Place : std::uint8_t {
    kStart,
    kTop,
    kMetadataValue,
    kMetadata,
    kEntryValue,
    kEntry,
    kType,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kDone,
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(std::string(path_) + ": " + what);
  }
  [[noreturn]] void fail_tensor(const std::string& what) const {
    fail("tensor " + in_quotes(entries_.back().name) + " " + what);
  }

  [[noreturn]] void unexpected(const std::string& got) const {
    switch (place_) {
      case Place::kMetadataValue:
      case Place::kMetadata:
        fail("__metadata__ holds " + got + ", expected an object of strings");
      case Place::kEntryValue:
        fail_tensor("is " + got + ", expected an object");
      case Place::kType:
        fail_tensor("has dtype " + got + ", expected a string");
      case Place::kShapeStart:
        fail_tensor("has shape " + got + ", expected a list");
      case Place::kShape:
        fail_tensor("has a dimension of " + got + ", expected an integer of at least 0");
      case Place::kOffsetsStart:
        fail_tensor("has data_offsets " + got + ", expected a list of 2");
      case Place::kOffsets:
        fail_tensor("has a data offset of " + got + ", expected an integer of at least 0");
      case Place::kStart:
      case Place::kTop:
      case Place::kEntry:
      case Place::kDone:
        break;
    }
    fail("the header is " + got + ", expected an object of tensors");
  }

  void open_field(bool& seen, const std::string& name, Place next) {
    if (std::exchange(seen, true)) fail_tensor("has two keys " + in_quotes(name));
    place_ = next;
  }

  void check_metadata_keys() {
    std::ranges::sort(metadata_keys_);
    const auto twice = std::ranges::adjacent_find(metadata_keys_);
    if (twice != metadata_keys_.end()) fail("__metadata__ has two keys " + in_quotes(*twice));
  }

  std::string_view path_;
  std::vector<Entry> entries_;
  std::vector<std::string> metadata_keys_;
  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  bool has_type_ = false, has_shape_ = false, has_offsets_ = false;  // of the open entry
  int offsets_ = 0;
};

/// Bytes of a tensor of this type and shape, nullopt when they overflow or are not whole.
std::optional<std::uint64_t> bytes_of(const Entry& entry) {
  std::uint64_t bits = entry.type->bits;
  for (const std::int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dim), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// Throws unless the tensors cover bytes [0, data_bytes) exactly.
void check_coverage(const std::vector<Entry>& entries, std::uint64_t data_bytes,
                    std::string_view path) {
  const auto fail = [&](const Entry& entry, const std::string& what) {
    throw Error(std::string(path) + ": tensor " + in_quotes(entry.name) + " " + what);
  };
  std::vector<const Entry*> by_offset;
  by_offset.reserve(entries.size());
  for (const Entry& entry : entries) by_offset.push_back(&entry);
  std::ranges::sort(by_offset, {},
                    [](const Entry* entry) { return std::pair(entry->begin, entry->end); });
  std::uint64_t covered = 0;
  for (const Entry* const next : by_offset) {
    const Entry& entry = *next;
    const std::string range =
        "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    if (entry.end < entry.begin)
      fail(entry, "has data_offsets " + range + ", which end before they begin");
    if (entry.end > data_bytes) {
      fail(entry, "is at bytes " + range + ", but the file holds only " +
                      std::to_string(data_bytes) + " bytes of data (cut short?)");
    }
    if (entry.begin < covered)
      fail(entry, "is at bytes " + range + ", which overlap another tensor");
    if (entry.begin > covered) {
      fail(entry, "is at bytes " + range + ", after a hole that begins at byte " +
                      std::to_string(covered));
    }
    const auto bytes = bytes_of(entry);
    if (bytes != entry.end - entry.begin) {
      fail(entry, "of type " + std::string(entry.type->name) + " and shape " +
                      shape_text(entry.shape) + " is at " + range + ", expected " +
                      (bytes ? std::to_string(*bytes) + " bytes"
                             : "a shape of a whole number of bytes below 2^64 bits"));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw Error(std::string(path) + ": holds " + std::to_string(data_bytes) +
                " bytes of data, expected " + std::to_string(covered) +
                " (what its tensors cover)");
  }
}

}  // namespace

std::vector<TensorInfo> parse_safetensors(std::span<const std::byte> bytes, std::string_view path) {
  const auto fail = [&](const std::string& what) { throw Error(std::string(path) + ": " + what); };
  if (bytes.size() < 8) {
    fail("has " + std::to_string(bytes.size()) + " bytes, too few for a safetensors file");
  }
  std::uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes =
        header_bytes << 8 | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i)]);
  if (header_bytes > kMaxHeaderBytes) {
    fail("says its header has " + std::to_string(header_bytes) + " bytes, expected at most " +
         std::to_string(kMaxHeaderBytes) + " (not a safetensors file?)");
  }
  if (header_bytes > bytes.size() - 8) {
    fail("says its header has " + std::to_string(header_bytes) + " bytes, but only " +
         std::to_string(bytes.size() - 8) + " follow (cut short?)");
  }
  const auto* const header = reinterpret_cast<const char*>(bytes.data()) + 8;
  if (header_bytes == 0 || header[0] != '{') fail("has a header that does not begin with '{'");
  // The JSON lexer takes a zero byte for the end of its input and would not look behind it.
  if (std::memchr(header, 0, header_bytes) != nullptr) fail("has a zero byte in its header");

  HeaderReader reader(path);
  nlohmann::json::sax_parse(header, header + header_bytes, &reader);
  std::vector<Entry> entries = reader.take();
  std::ranges::sort(entries, {}, &Entry::name);
  const auto twice = std::ranges::adjacent_find(entries, {}, &Entry::name);
  if (twice != entries.end()) fail("tensor " + in_quotes(twice->name) + " is written twice");
  check_coverage(entries, bytes.size() - 8 - header_bytes, path);

  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    tensors.push_back({.name = std::move(entry.name),
                       .stored_type = entry.type->name,
                       .shape = std::move(entry.shape),
                       .data = bytes.data() + 8 + header_bytes + entry.begin,
                       .size_bytes = static_cast<std::int64_t>(entry.end - entry.begin),
                       .file = path});
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), tensors_(parse_safetensors(file_.bytes(), file_.path())) {}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

}  // namespace dendrite
