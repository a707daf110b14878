#pragma once

#include <cstddef>
#include <cstdint>

namespace dendrite::cpu {

/// Zeroed anonymous memory, touched (and backed) on first use; sole owner, moves only.
class Memory {
 public:
  Memory() = default;
  /// Throws Error when the system refuses. From kHugeBytes on, it lies on a border of a huge page
  /// and asks for such pages: a weight that is streamed once a step otherwise pays a TLB miss every
  /// 4 KB (a decode step of 250 M parameters took 1.3x as long).
  explicit Memory(std::int64_t size_bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  /// At least so many bytes; what was in it is gone where it had fewer.
  void grow(std::int64_t size_bytes) {
    if (size_bytes_ < size_bytes) *this = Memory(size_bytes);
  }

  std::byte* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }

  static constexpr std::int64_t kHugeBytes = std::int64_t{1} << 20;

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace dendrite::cpu
