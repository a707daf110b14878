#include "quant/nibbles.h"

#include <cstring>

#include "dendrite/error.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

const TensorInfo& require(const TensorSource& source, const std::string& name,
                          const TensorInfo& of) {
  const TensorInfo* const tensor = source.find(name);
  if (tensor != nullptr) return *tensor;
  throw Error(std::string(of.file) + ": holds no tensor \"" + name + "\", which \"" + of.name +
              "\" does not go without");
}

}  // namespace

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, words + 4 * index, 4);
  return word;
}

const TensorInfo& require_words(const TensorSource& source, const std::string& name,
                                std::array<std::int64_t, 2> shape, const TensorInfo& of) {
  const TensorInfo& tensor = require(source, name, of);
  if (tensor.stored_type != "I32") {
    throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" is stored as " +
                std::string(tensor.stored_type) + ", expected I32");
  }
  check_shape(tensor, shape, "of \"" + of.name + "\"");
  check_bytes(tensor, 4 * shape[0] * shape[1]);
  return tensor;
}

Companion find_groups(const TensorSource& source, const std::string& name, std::int64_t count,
                      std::int64_t cols, const TensorInfo& of) {
  const TensorInfo& tensor = require(source, name, of);
  const Format& format = require_plain(tensor);
  const bool fits = tensor.shape.size() == 2 && tensor.shape[1] == cols && tensor.shape[0] > 0 &&
                    count % tensor.shape[0] == 0;
  if (!fits) {
    throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" has shape " +
                shape_text(tensor.shape) + ", expected [groups, " + std::to_string(cols) +
                "], the groups a divisor of " + std::to_string(count) + " (of \"" + of.name +
                "\")");
  }
  check_bytes(tensor, tensor.shape[0] * cols * format.block_bytes());
  return {&format, tensor.data, tensor.shape[0], cols};
}

}  // namespace dendrite
