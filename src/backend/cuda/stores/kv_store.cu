#include "backend/cuda/stores/kv_store.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "backend/checks.h"
#include "core/dtype.h"
#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

// A guarded store: [canary][page][canary, guard] for each page of each layer.
constexpr std::int64_t kBefore = 64;
constexpr std::int64_t kAfter = 64 + 448;

/// What one launch copies, as its argument (of 4 KB at most).
struct CopyList {
  static constexpr std::size_t kMost = 256;
  SlotCopy copies[kMost];
};

/// The first tokens of each (head, K or V) run of a page, in all layers, as 4-byte words.
/// grid (kv_heads * 2, layers, copies)
__global__ void copy_slots_kernel(std::uint32_t* data, std::int64_t layer_words,
                                  std::int64_t page_words, std::int64_t run_words,
                                  std::int64_t token_bytes, const __grid_constant__ CopyList list) {
  const SlotCopy copy = list.copies[blockIdx.z];
  const std::int64_t words = (copy.tokens * token_bytes + 3) / 4;
  std::uint32_t* layer = data + blockIdx.y * layer_words + blockIdx.x * run_words;
  const std::uint32_t* source = layer + copy.from * page_words;
  std::uint32_t* target = layer + copy.to * page_words;
  for (std::int64_t i = threadIdx.x; i < words; i += blockDim.x) target[i] = source[i];
}

}  // namespace

CudaKvStore::CudaKvStore(Device& device, const KvShape& shape)
    : device_(device),
      shape_(shape),
      before_(shape.guarded ? kBefore : 0),
      after_(shape.guarded ? kAfter : 0),
      page_stride_(before_ + page_bytes() + after_) {
  check_kv_shape(shape);
  if (shape.format == KvFormat::kFP8) {
    throw Error("make_kv_store: a GPU does not keep K and V in fp8 yet; expected bf16 or f32");
  }
  // Runs of whole words, also for an odd head_dim of bf16: page_tokens is even.
  memory_ = Memory(layer_bytes() * shape.layers, "KV pages");
  check(cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(memory_.size_bytes()),
                        device_.stream()),
        "make_kv_store");
}

KvView view_of(const KvShape& shape) {
  KvView view;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.page_tokens = static_cast<std::int32_t>(shape.page_tokens);
  view.page_shift = shape.page_tokens == 8 ? 3 : shape.page_tokens == 16 ? 4 : 5;
  view.bf16 = shape.format == KvFormat::kBF16;
  return view;
}

KvView CudaKvStore::view(std::int64_t layer) const {
  KvView view = view_of(shape_);
  view.data = page(0, layer);
  view.page_stride = page_stride_;
  return view;
}

void CudaKvStore::copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) {
  const DeviceScope here = device_.scope();
  check_page("copy_slots", shape_, from, tokens);
  check_page("copy_slots", shape_, to, tokens);
  const std::scoped_lock lock(mutex_);
  const bool depends = std::ranges::any_of(waiting_, [&](const SlotCopy& other) {
    return other.to == from || other.from == to || other.to == to;
  });
  if (depends) launch(std::exchange(waiting_, {}));
  waiting_.push_back({from, to, tokens});
}

void CudaKvStore::flush_copies() const {
  const DeviceScope here = device_.scope();
  const std::scoped_lock lock(mutex_);
  if (!waiting_.empty()) launch(std::exchange(waiting_, {}));
}

void CudaKvStore::launch(const std::vector<SlotCopy>& copies) const {
  const std::int64_t token_bytes = shape_.head_dim * size_of(shape_.format);
  for (std::size_t begin = 0; begin < copies.size(); begin += CopyList::kMost) {
    const std::size_t count = std::min(CopyList::kMost, copies.size() - begin);
    CopyList list;
    std::copy_n(copies.data() + begin, count, list.copies);
    const dim3 grid(static_cast<unsigned>(2 * shape_.kv_heads),
                    static_cast<unsigned>(shape_.layers), static_cast<unsigned>(count));
    copy_slots_kernel<<<grid, 128, 0, device_.stream()>>>(
        reinterpret_cast<std::uint32_t*>(page(0, 0)), layer_bytes() / 4, page_stride_ / 4,
        shape_.page_tokens * token_bytes / 4, token_bytes, list);
    check(cudaGetLastError(), "copy_slots");
  }
}

void CudaKvStore::read(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                       std::span<float> k, std::span<float> v) const {
  const DeviceScope here = device_.scope();
  check_page("read", shape_, page, tokens);
  flush_copies();
  check_page_values("read", shape_, layer, tokens, k.size(), v.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(page_bytes()));
  check(cudaMemcpyAsync(bytes.data(), this->page(page, layer), bytes.size(), cudaMemcpyDeviceToHost,
                        device_.stream()),
        "read");
  device_.synchronize("read");
  const DType number = shape_.format == KvFormat::kF32 ? DType::kF32 : DType::kBF16;
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::int64_t at = (2 * head * shape_.page_tokens + token) * dim + i;
        const auto out = static_cast<std::size_t>((token * shape_.kv_heads + head) * dim + i);
        k[out] = stored_value(bytes.data(), number, at);
        v[out] = stored_value(bytes.data(), number, at + shape_.page_tokens * dim);
      }
    }
  }
}

void CudaKvStore::write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                        std::span<const float> k, std::span<const float> v) {
  const DeviceScope here = device_.scope();
  check_page("write", shape_, page, tokens);
  flush_copies();
  check_page_values("write", shape_, layer, tokens, k.size(), v.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(page_bytes()));
  check(cudaMemcpyAsync(bytes.data(), this->page(page, layer), bytes.size(), cudaMemcpyDeviceToHost,
                        device_.stream()),
        "write");
  device_.synchronize("write");
  const std::int64_t dim = shape_.head_dim;
  const auto put = [&](std::int64_t at, float value) {
    if (shape_.format == KvFormat::kF32) {
      std::memcpy(bytes.data() + at * 4, &value, 4);
    } else {
      const BF16 rounded = to_bf16(value);
      std::memcpy(bytes.data() + at * 2, &rounded, 2);
    }
  };
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::int64_t at = (2 * head * shape_.page_tokens + token) * dim + i;
        const auto in = static_cast<std::size_t>((token * shape_.kv_heads + head) * dim + i);
        put(at, k[in]);
        put(at + shape_.page_tokens * dim, v[in]);
      }
    }
  }
  check(cudaMemcpyAsync(this->page(page, layer), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                        device_.stream()),
        "write");
  device_.synchronize("write");
}

// A copy a layer: in a large pool layers are further apart than the pitch of a 2-D copy may be.

void CudaKvStore::export_page(std::int32_t page, std::int32_t tokens,
                              std::span<std::byte> out) const {
  const DeviceScope here = device_.scope();
  check_page("export_page", shape_, page, std::max(tokens, 1));
  flush_copies();
  check_page_bytes("export_page", shape_, out.size());
  const auto size = static_cast<std::size_t>(page_bytes());
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    check(cudaMemcpyAsync(out.data() + layer * page_bytes(), this->page(page, layer), size,
                          cudaMemcpyDeviceToHost, device_.stream()),
          "export_page");
  }
  device_.synchronize("export_page");
  const std::int64_t token_bytes = shape_.head_dim * size_of(shape_.format);
  const std::int64_t half = token_bytes * shape_.page_tokens;  // K or V of a head
  for (std::int64_t at = 0; at < std::ssize(out); at += half) {
    std::memset(out.data() + at + tokens * token_bytes, 0,
                static_cast<std::size_t>(half - tokens * token_bytes));
  }
}

void CudaKvStore::import_page(std::int32_t page, std::span<const std::byte> in) {
  const DeviceScope here = device_.scope();
  check_page("import_page", shape_, page, 1);
  flush_copies();
  check_page_bytes("import_page", shape_, in.size());
  const auto size = static_cast<std::size_t>(page_bytes());
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    check(cudaMemcpyAsync(this->page(page, layer), in.data() + layer * page_bytes(), size,
                          cudaMemcpyHostToDevice, device_.stream()),
          "import_page");
  }
  device_.synchronize("import_page");
}

KvStore::RawLayout CudaKvStore::raw_layout() const {
  return {shape_.layers, before_, page_bytes(), after_};
}

void CudaKvStore::read_raw(std::int32_t page, std::span<std::byte> out) const {
  const DeviceScope here = device_.scope();
  check_raw("read_raw", *this, page, out.size());
  const auto size = static_cast<std::size_t>(page_stride_);
  const std::scoped_lock not_recording(device_.recording());
  flush_copies();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    check(cudaMemcpyAsync(out.data() + layer * page_stride_, this->page(page, layer) - before_,
                          size, cudaMemcpyDeviceToHost, device_.stream()),
          "read_raw");
  }
  device_.synchronize("read_raw");
}

void CudaKvStore::write_raw(std::int32_t page, std::span<const std::byte> in) {
  const DeviceScope here = device_.scope();
  check_raw("write_raw", *this, page, in.size());
  const auto size = static_cast<std::size_t>(page_stride_);
  const std::scoped_lock not_recording(device_.recording());
  flush_copies();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    check(cudaMemcpyAsync(this->page(page, layer) - before_, in.data() + layer * page_stride_, size,
                          cudaMemcpyHostToDevice, device_.stream()),
          "write_raw");
  }
  device_.synchronize("write_raw");
}

}  // namespace dendrite::cuda
