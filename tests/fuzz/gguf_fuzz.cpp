// Any bytes as a GGUF file: refused with an Error, or every tensor lies inside them, all metadata
// can be read, and what they say of a model is refused or is texts.
#include <algorithm>
#include <span>

#include "dendrite/error.h"
#include "fuzz.h"
#include "io/gguf.h"
#include "io/gguf_config.h"
#include "io/gguf_tokenizer.h"
#include "model/config_reader.h"
#include "quant/formats.h"

namespace {

using namespace dendrite;

/// Runs `read`, which may be refused.
template <class Fn>
void may_refuse(Fn read) {
  try {
    read();
  } catch (const Error&) {
  }
}

void read_all(const GgufMetadata& metadata) {
  for (const GgufValue& value : metadata.values()) {
    may_refuse([&] { (void)metadata.find_int(value.key); });
    may_refuse([&] { (void)metadata.find_number(value.key); });
    may_refuse([&] { (void)metadata.find_bool(value.key); });
    may_refuse([&] { (void)metadata.find_string(value.key); });
    may_refuse([&] { (void)metadata.find_strings(value.key); });
    may_refuse([&] { (void)metadata.find_ints(value.key); });
    may_refuse([&] { (void)metadata.find_floats(value.key); });
  }
}

void check_tensors(const std::vector<TensorInfo>& tensors, std::span<const std::byte> bytes) {
  std::int64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    fuzz_check(tensor.size_bytes > 0 && tensor.data >= bytes.data() &&
                   tensor.data + tensor.size_bytes <= bytes.data() + bytes.size(),
               "a tensor lies inside its file");
    std::int64_t count = 1;
    for (const std::int64_t dim : tensor.shape) count *= dim;
    const auto format = std::ranges::find(formats(), tensor.stored_type, &Format::stored_type);
    if (format != formats().end() && tensor.stored_type != "I32") {  // words of other formats
      fuzz_check(count / (*format)->block() * (*format)->block_bytes() == tensor.size_bytes,
                 "the size is the shape's");
    }
    covered += tensor.size_bytes;
  }
  fuzz_check(covered <= std::ssize(bytes), "tensors do not overlap");
  fuzz_check(std::ranges::is_sorted(tensors, {}, &TensorInfo::name), "tensors are sorted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  may_refuse([&] {
    const GgufContents contents = parse_gguf(bytes, "x.gguf");
    check_tensors(contents.tensors, bytes);
    read_all(contents.metadata);
    may_refuse([&] { (void)gguf_tokenizer(contents.metadata); });
    may_refuse([&] { (void)gguf_tokenizer_config(contents.metadata); });
    std::vector<std::string> warnings;
    const std::string config = gguf_config(contents.metadata, contents.tensors, warnings);
    (void)parse_config(config, gguf_generation_config(contents.metadata), "x.gguf");
  });
  return 0;
}
