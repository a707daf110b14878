// Any bytes as a safetensors file: refused with an Error, or every tensor lies inside them.
#include <algorithm>
#include <span>

#include "dendrite/error.h"
#include "fuzz.h"
#include "io/safetensors.h"
#include "quant/formats.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dendrite;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto tensors = parse_safetensors(bytes, "x.safetensors");
    std::int64_t covered = 0;
    for (const TensorInfo& tensor : tensors) {
      fuzz_check(tensor.size_bytes >= 0 && tensor.data >= bytes.data() &&
                     tensor.data + tensor.size_bytes <= bytes.data() + bytes.size(),
                 "a tensor lies inside its file");
      std::int64_t count = 1;
      for (const std::int64_t dim : tensor.shape) count *= dim;  // cannot overflow: UBSan looks
      const auto format = std::ranges::find(formats(), tensor.stored_type, &Format::stored_type);
      const bool several = tensor.stored_type == "I32" || tensor.stored_type == "U8";  // in one
      if (format != formats().end() && !several) {
        fuzz_check(count / (*format)->block() * (*format)->block_bytes() == tensor.size_bytes,
                   "the size is the shape's");
      }
      covered += tensor.size_bytes;
    }
    fuzz_check(covered <= static_cast<std::int64_t>(size), "tensors do not overlap");
    fuzz_check(std::ranges::is_sorted(tensors, {}, &TensorInfo::name), "tensors are sorted");
  } catch (const Error&) {
  }
  return 0;
}
