#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "backend/host_memory.h"

namespace dendrite::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

Memory::Memory(std::int64_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes <= 0) {
    size_bytes_ = 0;
    return;
  }
  const bool huge = size_bytes >= kHugeBytes;
  const auto wanted = static_cast<std::size_t>(size_bytes);
  mapped_bytes_ = huge ? round_up(wanted) : wanted;
  const std::size_t slack = huge ? kHugePage : 0;
  void* mapping = mmap(nullptr, mapped_bytes_ + slack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    throw_out_of_memory("cpu backend", size_bytes, "memory", host_memory(), std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(mapping);
  if (!huge) return;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  const std::size_t before = round_up(address) - address;
  data_ += before;
  if (before > 0) munmap(mapping, before);
  if (before < slack) munmap(data_ + mapped_bytes_, slack - before);
  madvise(data_, mapped_bytes_, MADV_HUGEPAGE);  // advice only: may fail
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
}

}  // namespace dendrite::cpu
