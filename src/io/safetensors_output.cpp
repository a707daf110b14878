#include "io/safetensors_output.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "dendrite/error.h"
#include "quant/tensor_info.h"

namespace dendrite {
namespace {

static_assert(std::endian::native == std::endian::little);

/// The places of tensors in the order in which they lie in the file.
std::vector<std::size_t> order_of(std::span<const TensorToWrite> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return tensors[i].value_bytes; });
  return order;
}

}  // namespace

std::int64_t TensorToWrite::size_bytes() const {
  return value_bytes * value_count(shape);
}

SafetensorsOutput::SafetensorsOutput(const std::filesystem::path& file,
                                     std::span<const TensorToWrite> tensors)
    : file_(file.string(), O_WRONLY | O_CREAT | O_EXCL), extents_(tensors.size()) {
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};  // without which transformers refuses the file
  std::int64_t end = 0;
  for (const std::size_t i : order_of(tensors)) {
    const TensorToWrite& tensor = tensors[i];
    extents_[i] = {end, tensor.size_bytes()};
    end += extents_[i].size;
    json[tensor.name] = {{"dtype", tensor.type},
                         {"shape", tensor.shape},
                         {"data_offsets", {extents_[i].begin, end}}};
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  file_.write_at(0, std::as_bytes(std::span(&length, 1)));
  file_.write_at(sizeof(length), std::as_bytes(std::span(header)));
  for (Extent& extent : extents_) {
    extent.begin += static_cast<std::int64_t>(sizeof(length) + header.size());
  }
}

void SafetensorsOutput::write(std::size_t tensor, std::span<const std::byte> bytes) {
  Extent& extent = extents_.at(tensor);
  if (std::ssize(bytes) != extent.size || std::exchange(extent.written, true)) {
    throw Error(file_.path() + ": tensor " + std::to_string(tensor) + " got " +
                std::to_string(bytes.size()) + " bytes; expected " + std::to_string(extent.size) +
                ", once");
  }
  file_.write_at(extent.begin, bytes);
}

void SafetensorsOutput::finish() {
  const auto missing = std::ranges::find(extents_, false, &Extent::written);
  if (missing != extents_.end()) {
    throw Error(file_.path() + ": tensor " + std::to_string(missing - extents_.begin()) +
                " was not written; expected all");
  }
  file_.bring_to_disk();
}

}  // namespace dendrite
