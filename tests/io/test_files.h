#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "dendrite/error.h"
#include "support/temporary_folder.h"

namespace dendrite::test {

/// A temporary folder of files.
class TempFolder : public TemporaryFolder {
 public:
  /// Writes a file, making the folders on its way.
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const auto file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
};

/// An environment variable set (or, with nullopt, removed) until the scope is left.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, std::optional<std::string> value) : name_(name) {
    if (const char* const old = getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedVariable() { set(old_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    value ? setenv(name_, value->c_str(), 1) : unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

/// The message of the Error that `fn` throws, "" when it throws none. Messages have at most 4
/// lines.
template <typename Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_LE(std::ranges::count(text, '\n'), 3) << text;
    EXPECT_LE(text.size(), 2000u) << text;
    return text;
  }
  return "";
}

template <typename Fn>
testing::AssertionResult throws(Fn fn, const std::string& part) {
  const std::string text = error_of(fn);
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "the error is \"" << text << "\", expected \"" << part << '"';
}

/// A safetensors file: its header as given, its length in front, its data behind.
inline std::string safetensors(const std::string& header, const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xffu);
  return out + header + data;
}

/// A safetensors file of F32 vectors of one value each, named as given; the values count from 0.
inline std::string safetensors_of(const std::vector<std::string>& names) {
  std::string header, data;
  for (std::size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "{\"" : ",\"") + names[i] +
              "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" + std::to_string(4 * i) +
              "," + std::to_string(4 * i + 4) + "]}";
    const float value = static_cast<float>(i);
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return safetensors(header + "}", data);
}

/// tests/data
inline std::filesystem::path data_folder() {
#ifdef DENDRITE_TEST_DATA
  return DENDRITE_TEST_DATA;
#else
  return std::filesystem::path(__FILE__).parent_path().parent_path() / "data";
#endif
}

}  // namespace dendrite::test

/// The expression throws an Error whose text holds `part`.
#define EXPECT_ERROR(expression, part) \
  EXPECT_TRUE(::dendrite::test::throws([&] { (void)(expression); }, part))
