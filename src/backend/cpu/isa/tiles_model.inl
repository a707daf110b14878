// Matrix tiles as AMX has them (tiles_amx.inl), bit for bit, in plain C++.
// Included inside an unnamed namespace by the path's file.

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) : shapes_(shapes) {}
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() {
    __builtin_memset(data_[kTile], 0, sizeof data_[kTile]);
  }
  template <int kTile>
  void load(const void* from, std::int64_t stride) {
    for (int row = 0; row < shapes_.rows[kTile]; ++row) {
      __builtin_memcpy(data_[kTile][row], static_cast<const std::byte*>(from) + row * stride,
                       shapes_.row_bytes[kTile]);
    }
  }
  template <int kTile>
  void store(void* to, std::int64_t stride) {
    for (int row = 0; row < shapes_.rows[kTile]; ++row) {
      __builtin_memcpy(static_cast<std::byte*>(to) + row * stride, data_[kTile][row],
                       shapes_.row_bytes[kTile]);
    }
  }
  static void fetch(const std::byte*) {}
  template <int kC, int kA, int kB>
  void multiply_add() {
    const int pairs = shapes_.row_bytes[kA] / 4;
    for (int m = 0; m < shapes_.rows[kC]; ++m) {
      for (int n = 0; n < shapes_.row_bytes[kC] / 4; ++n) {
        float even = 0.0f;
        float odd = 0.0f;
        for (int k = 0; k < pairs; ++k) {
          const std::uint32_t a = data_[kA][m][k];
          const std::uint32_t b = data_[kB][k][n];
          even = flushed(__builtin_fmaf(value(a << 16), value(b << 16), even));
          odd = flushed(__builtin_fmaf(value(a & 0xffff0000u), value(b & 0xffff0000u), odd));
        }
        const float sum = flushed(value(data_[kC][m][n]) + flushed(even + odd));
        __builtin_memcpy(&data_[kC][m][n], &sum, sizeof sum);
      }
    }
  }

 private:
  static float value(std::uint32_t bits) {
    if ((bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  static float flushed(float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return value(bits);
  }

  TileShapes shapes_;
  std::uint32_t data_[8][16][16];
};
