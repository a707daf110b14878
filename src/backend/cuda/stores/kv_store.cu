#include "backend/cuda/stores/kv_store.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "backend/checks.h"
#include "backend/cuda/stores/page_vectors.h"

namespace dendrite::cuda {
namespace {

// A guarded store: [canary][page][canary, guard] for each page of each layer.
constexpr std::int64_t kBefore = 64;
constexpr std::int64_t kAfter = 64 + 448;
constexpr std::int64_t kPageAlign = 16;

/// What one launch copies, as its argument (of 4 KB at most).
struct CopyList {
  static constexpr std::size_t kMost = 256;
  SlotCopy copies[kMost];
};

/// Where runs of tokens of a page are, in bytes.
struct CopyLayout {
  std::byte* data;  // page 0 of layer 0
  std::int64_t layer;
  std::int64_t page;
  std::int64_t run;  // from (head, K or V) to the next; or from head to head, of K alone
  std::int64_t token;
  std::int64_t scales;  // from a page to its scales; 0: none
  std::int64_t scale;   // of a run
};

/// The first tokens of each run of a page, in all layers; scales by whole words.
/// grid (runs, layers, copies)
template <typename Word>
__global__ void copy_slots_kernel(const __grid_constant__ CopyLayout at,
                                  const __grid_constant__ CopyList list) {
  const SlotCopy copy = list.copies[blockIdx.z];
  std::byte* layer = at.data + blockIdx.y * at.layer;
  const std::byte* from_page = layer + copy.from * at.page;
  std::byte* to_page = layer + copy.to * at.page;
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  const auto* from = reinterpret_cast<const Word*>(from_page + blockIdx.x * at.run);
  auto* to = reinterpret_cast<Word*>(to_page + blockIdx.x * at.run);
  const std::int64_t words = (copy.tokens * at.token + kSize - 1) / kSize;
  for (std::int64_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
  if (at.scales == 0 || threadIdx.x >= (copy.tokens + 3) / 4) return;
  const std::int64_t scale = at.scales + blockIdx.x * at.scale + 4 * threadIdx.x;
  *reinterpret_cast<std::uint32_t*>(to_page + scale) =
      *reinterpret_cast<const std::uint32_t*>(from_page + scale);
}

}  // namespace

CudaKvStore::CudaKvStore(Device& device, const KvShape& shape)
    : device_(device),
      shape_(shape),
      before_(shape.guarded ? kBefore : 0),
      after_((shape.guarded ? kAfter : 0) + (kPageAlign - page_bytes() % kPageAlign) % kPageAlign),
      page_stride_(before_ + page_bytes() + after_) {
  check_kv_shape(shape);
  // Runs of whole words for any head_dim: page_tokens is a multiple of 8.
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
  view.head_vectors = static_cast<std::int32_t>(shape.vectors() * shape.page_tokens);
  view.value_vectors = shape.values_are_keys ? 0 : view.page_tokens;
  view.format = shape.format;
  view.scales_offset = shape.kv_heads * view.head_vectors * shape.head_dim;
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
  launch(waiting_.add({from, to, tokens}));
}

void CudaKvStore::flush_copies() const {
  const DeviceScope here = device_.scope();
  const std::scoped_lock lock(mutex_);
  launch(waiting_.take());
}

void CudaKvStore::launch(const std::vector<SlotCopy>& copies) const {
  CopyLayout layout{};
  layout.data = page(0, 0);
  layout.layer = layer_bytes();
  layout.page = page_stride_;
  layout.token = shape_.head_dim * size_of(shape_.format);
  layout.run = shape_.page_tokens * layout.token;
  if (has_scales()) {
    layout.scales = vectors() * layout.token;
    layout.scale = shape_.page_tokens;
  }
  // (Pages begin on 16 bytes.)
  const auto kernel =
      layout.token % 16 == 0 ? copy_slots_kernel<uint4> : copy_slots_kernel<std::uint32_t>;
  for (std::size_t begin = 0; begin < copies.size(); begin += CopyList::kMost) {
    const std::size_t count = std::min(CopyList::kMost, copies.size() - begin);
    CopyList list;
    std::copy_n(copies.data() + begin, count, list.copies);
    const dim3 grid(static_cast<unsigned>(shape_.vectors() * shape_.kv_heads),
                    static_cast<unsigned>(shape_.layers), static_cast<unsigned>(count));
    kernel<<<grid, 128, 0, device_.stream()>>>(layout, list);
    check(cudaGetLastError(), "copy_slots");
  }
}

std::vector<std::byte> CudaKvStore::get(const char* op, std::int32_t page,
                                        std::int64_t layer) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(page_bytes()));
  check(cudaMemcpyAsync(bytes.data(), this->page(page, layer), bytes.size(), cudaMemcpyDeviceToHost,
                        device_.stream()),
        op);
  device_.synchronize(op);
  return bytes;
}

void CudaKvStore::put(const char* op, std::int32_t page, std::int64_t layer,
                      std::span<const std::byte> bytes) const {
  check(cudaMemcpyAsync(this->page(page, layer), bytes.data(), bytes.size(), cudaMemcpyHostToDevice,
                        device_.stream()),
        op);
  device_.synchronize(op);
}

void CudaKvStore::read(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                       std::span<float> k, std::span<float> v) const {
  const DeviceScope here = device_.scope();
  check_page("read", shape_, page, tokens);
  flush_copies();
  check_page_values("read", shape_, layer, tokens, k.size(), v.size());
  const std::vector<std::byte> bytes = get("read", page, layer);
  const PageVectors vectors(shape_);
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto dim = static_cast<std::size_t>(shape_.head_dim);
      const auto first = static_cast<std::size_t>(token * shape_.kv_heads + head) * dim;
      vectors.widen(bytes, head, 0, token, k.subspan(first, dim));
      if (shape_.values_are_keys) {
        std::ranges::copy(k.subspan(first, dim), v.subspan(first).begin());
      } else {
        vectors.widen(bytes, head, 1, token, v.subspan(first, dim));
      }
    }
  }
}

void CudaKvStore::write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                        std::span<const float> k, std::span<const float> v) {
  const DeviceScope here = device_.scope();
  check_page("write", shape_, page, tokens);
  flush_copies();
  check_page_values("write", shape_, layer, tokens, k.size(),
                    shape_.values_are_keys ? k.size() : v.size());
  std::vector<std::byte> bytes = get("write", page, layer);
  const PageVectors vectors(shape_);
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto dim = static_cast<std::size_t>(shape_.head_dim);
      const auto first = static_cast<std::size_t>(token * shape_.kv_heads + head) * dim;
      vectors.round(k.subspan(first, dim), bytes, head, 0, token);
      if (shape_.values_are_keys) continue;
      vectors.round(v.subspan(first, dim), bytes, head, 1, token);
    }
  }
  put("write", page, layer, bytes);
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
  if (has_scales()) {
    const PageVectors vectors(shape_);
    std::vector<std::byte> as_stored(size);
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const auto layer_out = out.subspan(static_cast<std::size_t>(layer) * size, size);
      std::ranges::copy(layer_out, as_stored.begin());
      vectors.join_scales(as_stored, layer_out);
    }
  }
  const std::int64_t token_bytes = shape_.vector_bytes();
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
  std::vector<std::byte> apart;
  if (has_scales()) {
    const PageVectors vectors(shape_);
    apart.resize(in.size());
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::size_t at = static_cast<std::size_t>(layer) * size;
      vectors.split_scales(in.subspan(at, size), std::span(apart).subspan(at, size));
    }
    in = apart;
  }
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
