#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "dendrite/error.h"

namespace dendrite::cuda {

/// Arrays to copy, whole numbers of 16 bytes; a kernel argument.
struct FetchList {
  static constexpr int kMost = 40;
  struct Piece {
    const uint4* from;
    uint4* to;
    std::int64_t count;  // of 16 bytes, rounded up: places have room for that
  };
  Piece pieces[kMost];
  int size = 0;

  void add(const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (size == kMost) throw Error("run_pass: more arrays than a pass may have");
    pieces[size++] = {reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to),
                      (bytes + 15) / 16};
  }
};

/// Copies pieces from page-locked host memory, which the kernel reads itself: one launch instead of
/// a transfer a piece.
void launch_fetch(const FetchList& list, cudaStream_t stream);

}  // namespace dendrite::cuda
