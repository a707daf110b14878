#include "io/gguf_rows.h"

#include <algorithm>
#include <span>

#include "dendrite/error.h"
#include "io/json_file.h"

namespace dendrite {
namespace {

constexpr std::string_view kDeltaNet = ".linear_attn.";

/// Less ".weight", ".bias" and the like.
std::string_view less_kind(std::string_view name) {
  return name.substr(0, name.rfind('.'));
}

bool is_paired(std::string_view name) {
  const std::string_view of = less_kind(name);
  return of.ends_with(".q_proj") || of.ends_with(".k_proj");
}

/// Rows that are not a value head's lie in front of those that are.
struct HeadRows {
  std::int64_t before = 0;
  std::int64_t each = 0;  // 0: there are none
};

HeadRows rows_of_heads(const GgufLayout& layout, std::string_view name) {
  const auto at = name.find(kDeltaNet);
  if (!layout.tiled || at == name.npos) return {};
  const std::string_view part = name.substr(at + kDeltaNet.size());
  const auto is = [&](std::string_view one) { return part == one || less_kind(part) == one; };
  if (is("in_proj_qkv") || is("conv1d")) {
    return {2 * layout.key_heads * layout.key_dim, layout.value_dim};
  }
  if (is("in_proj_z")) return {0, layout.value_dim};
  if (is("in_proj_a") || is("in_proj_b") || is("minus_decay") || is("dt_bias")) return {0, 1};
  return {};
}

/// Columns of value heads that lie in turns, put in order block by block.
class OrderedFormat final : public Format {
 public:
  OrderedFormat(const StoredMatrix& stored, const GgufLayout& layout)
      : Format(stored.format->name(), stored.format->stored_type(), stored.format->block(),
               stored.format->block_bytes()),
        stored_(stored),
        layout_(layout) {}

  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const Format& format = *stored_.format;
    std::vector<float> blocks;
    for (std::int64_t done = 0; done < std::ssize(out);) {
      const std::int64_t column = begin + done;
      const std::int64_t in_head = column % layout_.value_dim;
      const std::int64_t count = std::min(layout_.value_dim - in_head, std::ssize(out) - done);
      const std::int64_t from =
          layout_.place_of(column / layout_.value_dim) * layout_.value_dim + in_head;
      const std::int64_t first = from / format.block() * format.block();
      const std::int64_t end = (from + count + format.block() - 1) / format.block();
      blocks.resize(static_cast<std::size_t>(end * format.block() - first));
      format.widen(stored_, row, first, blocks);
      std::copy_n(blocks.begin() + (from - first), count, out.begin() + done);
      done += count;
    }
  }

 private:
  StoredMatrix stored_;
  GgufLayout layout_;
};

}  // namespace

bool GgufLayout::adds_one(std::string_view name) const {
  const bool is_norm = name.ends_with("norm.weight") || name.starts_with("mtp.pre_fc_norm");
  return zero_centred && is_norm && name.find(kDeltaNet) == name.npos;
}

bool GgufLayout::has_columns_in_turns(std::string_view name) const {
  return tiled && key_heads < value_heads && name.ends_with(".linear_attn.out_proj.weight");
}

std::int64_t GgufLayout::place_of(std::int64_t head) const {
  const std::int64_t of_key_head = value_heads / key_heads;
  return head % of_key_head * key_heads + head / of_key_head;
}

std::vector<RowRun> row_runs(const GgufLayout& layout, std::string_view name, std::int64_t rows,
                             std::string_view file) {
  const auto fail = [&](const std::string& expected) {
    throw Error(std::string(file) + ": tensor " + in_quotes(name) + " has " + std::to_string(rows) +
                " rows, expected " + expected);
  };
  std::vector<RowRun> runs;
  if (layout.paired && is_paired(name)) {
    const std::int64_t size = layout.head_dim;
    if (size < 2 || size % 2 != 0 || rows % size != 0) {
      fail("whole heads of an even number, got " + std::to_string(size));
    }
    for (std::int64_t head = 0; head < rows; head += size) {
      for (const std::int64_t half : {0, 1}) runs.push_back({head + half, size / 2, 2});
    }
    return runs;
  }
  const HeadRows heads = rows_of_heads(layout, name);
  if (heads.each == 0) return runs;
  const std::int64_t all = heads.before + layout.value_heads * heads.each;
  if (rows != all) fail(std::to_string(all) + ", as the metadata says");
  if (heads.before > 0) runs.push_back({0, heads.before});
  for (std::int64_t head = 0; head < layout.value_heads; ++head) {
    runs.push_back({heads.before + layout.place_of(head) * heads.each, heads.each});
  }
  return runs;
}

ColumnOrder::ColumnOrder(const StoredMatrix& stored, const GgufLayout& layout) : matrix_(stored) {
  if (stored.format->number()) {
    copy(stored, layout);
    return;
  }
  format_ = std::make_unique<OrderedFormat>(stored, layout);
  matrix_.format = format_.get();
}

void ColumnOrder::copy(const StoredMatrix& stored, const GgufLayout& layout) {
  const std::int64_t size = layout.value_dim * stored.format->block_bytes();  // of a head
  matrix_.stride = layout.value_heads * size;
  bytes_.resize(static_cast<std::size_t>(stored.rows * matrix_.stride));
  matrix_.data = bytes_.data();
  for (std::int64_t row = 0; row < stored.rows; ++row) {
    for (std::int64_t head = 0; head < layout.value_heads; ++head) {
      std::copy_n(stored.row(row) + layout.place_of(head) * size, size,
                  bytes_.data() + row * matrix_.stride + head * size);
    }
  }
}

}  // namespace dendrite
