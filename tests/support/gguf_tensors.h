#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace dendrite::test {

/// A tensor on its way into a file.
struct GgufTensor {
  std::string name;  // as a folder has it
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  std::int64_t width() const {  // of a row
    std::int64_t width = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) width *= shape[i];
    return width;
  }
  bool is(const std::string& end) const { return name.ends_with(end); }
};

/// Row order[i] becomes row i.
inline void take_rows(GgufTensor& tensor, const std::vector<std::int64_t>& order) {
  const std::int64_t width = tensor.width();
  std::vector<float> out;
  for (const std::int64_t row : order) {
    const auto begin = tensor.values.begin() + row * width;
    out.insert(out.end(), begin, begin + width);
  }
  tensor.values = std::move(out);
  tensor.shape[0] = std::ssize(order);
}

inline std::vector<std::int64_t> rows_between(std::int64_t first, std::int64_t end,
                                              std::int64_t step = 1) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = first; row < end; row += step) rows.push_back(row);
  return rows;
}

/// Row i of half h of a head becomes its row 2i + h.
inline void put_in_pairs(GgufTensor& tensor, std::int64_t head_dim) {
  std::vector<std::int64_t> order;
  for (std::int64_t head = 0; head < tensor.shape[0]; head += head_dim) {
    for (std::int64_t i = 0; i < head_dim; ++i) {
      order.push_back(head + i % 2 * (head_dim / 2) + i / 2);
    }
  }
  take_rows(tensor, order);
}

/// [experts, rows, columns] with the last two the other way round.
inline void transpose_each(GgufTensor& tensor) {
  const std::int64_t rows = tensor.shape[1], cols = tensor.shape[2];
  std::vector<float> out;
  for (std::int64_t of = 0; of < tensor.shape[0]; ++of) {
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) {
        out.push_back(tensor.values[static_cast<std::size_t>((of * rows + r) * cols + c)]);
      }
    }
  }
  tensor.values = std::move(out);
  std::swap(tensor.shape[1], tensor.shape[2]);
}

/// Of each of tensor.shape[0] matrices, or vectors, these rows, under another name.
inline GgufTensor rows_of_each(const GgufTensor& tensor, const std::vector<std::int64_t>& rows,
                               const std::string& end, const std::string& other) {
  GgufTensor out = tensor;
  out.name.replace(out.name.size() - end.size(), end.size(), other);
  const std::int64_t count = tensor.shape[1];
  out.shape[0] *= count;
  out.shape.erase(out.shape.begin() + 1);
  std::vector<std::int64_t> all;
  for (std::int64_t of = 0; of < tensor.shape[0]; ++of) {
    for (const std::int64_t row : rows) all.push_back(of * count + row);
  }
  take_rows(out, all);
  out.shape[0] = tensor.shape[0];
  out.shape.insert(out.shape.begin() + 1, std::ssize(rows));
  return out;
}

/// What llama.cpp's converter does to a delta network, whose value heads of a key head lie beside
/// each other in a folder. qwen3_5: it puts them in turns of the key heads. qwen3_next: it parts
/// what goes in.
class GgufDeltaNet {
 public:
  explicit GgufDeltaNet(const nlohmann::json& config)
      : keys_(config["linear_num_key_heads"]),
        values_(config["linear_num_value_heads"]),
        key_dim_(config["linear_key_head_dim"]),
        value_dim_(config["linear_value_head_dim"]),
        tiled_(config["model_type"] != "qwen3_next") {}

  std::vector<GgufTensor> convert(GgufTensor tensor) const {
    if (tensor.is(".A_log")) {
      for (float& value : tensor.values) value = -std::exp(value);
    }
    if (tensor.is(".conv1d.weight")) tensor.shape.erase(tensor.shape.begin() + 1);
    if (tensor.is(".in_proj_qkvz.weight")) return parted(tensor);
    if (!tiled_) return {tensor};
    const std::int64_t before = 2 * keys_ * key_dim_;
    if (tensor.is(".in_proj_qkv.weight") || tensor.is(".conv1d.weight")) {
      std::vector<std::int64_t> order = rows_between(0, before);
      for (const std::int64_t row : in_turns(value_dim_)) order.push_back(before + row);
      take_rows(tensor, order);
    } else if (tensor.is(".in_proj_z.weight")) {
      take_rows(tensor, in_turns(value_dim_));
    } else if (tensor.is(".out_proj.weight")) {
      take_columns(tensor, in_turns(value_dim_));
    } else if (!tensor.is(".norm.weight")) {
      take_rows(tensor, in_turns(1));
    }
    return {tensor};
  }

 private:
  std::vector<std::int64_t> in_turns(std::int64_t size) const {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < values_ / keys_; ++i) {
      for (std::int64_t key = 0; key < keys_; ++key) {
        for (std::int64_t row = 0; row < size; ++row) {
          order.push_back((key * (values_ / keys_) + i) * size + row);
        }
      }
    }
    return order;
  }
  static void take_columns(GgufTensor& tensor, const std::vector<std::int64_t>& order) {
    std::vector<float> out;
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
      for (const std::int64_t column : order) {
        out.push_back(tensor.values[static_cast<std::size_t>(row * tensor.shape[1] + column)]);
      }
    }
    tensor.values = std::move(out);
  }
  /// Queries, keys and values of all heads, and gates of all.
  std::vector<GgufTensor> parted(const GgufTensor& tensor) const {
    const std::int64_t values = values_ / keys_ * value_dim_;
    const std::int64_t turn = 2 * key_dim_ + 2 * values;
    const auto rows = [&](std::int64_t first, std::int64_t count, std::vector<std::int64_t>& out) {
      for (std::int64_t key = 0; key < keys_; ++key) {
        for (std::int64_t i = 0; i < count; ++i) out.push_back(key * turn + first + i);
      }
    };
    std::vector<std::int64_t> qkv, z;
    rows(0, key_dim_, qkv);
    rows(key_dim_, key_dim_, qkv);
    rows(2 * key_dim_, values, qkv);
    rows(2 * key_dim_ + values, values, z);
    GgufTensor in = tensor, gates = tensor;
    const std::string end = "_qkvz.weight";
    in.name.replace(in.name.size() - end.size(), end.size(), "_qkv.weight");
    gates.name.replace(gates.name.size() - end.size(), end.size(), "_z.weight");
    take_rows(in, qkv);
    take_rows(gates, z);
    return {in, gates};
  }

  std::int64_t keys_, values_, key_dim_, value_dim_;
  bool tiled_;
};

}  // namespace dendrite::test
