#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "support/golden_data.h"
#include "support/safetensors_writer.h"
#include "support/temporary_folder.h"

namespace dendrite::test {

/// Where the head of a model of tests/data/models is, and what it says.
inline std::filesystem::path mtp_path(const std::string& name) {
  return std::filesystem::path(DENDRITE_TEST_DATA) / "drafters" / (name + "_mtp");
}

/// A hybrid of tests/data/models with the MTP head of tests/data/drafters in the same files, as
/// they are published, and a tokenizer whose ids are all the model's: a folder of its own.
class MtpModel {
 public:
  struct Tensor {
    std::string name;
    std::string type;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;

    /// Of BF16, which must have room for them.
    std::vector<float> values() const {
      std::vector<float> out;
      for (std::size_t i = 0; i < bytes.size(); i += 2) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + i, 2);
        out.push_back(std::bit_cast<float>(std::uint32_t{bits} << 16));
      }
      return out;
    }
    void set(const std::vector<float>& values) {
      bytes.resize(2 * values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
  };
  using Tensors = std::vector<Tensor>;

  /// `change` may do what it likes with the tensors; those named mtp.* are the head's.
  explicit MtpModel(const std::string& name, const std::function<void(Tensors&)>& change = {}) {
    Tensors all;
    const auto read = [&](const std::filesystem::path& folder) {
      const SafetensorsFile file(folder / "model.safetensors");
      for (const TensorInfo& tensor : file.tensors()) {
        all.push_back({tensor.name,
                       std::string(tensor.stored_type),
                       tensor.shape,
                       {tensor.data, tensor.data + tensor.size_bytes}});
      }
    };
    read(model_path(name));
    read(mtp_path(name));
    if (change) change(all);
    SafetensorsWriter writer;
    for (const Tensor& tensor : all)
      writer.add(tensor.name, tensor.type, tensor.shape, tensor.bytes);
    writer.write(folder_.path() / "model.safetensors");
    std::ifstream config_file(model_path(name) / "config.json");
    nlohmann::json config = nlohmann::json::parse(config_file);
    config["mtp_num_hidden_layers"] = 1;
    std::ofstream(folder_.path() / "config.json") << config;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy_file(model_path("llama_vocab_padded") / file, folder_.path() / file);
    }
  }

  std::string path() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace dendrite::test
