#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace dendrite::test {

/// Tensors that are written to one file.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const std::string& type, const std::vector<std::int64_t>& shape,
           std::span<const std::byte> bytes) {
    header_[name] = {{"dtype", type},
                     {"shape", shape},
                     {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void write(const std::filesystem::path& file) const {
    const std::string text = header_.dump();
    const std::uint64_t length = text.size();
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << text << data_;
  }

 private:
  nlohmann::json header_;
  std::string data_;
};

}  // namespace dendrite::test
