#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// What this machine can do at best, measured next to each kernel: on shared machines only the
// ratio of a kernel to probes taken a moment before and after it means something.
namespace dendrite::bench {

/// Reads `bytes` (a multiple of 512) once, sequentially; the sum keeps it from being optimised
/// away.
std::uint64_t read_probe(const std::byte* data, std::int64_t bytes);

/// Floating-point operations of one call of arithmetic_probe(path, dot).
std::int64_t arithmetic_probe_flops(const std::string& path, bool dot);
/// Independent chains of the path's FMA (or bf16 dot or tiles when `dot`) in registers.
float arithmetic_probe(const std::string& path, bool dot);

}  // namespace dendrite::bench
