// Matrix tiles by AMX. A tile is up to 16 rows of 64 bytes, in one of eight registers; a product takes
// rows of A (pairs of bf16) and B (pairs side by side: a row is one pair of k and 16 columns) to
//   C[m][n] += (sum over pairs of the even values' products) + (the same of the odd values')
// each sum a chain of fused multiply-adds from zero in ascending order; subnormal values of A, B and C
// count as zero, and subnormal results become zero. One product takes as many cycles as A has rows.
// Source: Intel's manual, TDPBF16PS. Included inside an unnamed namespace by the path's file.

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = shapes.row_bytes[i];
      config.rows[i] = shapes.rows[i];
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  DENDRITE_INLINE void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// Rows are `stride` bytes apart.
  template <int kTile>
  DENDRITE_INLINE void load(const void* from, std::int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(stride), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  DENDRITE_INLINE void store(void* to, std::int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(to), "r"(stride), "i"(kTile)
                     : "memory");
  }
  /// Reads a line for its effect on the caches.
  static DENDRITE_INLINE void fetch(const std::byte* line) {
    const __m512i value = _mm512_loadu_si512(line);
    __asm__ volatile("" : : "v"(value));
  }
  template <int kC, int kA, int kB>
  DENDRITE_INLINE void multiply_add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};
