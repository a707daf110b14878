#pragma once

#include <cstdint>

#include "backend/cuda/base/hopper.cuh"

// Products of a warpgroup whose operands both lie in shared memory (compute capability 9.0).
namespace dendrite::cuda {

/// What is multiplied: rows of 128 bytes are 64 bf16, or 128 numbers in E4M3. An instruction takes
/// 32 bytes of them.
enum class Operand : std::uint8_t { kBF16, kE4M3 };

/// multiply_add<operand>(c, a, b, add): c = add ? c + a b^T : a b^T, a [64, 32 bytes], b [outputs,
/// 32 bytes]: low halves of tile descriptors; outputs: twice the values of c.
template <Operand kOperand, int kCount>
struct Wgmma;

// clang-format off
#define DENDRITE_SUMS8(i)                                                                   \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), \
      "+f"(c[i + 6]), "+f"(c[i + 7])
#define DENDRITE_SUMS16(i) DENDRITE_SUMS8(i), DENDRITE_SUMS8(i + 8)
#define DENDRITE_SUMS32(i) DENDRITE_SUMS16(i), DENDRITE_SUMS16(i + 16)
#define DENDRITE_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define DENDRITE_NAMES12 DENDRITE_NAMES8 ", %8, %9, %10, %11"
#define DENDRITE_NAMES16 DENDRITE_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DENDRITE_NAMES24 DENDRITE_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define DENDRITE_NAMES32 DENDRITE_NAMES24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define DENDRITE_NAMES48 DENDRITE_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DENDRITE_NAMES56 DENDRITE_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define DENDRITE_NAMES64 DENDRITE_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define DENDRITE_NAMES72 DENDRITE_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71"

// a, b, add: the numbers of the operands behind the sums.
#define DENDRITE_WGMMA(operand, k_types, transposes, count, outputs, a, b, add, ...)             \
  template <>                                                                                    \
  struct Wgmma<operand, count> {                                                                 \
    static __device__ void run(float (&c)[count], std::uint32_t x, std::uint32_t w, bool more) { \
      asm volatile(                                                                              \
          "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %" add ", 0;\n"                 \
          "mov.b64 a, {%" a ", 0x40000040};\nmov.b64 b, {%" b ", 0x40000040};\n"                 \
          "wgmma.mma_async.sync.aligned.m64n" outputs k_types " {" DENDRITE_NAMES##count         \
          "}, a, b, add, 1, 1" transposes ";\n}"                                                 \
          : __VA_ARGS__                                                                          \
          : "r"(x), "r"(w), "r"(static_cast<int>(more)));                                        \
    }                                                                                            \
  };
#define DENDRITE_WGMMA_OF(count, outputs, a, b, add, ...)                                         \
  DENDRITE_WGMMA(Operand::kBF16, "k16.f32.bf16.bf16", ", 0, 0", count, outputs, a, b, add, __VA_ARGS__) \
  DENDRITE_WGMMA(Operand::kE4M3, "k32.f32.e4m3.e4m3", "", count, outputs, a, b, add, __VA_ARGS__)
DENDRITE_WGMMA_OF(8, "16", "8", "9", "10", DENDRITE_SUMS8(0))
DENDRITE_WGMMA_OF(12, "24", "12", "13", "14", DENDRITE_SUMS8(0), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]))
DENDRITE_WGMMA_OF(16, "32", "16", "17", "18", DENDRITE_SUMS16(0))
DENDRITE_WGMMA_OF(24, "48", "24", "25", "26", DENDRITE_SUMS16(0), DENDRITE_SUMS8(16))
DENDRITE_WGMMA_OF(32, "64", "32", "33", "34", DENDRITE_SUMS32(0))
DENDRITE_WGMMA_OF(48, "96", "48", "49", "50", DENDRITE_SUMS32(0), DENDRITE_SUMS16(32))
DENDRITE_WGMMA_OF(56, "112", "56", "57", "58", DENDRITE_SUMS32(0), DENDRITE_SUMS16(32), DENDRITE_SUMS8(48))
DENDRITE_WGMMA_OF(64, "128", "64", "65", "66", DENDRITE_SUMS32(0), DENDRITE_SUMS32(32))
DENDRITE_WGMMA_OF(72, "144", "72", "73", "74", DENDRITE_SUMS32(0), DENDRITE_SUMS32(32), DENDRITE_SUMS8(64))

/// multiply_add_e4m3(), multiply_add_bf16(): the same of 64 outputs, with a in registers, of each warp
/// 16 rows as an m16n8k16 product has its left operand.
__device__ inline void multiply_add_e4m3(float (&c)[32], const std::uint32_t (&a)[4], std::uint32_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %37, 0;\nmov.b64 b, {%36, 0x40000040};\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" DENDRITE_NAMES32
      "}, {%32, %33, %34, %35}, b, add, 1, 1;\n}"
      : DENDRITE_SUMS32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_add_bf16(float (&c)[32], const std::uint32_t (&a)[4], std::uint32_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %37, 0;\nmov.b64 b, {%36, 0x40000040};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" DENDRITE_NAMES32
      "}, {%32, %33, %34, %35}, b, add, 1, 1, 0;\n}"
      : DENDRITE_SUMS32(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(add)));
}

/// multiply_transposed(): c = add ? c + a b : a b, both in shared memory; a [64, 16], b [16, 64 or 32 outputs], its
/// rows in 128 bytes. multiply_eight(): c = add ? c + a b^T : a b^T, b [8, 16].
#define DENDRITE_WGMMA_SHARED(name, count, outputs, transposes, a, b, add, ...)                             \
  __device__ inline void name(float (&c)[count], std::uint32_t x, std::uint32_t w, bool more) {            \
    asm volatile(                                                                                          \
        "{\n.reg .pred add;\n.reg .b64 a, b;\nsetp.ne.b32 add, %" add ", 0;\n"                           \
        "mov.b64 a, {%" a ", 0x40000040};\nmov.b64 b, {%" b ", 0x40000040};\n"                            \
        "wgmma.mma_async.sync.aligned.m64n" outputs "k16.f32.bf16.bf16 {" DENDRITE_NAMES##count            \
        "}, a, b, add, 1, 1" transposes ";\n}"                                                            \
        : __VA_ARGS__                                                                                      \
        : "r"(x), "r"(w), "r"(static_cast<int>(more)));                                                    \
  }
#define DENDRITE_NAMES4 "%0, %1, %2, %3"
DENDRITE_WGMMA_SHARED(multiply_transposed, 32, "64", ", 0, 1", "32", "33", "34", DENDRITE_SUMS32(0))
DENDRITE_WGMMA_SHARED(multiply_transposed, 16, "32", ", 0, 1", "16", "17", "18", DENDRITE_SUMS16(0))
DENDRITE_WGMMA_SHARED(multiply_eight, 4, "8", ", 0, 0", "4", "5", "6", "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]))
// clang-format on
#undef DENDRITE_WGMMA_OF
#undef DENDRITE_WGMMA_SHARED
#undef DENDRITE_WGMMA
#undef DENDRITE_NAMES64
#undef DENDRITE_NAMES56
#undef DENDRITE_NAMES48
#undef DENDRITE_NAMES32
#undef DENDRITE_NAMES24
#undef DENDRITE_NAMES16
#undef DENDRITE_NAMES12
#undef DENDRITE_NAMES8
#undef DENDRITE_NAMES4
#undef DENDRITE_SUMS32
#undef DENDRITE_SUMS16
#undef DENDRITE_SUMS8

template <Operand kOperand, int kCount>
__device__ inline void multiply_add(float (&c)[kCount], std::uint32_t a, std::uint32_t b,
                                    bool add) {
  Wgmma<kOperand, kCount>::run(c, a, b, add);
}

}  // namespace dendrite::cuda
