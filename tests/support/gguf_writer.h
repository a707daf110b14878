#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dendrite::test {

/// A GGUF file that is put together key by key and tensor by tensor.
class GgufWriter {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;

  void u16(std::string_view key, std::uint16_t value) { number(key, 2, value); }
  void u32(std::string_view key, std::uint32_t value) { number(key, 4, value); }
  void i32(std::string_view key, std::int32_t value) { number(key, 5, value); }
  void f32(std::string_view key, float value) { number(key, 6, value); }
  void boolean(std::string_view key, bool value) {
    number(key, 7, static_cast<std::uint8_t>(value));
  }
  void text(std::string_view key, std::string_view value) {
    begin(key, 8);
    put(keys_, value);
  }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    begin(key, 9);
    put_number(keys_, std::uint32_t{8});
    put_number(keys_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) put(keys_, value);
  }
  void i32s(std::string_view key, const std::vector<std::int32_t>& values) {
    numbers(key, 5, values);
  }
  void f32s(std::string_view key, const std::vector<float>& values) { numbers(key, 6, values); }
  void booleans(std::string_view key, const std::vector<bool>& values) {
    numbers(key, 7, std::vector<std::uint8_t>(values.begin(), values.end()));
  }
  /// A value as it is given: its kind, and its bytes.
  void raw(std::string_view key, std::uint32_t kind, std::string_view bytes) {
    begin(key, kind);
    keys_ += bytes;
  }

  /// `shape`: rows first.
  void tensor(std::string_view name, std::uint32_t type, const std::vector<std::int64_t>& shape,
              std::string_view bytes) {
    tensor_at(name, type, shape, data_.size());
    data_ += bytes;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
  }
  /// One whose bytes others wrote.
  void tensor_at(std::string_view name, std::uint32_t type, const std::vector<std::int64_t>& shape,
                 std::uint64_t offset) {
    put(tensors_, name);
    put_number(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (auto size = shape.rbegin(); size != shape.rend(); ++size) put_number(tensors_, *size);
    put_number(tensors_, type);
    put_number(tensors_, offset);
    ++tensor_count_;
  }

  /// Gives a key or a tensor, if there is one of this name, another that nothing reads.
  void rename(std::string_view name) {
    const std::string unread = ".input_scale";
    std::string other(name.size(), 'x');
    if (other.size() > unread.size())
      other.replace(other.size() - unread.size(), unread.size(), unread);
    std::string entry;
    put(entry, name);
    for (std::string* const all : {&keys_, &tensors_}) {
      const auto at = all->find(entry);
      if (at != all->npos) all->replace(at + entry.size() - name.size(), name.size(), other);
    }
  }

  std::string bytes() const {
    std::string out = "GGUF";
    put_number(out, version);
    put_number(out, tensor_count_);
    put_number(out, key_count_);
    out += keys_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }
  void write(const std::filesystem::path& file) const {
    std::ofstream(file, std::ios::binary) << bytes();
  }

 private:
  template <class T>
  static void put_number(std::string& out, T value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof value);
  }
  static void put(std::string& out, std::string_view text) {
    put_number(out, static_cast<std::uint64_t>(text.size()));
    out += text;
  }
  void begin(std::string_view key, std::uint32_t kind) {
    put(keys_, key);
    put_number(keys_, kind);
    ++key_count_;
  }
  template <class T>
  void number(std::string_view key, std::uint32_t kind, T value) {
    begin(key, kind);
    put_number(keys_, value);
  }
  template <class T>
  void numbers(std::string_view key, std::uint32_t kind, const std::vector<T>& values) {
    begin(key, 9);
    put_number(keys_, kind);
    put_number(keys_, static_cast<std::uint64_t>(values.size()));
    for (const T value : values) put_number(keys_, value);
  }

  std::string keys_, tensors_, data_;
  std::uint64_t key_count_ = 0;
  std::uint64_t tensor_count_ = 0;
};

}  // namespace dendrite::test
