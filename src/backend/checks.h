#pragma once

#include <span>

#include "backend/kv_move.h"
#include "backend/kv_store.h"
#include "backend/ops.h"
#include "backend/rows.h"
#include "backend/state_store.h"
#include "backend/tensor.h"
#include "backend/weight.h"

// What every backend checks before it computes. All throw Error naming the op, what was got and
// what was expected.
namespace dendrite {

void check_count(const char* op, std::int64_t count);
void check_shape(const char* op, const char* what, const Tensor& tensor, std::int64_t rows,
                 std::int64_t cols);
/// `drawn`: how many draws the device knows, which tokens below 0 name.
void check_embed(const Tensor& out, std::span<const std::int32_t> tokens, const Weight& weight,
                 std::int64_t drawn = 0);
void check_matmul(const Tensor& out, const Tensor& x, const Weight& weight);
/// And of what is joined to it all but rope_and_store, which has a check of its own.
void check_product(const Product& args);
void check_head_products(const HeadProducts& args);
void check_copy_heads(const HeadCopies& args);
void check_gather(const Tensor& out, const Tensor& x, std::span<const std::int32_t> rows);
void check_rope(const RopeStore& args);
void check_attention(const AttentionArgs& args);
void check_move_kv(const KvMoves& args);
void check_delta_net(const DeltaNet& args);
void check_short_conv(const ShortConv& args);
void check_mamba(const Mamba& args);
void check_experts(const Experts& args);
void check_choose_experts(std::span<const ExpertChoice> out, const Tensor& logits,
                          const Routing& routing);
void check_add_rows(const Tensor& out, const Tensor& x, std::span<const std::int32_t> rows,
                    std::span<const float> factors);
void check_gate(const Rows& out, const Tensor& x, const Tensor& gate);
void check_activate(const Tensor& out, const Tensor& gate_up, const Activation& activation);
void check_squared_relu(const Tensor& x);
void check_scale(const Tensor& x, float factor, float cap);

void check_kv_shape(const KvShape& shape);
void check_page(const char* op, const KvShape& shape, std::int64_t page, std::int64_t tokens);
/// Arguments of KvStore::read and write beyond the page; sizes of `k` and `v` in values.
void check_page_values(const char* op, const KvShape& shape, std::int64_t layer,
                       std::int32_t tokens, std::size_t k, std::size_t v);
/// Bytes of KvStore::export_page and import_page.
void check_page_bytes(const char* op, const KvShape& shape, std::size_t bytes);
/// Arguments of KvStore::read_raw and write_raw.
void check_raw(const char* op, const KvStore& store, std::int64_t page, std::size_t bytes);

void check_state_shape(const StateShape& shape);
/// A slot of a StateStore, and the values of all its layers.
void check_anchor(const char* op, const StateShape& shape, std::int64_t slot, std::size_t values);
void check_journal(const char* op, const StateShape& shape, std::int64_t slot, std::size_t values);

}  // namespace dendrite
