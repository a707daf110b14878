#include "model/fingerprint.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "core/hash.h"
#include "io/checkpoint.h"

namespace dendrite {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::int64_t kSampleBytes = 256;

}  // namespace

std::uint64_t model_fingerprint(std::uint64_t config_hash, const Checkpoint& checkpoint,
                                bool dummy_weights) {
  const auto mix = [](std::uint64_t hash, std::string_view text) {
    return hash_bytes(std::as_bytes(std::span(text)), hash);
  };
  if (dummy_weights) return mix(config_hash, "dummy");
  std::uint64_t hash = config_hash;
  for (const std::string_view name : checkpoint.names()) {
    const TensorInfo& tensor = *checkpoint.find(name);
    hash = mix(mix(mix(hash, name), tensor.stored_type), shape_text(tensor.shape));
    const std::span bytes(tensor.data, static_cast<std::size_t>(tensor.size_bytes));
    const std::int64_t last = std::max<std::int64_t>(tensor.size_bytes - kSampleBytes, 0);
    for (std::int64_t i = 0; i < kSamples; ++i) {  // the first, the last, and some between
      const auto at = static_cast<std::size_t>(last / (kSamples - 1) * i +
                                               (i == kSamples - 1 ? last % (kSamples - 1) : 0));
      hash = hash_bytes(bytes.subspan(at, std::min<std::size_t>(kSampleBytes, bytes.size() - at)),
                        hash);
    }
  }
  return hash;
}

}  // namespace dendrite
