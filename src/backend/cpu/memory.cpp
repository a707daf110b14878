#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "dendrite/error.h"

namespace dendrite::cpu {

Memory::Memory(std::int64_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes <= 0) {
    size_bytes_ = 0;
    return;
  }
  const auto size = static_cast<std::size_t>(size_bytes);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw Error("cpu backend: the system refused " + std::to_string(size_bytes) +
                " bytes of memory");
  }
  data_ = static_cast<std::byte*>(data);
  if (size_bytes >= kHugeBytes) madvise(data, size, MADV_HUGEPAGE);  // advice only: may fail
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(size_bytes_));
}

}  // namespace dendrite::cpu
