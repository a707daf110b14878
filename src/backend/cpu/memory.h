#pragma once

#include <cstddef>
#include <cstdint>

namespace dendrite::cpu {

/// Zeroed anonymous memory, touched (and backed) on first use; sole owner, moves only.
class Memory {
 public:
  Memory() = default;
  /// Throws Error when the system refuses. Asks for huge pages from kHugeBytes on: below that the
  /// 2 MB a first touch would zero costs more than the TLB misses it saves.
  explicit Memory(std::int64_t size_bytes);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::byte* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }

  static constexpr std::int64_t kHugeBytes = std::int64_t{16} << 20;

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

}  // namespace dendrite::cpu
