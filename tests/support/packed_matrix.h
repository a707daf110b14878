#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

// Matrices in formats of 8 and 4 bits as files of others have them, and what they mean.
namespace dendrite::test {

struct PackedTensor {
  std::string name;
  std::string type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

struct PackedMatrix {
  std::vector<PackedTensor> tensors;
  std::vector<float> meant;  // [rows, cols]
};

inline const std::vector<std::string>& packed_kinds() {
  static const std::vector<std::string> kinds{
      "fp8_tensor",    "fp8_channel", "fp8_block",        "fp8_block_named_scale",
      "int8",          "int4",        "int4_zeros",       "awq",
      "gptq",          "gptq_order",  "fp8_block_powers", "mxfp8",
      "mxfp8_typed",   "nvfp4",       "nvfp4_modelopt",   "mxfp4",
      "mxfp4_modelopt"};
  return kinds;
}

/// Random numbers in one of packed_kinds(), for a matrix "....weight" of rows and columns that are
/// multiples of 32, in groups of `group` columns where a format leaves that open.
class Packer {
 public:
  explicit Packer(std::int64_t group = 32) : group_(group) {}

  PackedMatrix pack(const std::string& kind, const std::string& name, std::int64_t rows,
                    std::int64_t cols) {
    out_ = {};
    name_ = name;
    base_ = name.substr(0, name.size() - std::string("weight").size());
    rows_ = rows;
    cols_ = cols;
    out_.meant.resize(static_cast<std::size_t>(rows * cols));
    if (kind.starts_with("fp8")) {
      fp8(kind);
    } else if (kind.starts_with("mxfp8")) {
      mxfp8(kind == "mxfp8_typed" ? "F8_E8M0" : "U8");
    } else if (kind.starts_with("nvfp4") || kind.starts_with("mxfp4")) {
      e2m1(kind.starts_with("nvfp4"), kind.ends_with("modelopt"));
    } else if (kind == "int8") {
      int8();
    } else if (kind.starts_with("int4")) {
      int4(kind == "int4_zeros");
    } else {
      transposed(kind);
    }
    return std::move(out_);
  }

 private:
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  float& meant(std::int64_t row, std::int64_t col) {
    return out_.meant[static_cast<std::size_t>(row * cols_ + col)];
  }
  /// The values are exact in every number type, and small enough for a layer.
  std::vector<float> scales(std::int64_t count, float unit) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(1 + below(7)) * unit;
    return values;
  }
  void add(const std::string& name, const std::string& type, std::vector<std::int64_t> shape,
           const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.tensors.push_back({name, type, std::move(shape), {bytes, bytes + size}});
  }
  void add_f32(const std::string& name, std::vector<std::int64_t> shape,
               const std::vector<float>& values) {
    add(name, "F32", std::move(shape), values.data(), 4 * values.size());
  }
  void add_f16(const std::string& name, std::vector<std::int64_t> shape,
               const std::vector<float>& values) {
    std::vector<std::uint16_t> bits;
    for (const float value : values) {  // normal numbers without a rest
      int exponent = 0;
      const float fraction = std::frexp(value, &exponent);
      bits.push_back(static_cast<std::uint16_t>((exponent + 14) << 10 |
                                                (static_cast<int>(fraction * 2048) & 1023)));
    }
    add(name, "F16", std::move(shape), bits.data(), 2 * bits.size());
  }
  void add_words(const std::string& name, std::vector<std::int64_t> shape,
                 const std::vector<std::uint32_t>& words) {
    add(name, "I32", std::move(shape), words.data(), 4 * words.size());
  }

  static float e4m3(unsigned code) {
    const int exponent = static_cast<int>(code >> 3 & 15);
    const auto mantissa = static_cast<float>(code & 7);
    const float value = exponent == 0 ? mantissa / 8 * std::pow(2.0F, -6.0F)
                                      : (1 + mantissa / 8) * std::pow(2.0F, exponent - 7.0F);
    return code < 128 ? value : -value;
  }

  void fp8(const std::string& kind) {
    const std::int64_t across = (cols_ + 127) / 128;
    const std::int64_t down = (rows_ + 127) / 128;
    const bool blocks = kind.starts_with("fp8_block");
    const bool channel = kind == "fp8_channel";
    const bool powers = kind == "fp8_block_powers";
    std::vector<float> scale = scales(blocks    ? down * across
                                      : channel ? rows_
                                                : 1,
                                      std::pow(2.0F, -12.0F));
    std::vector<std::uint8_t> exponents;
    for (float& value : scale) {
      if (powers) value = power(exponents);
    }
    std::vector<std::uint8_t> codes;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        auto code = static_cast<unsigned>(below(256));
        if ((code & 127) == 127) code = 0;  // NaN
        codes.push_back(static_cast<std::uint8_t>(code));
        const std::int64_t at = blocks ? r / 128 * across + c / 128 : channel ? r : 0;
        meant(r, c) = e4m3(code) * scale[static_cast<std::size_t>(at)];
      }
    }
    add(name_, "F8_E4M3", {rows_, cols_}, codes.data(), codes.size());
    if (powers) {
      add(name_ + "_scale_inv", "F8_E8M0", {down, across}, exponents.data(), exponents.size());
    } else if (kind == "fp8_block") {
      add_f32(name_ + "_scale_inv", {down, across}, scale);
    } else if (blocks) {
      add_f32(name_ + "_scale", {down, across}, scale);
    } else if (channel) {
      add_f32(name_ + "_scale", {rows_, 1}, scale);
    } else {
      add_f32(name_ + "_scale", {}, scale);
    }
  }

  /// A power of two that becomes a byte of E8M0.
  float power(std::vector<std::uint8_t>& bytes) {
    const std::int64_t exponent = below(4) - 12;
    bytes.push_back(static_cast<std::uint8_t>(127 + exponent));
    return std::pow(2.0F, static_cast<float>(exponent));
  }

  void mxfp8(const char* type) {
    std::vector<std::uint8_t> codes, exponents;
    float scale = 0;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        if (c % 32 == 0) scale = power(exponents);
        auto code = static_cast<unsigned>(below(256));
        if ((code & 127) == 127) code = 0;  // NaN
        codes.push_back(static_cast<std::uint8_t>(code));
        meant(r, c) = e4m3(code) * scale;
      }
    }
    add(name_, "F8_E4M3", {rows_, cols_}, codes.data(), codes.size());
    add(name_ + "_scale", type, {rows_, cols_ / 32}, exponents.data(), exponents.size());
  }

  void e2m1(bool nv, bool modelopt) {
    const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    const std::int64_t group = nv ? 16 : 32;
    const float whole = modelopt ? 0.00011F : 8192.3F;  // not a power of two: it rounds
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows_ * cols_ / 2));
    std::vector<std::uint8_t> codes;
    float scale = 0;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        if (c % group == 0) {
          if (nv) {
            codes.push_back(static_cast<std::uint8_t>(1 + below(126)));
            scale = modelopt ? e4m3(codes.back()) * whole : e4m3(codes.back()) / whole;
          } else {
            scale = power(codes);
          }
        }
        const std::int64_t code = below(16);
        bytes[static_cast<std::size_t>((r * cols_ + c) / 2)] |=
            static_cast<std::uint8_t>(code << (c % 2 * 4));
        meant(r, c) = (code < 8 ? 1.0F : -1.0F) * values[code % 8] * scale;
      }
    }
    add(name_ + (modelopt ? "" : "_packed"), "U8", {rows_, cols_ / 2}, bytes.data(), bytes.size());
    add(name_ + "_scale", nv ? "F8_E4M3" : "U8", {rows_, cols_ / group}, codes.data(),
        codes.size());
    if (!nv) return;
    if (modelopt) {
      add_f32(name_ + "_scale_2", {}, {whole});
    } else {
      add_f32(name_ + "_global_scale", {1}, {whole});
    }
  }

  void int8() {
    const std::vector<float> scale = scales(rows_, std::pow(2.0F, -11.0F));
    std::vector<std::int8_t> values;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        values.push_back(static_cast<std::int8_t>(below(256) - 128));
        meant(r, c) = static_cast<float>(values.back()) * scale[static_cast<std::size_t>(r)];
      }
    }
    add(name_, "I8", {rows_, cols_}, values.data(), values.size());
    add_f16(name_ + "_scale", {rows_, 1}, scale);
  }

  /// Four-bit numbers of [rows, cols], a scale and a zero point for each group of each row.
  struct Fours {
    std::vector<unsigned> values, zeros;
    std::vector<float> scales;
  };
  Fours fours(const std::vector<std::int64_t>& group_of_col, bool zeros) {
    const std::int64_t groups = cols_ / group_;
    Fours out;
    out.scales = scales(rows_ * groups, std::pow(2.0F, -7.0F));
    for (std::int64_t i = 0; i < rows_ * groups; ++i) {
      out.zeros.push_back(static_cast<unsigned>(zeros ? 1 + below(15) : 8));
    }
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        const auto at =
            static_cast<std::size_t>(r * groups + group_of_col[static_cast<std::size_t>(c)]);
        out.values.push_back(static_cast<unsigned>(below(16)));
        meant(r, c) = (static_cast<float>(out.values.back()) - static_cast<float>(out.zeros[at])) *
                      out.scales[at];
      }
    }
    return out;
  }
  std::vector<std::int64_t> neighbours() const {
    std::vector<std::int64_t> groups;
    for (std::int64_t c = 0; c < cols_; ++c) groups.push_back(c / group_);
    return groups;
  }
  static void put(std::vector<std::uint32_t>& words, std::int64_t word, std::int64_t place,
                  unsigned value) {
    words[static_cast<std::size_t>(word)] |= value << (4 * place);
  }

  void int4(bool zeros) {
    const std::int64_t groups = cols_ / group_;
    const Fours of = fours(neighbours(), zeros);
    std::vector<std::uint32_t> words(static_cast<std::size_t>(rows_ * cols_ / 8));
    for (std::int64_t i = 0; i < rows_ * cols_; ++i) {
      put(words, i / 8, i % 8, of.values[static_cast<std::size_t>(i)]);
    }
    add_words(name_ + "_packed", {rows_, cols_ / 8}, words);
    add_f16(name_ + "_scale", {rows_, groups}, of.scales);
    if (!zeros) return;
    std::vector<std::uint32_t> packed(static_cast<std::size_t>(rows_ / 8 * groups));
    for (std::int64_t i = 0; i < rows_ * groups; ++i) {
      const std::int64_t row = i / groups;
      put(packed, row / 8 * groups + i % groups, row % 8, of.zeros[static_cast<std::size_t>(i)]);
    }
    add_words(name_ + "_zero_point", {rows_ / 8, groups}, packed);
  }

  void transposed(const std::string& kind) {
    const std::int64_t groups = cols_ / group_;
    std::vector<std::int64_t> group_of_col = neighbours();
    if (kind == "gptq_order") {
      for (std::int64_t c = 0; c < cols_; ++c) {
        group_of_col[static_cast<std::size_t>(c)] = c * 5 % groups;
      }
    }
    const Fours of = fours(group_of_col, true);
    const bool awq = kind == "awq";
    // Where AWQ puts each of eight rows.
    const std::int64_t order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    std::vector<std::uint32_t> words(static_cast<std::size_t>(rows_ * cols_ / 8));
    std::vector<std::uint32_t> zeros(static_cast<std::size_t>(rows_ / 8 * groups));
    std::vector<float> scale(of.scales.size());
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < cols_; ++c) {
        const unsigned value = of.values[static_cast<std::size_t>(r * cols_ + c)];
        if (awq) {
          put(words, c * (rows_ / 8) + r / 8, order[r % 8], value);
        } else {
          put(words, c / 8 * rows_ + r, c % 8, value);
        }
      }
      for (std::int64_t g = 0; g < groups; ++g) {
        const auto at = static_cast<std::size_t>(r * groups + g);
        put(zeros, g * (rows_ / 8) + r / 8, awq ? order[r % 8] : r % 8,
            awq ? of.zeros[at] : of.zeros[at] - 1);
        scale[static_cast<std::size_t>(g * rows_ + r)] = of.scales[at];
      }
    }
    if (awq) {
      add_words(base_ + "qweight", {cols_, rows_ / 8}, words);
    } else {
      add_words(base_ + "qweight", {cols_ / 8, rows_}, words);
    }
    add_words(base_ + "qzeros", {groups, rows_ / 8}, zeros);
    add_f16(base_ + "scales", {groups, rows_}, scale);
    if (awq) return;
    const std::vector<std::int32_t> index(group_of_col.begin(), group_of_col.end());
    add(base_ + "g_idx", "I32", {cols_}, index.data(), 4 * index.size());
  }

  std::int64_t group_;
  std::mt19937 random_{7};
  PackedMatrix out_;
  std::string name_, base_;
  std::int64_t rows_ = 0, cols_ = 0;
};

}  // namespace dendrite::test
