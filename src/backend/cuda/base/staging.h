#pragma once

#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/base/device.h"

namespace dendrite::cuda {

/// Carries small host arrays to the device in stream order, through page-locked memory; with host
/// tables no further than there, where kernels read them. Within a pass an array that is staged
/// again is found again: layers share tokens, slots and plans.
class Staging {
 public:
  Staging(Device& device, bool host_tables) : device_(device), host_tables_(host_tables) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// A pass, while it lives: arrays that are staged again are found again.
  class Pass {
   public:
    explicit Pass(Staging& staging) : staging_(staging) { staging_.begin_pass(); }
    ~Pass() { staging_.end_pass(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Staging& staging_;
  };

  /// A host array that lies at a fixed place on the device already.
  struct Bound {
    const void* host = nullptr;
    std::int64_t size_bytes = 0;
    const std::byte* device = nullptr;
  };
  /// A pass, while it lives, all of whose arrays are bound: staging any other one throws Error.
  class BoundPass {
   public:
    BoundPass(Staging& staging, std::vector<Bound> bound) : staging_(staging) {
      staging_.staged_ = std::move(bound);
      staging_.bound_ = true;
    }
    ~BoundPass() {
      staging_.staged_.clear();
      staging_.bound_ = false;
    }
    BoundPass(const BoundPass&) = delete;
    BoundPass& operator=(const BoundPass&) = delete;

   private:
    Staging& staging_;
  };

  /// The array on the device, valid until the next begin_pass (outside a pass: until a stage that
  /// wraps around, which waits for the device). Never null; an empty array is a valid pointer.
  template <typename T>
  const T* stage(std::span<const T> values) {
    return reinterpret_cast<const T*>(
        stage_bytes(values.data(), static_cast<std::int64_t>(values.size_bytes())));
  }

 private:
  void begin_pass();
  void end_pass();
  const std::byte* stage_bytes(const void* host, std::int64_t size_bytes);
  void reserve(std::int64_t size_bytes);

  Device& device_;
  bool host_tables_;
  HostMemory host_;
  Memory memory_;  // as large as host_; none with host tables
  // Outgrown in this pass; its kernels may still read them.
  std::vector<HostMemory> old_hosts_;
  std::vector<Memory> old_;
  std::int64_t used_ = 0;
  bool in_pass_ = false;
  bool bound_ = false;
  std::vector<Bound> staged_;
};

}  // namespace dendrite::cuda
