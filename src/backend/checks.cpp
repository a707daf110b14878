#include "backend/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "dendrite/error.h"

namespace dendrite {
namespace {

[[noreturn]] void fail(const char* op, const std::string& text) {
  throw Error(std::string(op) + ": " + text);
}

void check_size(const char* op, const char* what, std::int64_t got, std::int64_t expected) {
  if (got == expected) return;
  fail(op,
       std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(expected));
}

/// 0 <= got < count
void check_index(const char* op, const char* what, std::int64_t got, std::int64_t count,
                 std::int64_t lowest = 0) {
  if (got >= lowest && got < count) return;
  fail(op, std::string(what) + " is " + std::to_string(got) + ", expected " +
               std::to_string(lowest) + ".." + std::to_string(count - 1));
}

void check_rotary_dim(const char* op, std::int64_t rotary_dim, std::int64_t head_dim) {
  if (rotary_dim % 2 == 0 && rotary_dim >= 0 && rotary_dim <= head_dim) return;
  fail(op, "rotary_dim is " + std::to_string(rotary_dim) +
               ", expected an even number up to head_dim " + std::to_string(head_dim));
}

/// For check_shape, which reads nothing.
Tensor shape_of(const Rows& rows) {
  return {static_cast<float*>(rows.data), rows.rows, rows.cols, rows.ld};
}

void check_positive(const char* op, const char* what, std::int64_t got) {
  if (got > 0) return;
  fail(op, std::string(what) + " is " + std::to_string(got) + ", expected a positive number");
}

/// [begin, end) within [0, count).
void check_range(const char* op, const char* what, std::int64_t begin, std::int64_t end,
                 std::int64_t count) {
  if (begin >= 0 && begin <= end && end <= count) return;
  fail(op, std::string(what) + " are [" + std::to_string(begin) + ", " + std::to_string(end) +
               "), expected some of [0, " + std::to_string(count) + ")");
}

/// Heads of so many columns, which begin `step` apart.
void check_heads(const char* op, const char* what, const Tensor& tensor, std::int64_t heads,
                 std::int64_t step, std::int64_t cols) {
  check_range(op, what, 0, (heads - 1) * step + cols, tensor.cols);
}

/// A run of a recurrence over stores of this shape.
void check_run(const char* op, const RecurrencePlan& plan, const RecurrencePlan::Run& run,
               const StateShape& shape) {
  check_range(op, "rows of a run", run.row_begin, run.row_end, std::ssize(plan.journals));
  check_index(op, "known of a run", run.known, kChunkTokens + 1);
  const std::int64_t begin = run.first_position - run.known;
  if (begin < 0 || begin % kChunkTokens != 0) {
    fail(op, "first_position is " + std::to_string(run.first_position) + " and known " +
                 std::to_string(run.known) + ", expected their difference to be a multiple of " +
                 std::to_string(kChunkTokens));
  }
  check_range(op, "journals known to a run", run.known_begin,
              std::int64_t{run.known_begin} + run.known, std::ssize(plan.known));
  check_range(op, "anchors of a run", run.anchors_begin,
              run.anchors_begin + RecurrencePlan::chunks_ended(run), std::ssize(plan.anchors));
  if (begin > 0) return check_index(op, "anchor", run.anchor, shape.anchors);
  if (run.anchor == -1) return;
  fail(op, "anchor is " + std::to_string(run.anchor) + ", expected -1 where no chunk is before");
}

/// What ops of recurrent layers have in common.
template <class Op>
void check_recurrence(const char* op, const Op& args) {
  // What an anchor keeps of what was convolved lies in the chunk before it.
  check_index(op, "taps", args.taps, kChunkTokens + 1, 2);
  const std::int64_t rows = args.in.rows;
  check_shape(op, "in", args.in, rows, args.in_columns());
  check_shape(op, "out", shape_of(args.out), rows, args.out_columns());
  const StateShape& shape = args.states->shape();
  check_index(op, "layer", args.layer, shape.layers);
  check_size(op, "anchor_values", shape.anchor_values, args.anchor_values());
  check_size(op, "journal_values", shape.journal_values, args.journal_values());

  const RecurrencePlan& plan = *args.plan;
  if (std::ssize(plan.journals) > rows) {
    fail(op, "the plan has " + std::to_string(plan.journals.size()) +
                 " rows, expected at most in's " + std::to_string(rows));
  }
  for (const std::int32_t slot : plan.journals) {
    check_index(op, "journal of a row", slot, shape.journals, -1);
  }
  for (const std::int32_t slot : plan.known) {
    check_index(op, "known journal", slot, shape.journals);
  }
  for (const std::int32_t slot : plan.anchors) {
    check_index(op, "anchor behind a chunk", slot, shape.anchors, -1);
  }
  for (const RecurrencePlan::Run& run : plan.runs) check_run(op, plan, run, shape);
}

/// Angles of all positions [position, position + count).
void check_angles(const char* op, const KvMoves& args, std::int64_t position, std::int64_t count) {
  check_index(op, "position", position, std::numeric_limits<std::int64_t>::max() - count);
  const std::int64_t last = (position + count - 1) / KvMoves::kAnglePositions;
  for (std::int64_t block = position / KvMoves::kAnglePositions; block <= last; ++block) {
    check_index(op, "block of angles", block, std::ssize(args.angles));
    if (args.angles[static_cast<std::size_t>(block)] == nullptr) {
      fail(op, "block " + std::to_string(block) + " of angles is missing; expected those of all " +
                   "positions of the runs");
    }
  }
}

void check_routing(const char* op, const Routing& routing) {
  check_positive(op, "number of experts", routing.experts);
  if (routing.chosen < 1 || routing.chosen > routing.experts) {
    fail(op, "chosen is " + std::to_string(routing.chosen) + ", expected 1.." +
                 std::to_string(routing.experts) + ", the experts");
  }
  if (routing.groups < 1 || routing.experts % routing.groups != 0 || routing.chosen_groups < 1 ||
      routing.chosen_groups > routing.groups ||
      routing.chosen > routing.experts / routing.groups * routing.chosen_groups) {
    fail(op, "of " + std::to_string(routing.groups) + " groups " +
                 std::to_string(routing.chosen_groups) +
                 " are chosen; expected groups of one size, and as many as hold the chosen " +
                 std::to_string(routing.chosen));
  }
}

}  // namespace

void check_count(const char* op, std::int64_t count) {
  if (count < 0) fail(op, "count is " + std::to_string(count) + ", expected 0 or more");
}

void check_shape(const char* op, const char* what, const Tensor& tensor, std::int64_t rows,
                 std::int64_t cols) {
  if (tensor.rows == rows && tensor.cols == cols && (rows <= 1 || tensor.stride >= cols) &&
      (tensor.data != nullptr || rows * cols == 0)) {
    return;
  }
  fail(op, std::string(what) + " has shape [" + std::to_string(tensor.rows) + ", " +
               std::to_string(tensor.cols) + "] with stride " + std::to_string(tensor.stride) +
               (tensor.data == nullptr ? " and no data" : "") + ", expected [" +
               std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

void check_embed(const Tensor& out, std::span<const std::int32_t> tokens, const Weight& weight,
                 std::int64_t drawn) {
  check_shape("embed", "out", out, static_cast<std::int64_t>(tokens.size()), weight.cols());
  for (const std::int32_t token : tokens) {
    check_index("embed", "token", token, weight.rows(), -drawn);
  }
}

void check_matmul(const Tensor& out, const Tensor& x, const Weight& weight) {
  check_shape("matmul", "x", x, x.rows, weight.cols());
  check_shape("matmul", "out", out, x.rows, weight.rows());
}

void check_product(const Product& args) {
  constexpr const char* kOp = "product";
  const std::int64_t rows = args.out.rows;
  check_shape(kOp, "in", shape_of(args.in), rows, args.weight->cols());
  check_shape(kOp, "out", args.out, rows, args.weight->rows());
  if (args.norm != nullptr) {
    const auto gathered = static_cast<std::int64_t>(args.gather.size());
    check_shape(kOp, "x", args.x, gathered > 0 ? args.x.rows : rows, args.weight->cols());
    check_size(kOp, "number of rows", rows, gathered > 0 ? gathered : rows);
    for (const std::int32_t row : args.gather) check_index(kOp, "row", row, args.x.rows);
  }
  if (args.epilogue == Epilogue::kSiluMul) {
    check_shape(kOp, "act", shape_of(args.act), rows, args.weight->rows() / 2);
    check_size(kOp, "rows of the weight", args.weight->rows(), 2 * args.act.cols);
  }
  if ((args.epilogue == Epilogue::kRope) != (args.rope != nullptr)) {
    fail(kOp, "rope_and_store has no arguments, or nothing to do; expected both or neither");
  }
}

void check_head_products(const HeadProducts& args) {
  constexpr const char* kOp = "head_products";
  check_count(kOp, std::ssize(args.weights));
  const Weight& first = *args.weights.front();
  for (const auto& weight : args.weights) {
    check_size(kOp, "rows of a weight", weight->rows(), first.rows());
    check_size(kOp, "cols of a weight", weight->cols(), first.cols());
  }
  check_size(kOp, "rows of out", args.out.rows, args.x.rows);
  const std::int64_t heads = std::ssize(args.weights);
  check_heads(kOp, "columns of heads in out", args.out, heads, args.out_step, first.rows());
  check_heads(kOp, "columns of heads in x", args.x, heads, args.x_step, first.cols());
}

void check_copy_heads(const HeadCopies& args) {
  constexpr const char* kOp = "copy_heads";
  check_count(kOp, args.heads);
  check_size(kOp, "rows of out", args.out.rows, args.x.rows);
  check_heads(kOp, "columns of heads in out", args.out, args.heads, args.out_step, args.cols);
  check_heads(kOp, "columns of heads in x", args.x, args.heads, args.x_step, args.cols);
}

void check_gather(const Tensor& out, const Tensor& x, std::span<const std::int32_t> rows) {
  check_shape("gather_rows", "out", out, static_cast<std::int64_t>(rows.size()), x.cols);
  for (const std::int32_t row : rows) check_index("gather_rows", "row", row, x.rows);
}

void check_rope(const RopeStore& args) {
  constexpr const char* kOp = "rope_and_store";
  const KvShape& shape = args.kv->shape();
  check_shape(kOp, "qkv", args.qkv, args.qkv.rows,
              (args.heads + shape.vectors() * args.kv_heads) * args.head_dim);
  check_rotary_dim(kOp, args.rotary_dim, args.head_dim);
  if (args.kv_heads != 0) check_size(kOp, "kv_heads", args.kv_heads, shape.kv_heads);
  check_size(kOp, "head_dim", args.head_dim, shape.head_dim);
  check_index(kOp, "layer", args.layer, shape.layers);
  check_size(kOp, "number of slots", static_cast<std::int64_t>(args.slots.size()), args.qkv.rows);
  const std::int64_t slots = shape.pages * shape.page_tokens;
  for (const std::int64_t slot : args.slots) check_index(kOp, "slot", slot, slots, -1);
  std::int64_t before = 0;
  for (const ExtraStore& extra : args.extra_stores) {
    check_index(kOp, "slot", extra.slot, slots);
    check_index(kOp, "row of an extra store", extra.row, args.qkv.rows);
    if (extra.row < before) {
      fail(kOp, "got an extra store of row " + std::to_string(extra.row) + " behind one of row " +
                    std::to_string(before) + ", expected ascending rows");
    }
    before = extra.row;
  }
}

void check_attention(const AttentionArgs& args) {
  constexpr const char* kOp = "attention";
  const KvShape& shape = args.kv->shape();
  const std::int64_t rows = args.q.rows;  // beyond the plan's: padding
  const auto planned = static_cast<std::int64_t>(args.plan->positions.size());
  if (planned > rows) {
    fail(kOp, "the plan has " + std::to_string(planned) + " rows, expected at most q's " +
                  std::to_string(rows));
  }
  if (args.heads <= 0 || args.heads % shape.kv_heads != 0) {
    fail(kOp, "heads is " + std::to_string(args.heads) + ", expected a multiple of kv_heads " +
                  std::to_string(shape.kv_heads));
  }
  check_shape(kOp, "q", args.q, rows, args.heads * shape.head_dim);
  check_shape(kOp, "out", shape_of(args.out), rows, args.heads * shape.head_dim);
  check_index(kOp, "layer", args.layer, shape.layers);
  if (!(args.scale > 0)) fail(kOp, "scale is " + std::to_string(args.scale) + ", expected above 0");
  if (!(args.soft_cap >= 0)) {
    fail(kOp, "soft_cap is " + std::to_string(args.soft_cap) + ", expected 0 or above");
  }
}

void check_delta_net(const DeltaNet& args) {
  constexpr const char* kOp = "delta_net";
  check_positive(kOp, "key_heads", args.key_heads);
  check_positive(kOp, "value_heads", args.value_heads);
  check_positive(kOp, "key_dim", args.key_dim);
  check_positive(kOp, "value_dim", args.value_dim);
  if (args.value_heads % args.key_heads != 0) {
    fail(kOp, "value_heads is " + std::to_string(args.value_heads) +
                  ", expected a multiple of key_heads " + std::to_string(args.key_heads));
  }
  if (args.by_channel && args.value_heads != args.key_heads) {
    fail(kOp, "value_heads is " + std::to_string(args.value_heads) + ", expected key_heads " +
                  std::to_string(args.key_heads) + " where channels decay by themselves");
  }
  check_recurrence(kOp, args);
}

void check_short_conv(const ShortConv& args) {
  check_positive("short_conv", "channels", args.channels);
  check_recurrence("short_conv", args);
}

void check_mamba(const Mamba& args) {
  constexpr const char* kOp = "mamba";
  check_positive(kOp, "heads", args.heads);
  check_positive(kOp, "head_dim", args.head_dim);
  check_positive(kOp, "groups", args.groups);
  check_positive(kOp, "state_dim", args.state_dim);
  if (args.heads % args.groups != 0) {
    fail(kOp, "heads is " + std::to_string(args.heads) + ", expected a multiple of groups " +
                  std::to_string(args.groups));
  }
  if (!(args.least_dt >= 0 && args.least_dt <= args.most_dt)) {
    fail(kOp, "least_dt is " + std::to_string(args.least_dt) + " and most_dt " +
                  std::to_string(args.most_dt) + ", expected 0 or more, and not less than that");
  }
  check_recurrence(kOp, args);
}

void check_choose_experts(std::span<const ExpertChoice> out, const Tensor& logits,
                          const Routing& routing) {
  constexpr const char* kOp = "choose_experts";
  check_routing(kOp, routing);
  check_shape(kOp, "logits", logits, logits.rows, routing.logits());
  check_size(kOp, "number of choices", std::ssize(out), logits.rows * routing.choices());
}

void check_experts(const Experts& args) {
  constexpr const char* kOp = "experts";
  check_routing(kOp, args.routing);
  const std::int64_t rows = args.x.rows;
  const std::int64_t dim = args.x.cols;
  check_shape(kOp, "logits", args.logits, rows, args.routing.logits());
  check_shape(kOp, "out", args.out, rows, dim);
  check_shape(kOp, "in", args.in, rows, dim);
  check_shape(kOp, "down", args.down, rows, dim);
  check_size(kOp, "number of experts", std::ssize(args.experts), args.routing.all_experts());
  std::int64_t ffn = 0;
  for (const Expert& expert : args.experts) {
    check_size(kOp, "columns of gate_up", expert.gate_up->cols(), dim);
    check_size(kOp, "rows of gate_up", expert.gate_up->rows(),
               (args.squared_relu ? 1 : 2) * expert.down->cols());
    check_size(kOp, "rows of down", expert.down->rows(), dim);
    ffn = std::max(ffn, expert.down->cols());
  }
  if (args.gate_up.cols < 2 * ffn || args.act.cols < ffn) {
    fail(kOp, "scratch has " + std::to_string(args.gate_up.cols) + " and " +
                  std::to_string(args.act.cols) + " columns, expected " + std::to_string(2 * ffn) +
                  " and " + std::to_string(ffn) + " or more");
  }
  check_shape(kOp, "gate_up", args.gate_up, rows, args.gate_up.cols);
  check_shape(kOp, "act", args.act, rows, args.act.cols);
}

void check_add_rows(const Tensor& out, const Tensor& x, std::span<const std::int32_t> rows,
                    std::span<const float> factors) {
  check_shape("add_rows", "x", x, std::ssize(rows), out.cols);
  check_size("add_rows", "number of factors", std::ssize(factors), std::ssize(rows));
  for (const std::int32_t row : rows) check_index("add_rows", "row", row, out.rows);
}

void check_activate(const Tensor& out, const Tensor& gate_up, const Activation& activation) {
  check_shape("activate", "gate_up", gate_up, out.rows, 2 * out.cols);
  if (activation.kind == Activation::Kind::kClamped && !(activation.limit > 0)) {
    fail("activate", "limit is " + std::to_string(activation.limit) + ", expected above 0");
  }
}

void check_squared_relu(const Tensor& x) {
  check_shape("squared_relu", "x", x, x.rows, x.cols);
}

void check_scale(const Tensor& x, float factor, float cap) {
  check_shape("scale", "x", x, x.rows, x.cols);
  if (!std::isfinite(factor) || !(cap >= 0)) {
    fail("scale", "factor is " + std::to_string(factor) + " and cap " + std::to_string(cap) +
                      ", expected a finite number, and 0 or above");
  }
}

void check_gate(const Rows& out, const Tensor& x, const Tensor& gate) {
  check_shape("gate", "out", shape_of(out), x.rows, x.cols);
  check_positive("gate", "columns of gate", gate.cols);
  check_shape("gate", "gate", gate, x.rows, x.cols % gate.cols == 0 ? gate.cols : x.cols);
}

void check_move_kv(const KvMoves& args) {
  constexpr const char* kOp = "move_kv";
  const KvShape& shape = args.kv->shape();
  check_rotary_dim(kOp, args.rotary_dim, shape.head_dim);
  const std::int64_t slots = shape.pages * shape.page_tokens;
  // Of a slot, its place in the page: page_tokens is a power of two, and there are thousands of
  // runs, of which divisions would be the dearest part.
  const std::int64_t in_page = shape.page_tokens - 1;
  for (const KvMove& run : args.runs) {
    check_index(kOp, "slot", run.from_slot, slots);
    check_index(kOp, "slot", run.to_slot, slots);
    const std::int64_t offset = std::max(run.from_slot & in_page, run.to_slot & in_page);
    check_index(kOp, "count", run.count, shape.page_tokens - offset + 1, 1);
    if ((run.from_slot | in_page) == (run.to_slot | in_page)) {
      fail(kOp, "source and target are both page " +
                    std::to_string(run.to_slot / shape.page_tokens) + ", expected two pages");
    }
    if (args.rotary_dim == 0 || run.old_position == run.new_position) continue;
    check_angles(kOp, args, run.old_position, run.count);
    check_angles(kOp, args, run.new_position, run.count);
  }
}

void check_kv_shape(const KvShape& shape) {
  constexpr const char* kOp = "make_kv_store";
  check_positive(kOp, "layers", shape.layers);
  check_positive(kOp, "kv_heads", shape.kv_heads);
  check_positive(kOp, "head_dim", shape.head_dim);
  check_positive(kOp, "pages", shape.pages);
  if (shape.wide.layers != 0) {
    fail(kOp, std::to_string(shape.wide.layers) + " layers are of another size, expected none");
  }
  if (shape.page_tokens != 8 && shape.page_tokens != 16 && shape.page_tokens != 32) {
    fail(kOp, "page_tokens is " + std::to_string(shape.page_tokens) + ", expected 8, 16 or 32");
  }
  if (shape.head_dim > kMaxHeadDim) {
    fail(kOp, "head_dim is " + std::to_string(shape.head_dim) + ", expected at most " +
                  std::to_string(kMaxHeadDim));
  }
}

void check_page(const char* op, const KvShape& shape, std::int64_t page, std::int64_t tokens) {
  check_index(op, "page", page, shape.pages);
  if (tokens <= 0 || tokens > shape.page_tokens) {
    fail(op, "tokens is " + std::to_string(tokens) + ", expected 1.." +
                 std::to_string(shape.page_tokens));
  }
}

void check_page_values(const char* op, const KvShape& shape, std::int64_t layer,
                       std::int32_t tokens, std::size_t k, std::size_t v) {
  check_index(op, "layer", layer, shape.layers);
  const auto expected = static_cast<std::size_t>(tokens * shape.kv_heads * shape.head_dim);
  if (k < expected || v < expected) {
    fail(op, "k and v hold " + std::to_string(k) + " and " + std::to_string(v) +
                 " values, expected " + std::to_string(expected));
  }
}

void check_page_bytes(const char* op, const KvShape& shape, std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) == shape.page_bytes()) return;
  fail(op, "a page is " + std::to_string(bytes) + " bytes, expected " +
               std::to_string(shape.page_bytes()));
}

void check_raw(const char* op, const KvStore& store, std::int64_t page, std::size_t bytes) {
  check_page(op, store.shape(), page, 1);
  const std::int64_t expected = store.raw_layout().page_bytes();
  if (static_cast<std::int64_t>(bytes) == expected) return;
  fail(op, "a page's memory is " + std::to_string(bytes) + " bytes, expected " +
               std::to_string(expected));
}

void check_state_shape(const StateShape& shape) {
  constexpr const char* kOp = "make_state_store";
  check_positive(kOp, "layers", shape.layers);
  check_positive(kOp, "anchor_values", shape.anchor_values);
  check_positive(kOp, "journal_values", shape.journal_values);
  check_count(kOp, shape.anchors);
  check_count(kOp, shape.journals);
}

void check_anchor(const char* op, const StateShape& shape, std::int64_t slot, std::size_t values) {
  check_index(op, "slot", slot, shape.anchors);
  check_size(op, "number of values", static_cast<std::int64_t>(values),
             shape.layers * shape.anchor_values);
}

void check_journal(const char* op, const StateShape& shape, std::int64_t slot, std::size_t values) {
  check_index(op, "slot", slot, shape.journals);
  check_size(op, "number of values", static_cast<std::int64_t>(values),
             shape.layers * shape.journal_values);
}

}  // namespace dendrite
