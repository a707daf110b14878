#include "backend/cuda/stores/state_store.h"

#include "backend/checks.h"

namespace dendrite::cuda {

CudaStateStore::CudaStateStore(Device& device, const StateShape& shape)
    : device_(device), shape_(shape) {
  check_state_shape(shape);
  memory_ = Memory(shape.size_bytes(), "states of recurrent layers");
  check(cudaMemsetAsync(memory_.data(), 0, static_cast<std::size_t>(memory_.size_bytes()),
                        device_.stream()),
        "make_state_store");
}

void CudaStateStore::read(const char* op, const float* from, std::span<float> out) const {
  const DeviceScope here = device_.scope();
  check(
      cudaMemcpyAsync(out.data(), from, out.size_bytes(), cudaMemcpyDeviceToHost, device_.stream()),
      op);
  device_.synchronize(op);
}

void CudaStateStore::write(const char* op, float* to, std::span<const float> in) const {
  const DeviceScope here = device_.scope();
  check(cudaMemcpyAsync(to, in.data(), in.size_bytes(), cudaMemcpyHostToDevice, device_.stream()),
        op);
  device_.synchronize(op);
}

void CudaStateStore::read_anchor(std::int32_t slot, std::span<float> out) const {
  check_anchor("read_anchor", shape_, slot, out.size());
  read("read_anchor", anchors(0) + slot * std::ssize(out), out);
}

void CudaStateStore::write_anchor(std::int32_t slot, std::span<const float> in) {
  check_anchor("write_anchor", shape_, slot, in.size());
  write("write_anchor", anchors(0) + slot * std::ssize(in), in);
}

void CudaStateStore::read_journal(std::int32_t slot, std::span<float> out) const {
  check_journal("read_journal", shape_, slot, out.size());
  read("read_journal", journals(0) + slot * std::ssize(out), out);
}

void CudaStateStore::write_journal(std::int32_t slot, std::span<const float> in) {
  check_journal("write_journal", shape_, slot, in.size());
  write("write_journal", journals(0) + slot * std::ssize(in), in);
}

}  // namespace dendrite::cuda
