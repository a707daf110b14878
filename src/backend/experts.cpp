#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/checks.h"
#include "dendrite/error.h"

// A mixture of experts as a composition of single ops.

namespace dendrite {
namespace {

/// Rows by the expert that they take: those of expert e, ascending, are [begins[e], begins[e + 1]).
struct RowGroups {
  std::vector<std::size_t> begins;
  std::vector<std::int32_t> rows;
  std::vector<float> weights;
};

RowGroups grouped(std::span<const ExpertChoice> choices, std::int64_t of_row,
                  std::int64_t experts) {
  RowGroups groups;
  groups.begins.resize(static_cast<std::size_t>(experts) + 1);
  groups.rows.resize(choices.size());
  groups.weights.resize(choices.size());
  for (const ExpertChoice& choice : choices) {
    ++groups.begins[static_cast<std::size_t>(choice.expert) + 1];
  }
  for (std::size_t e = 1; e < groups.begins.size(); ++e) groups.begins[e] += groups.begins[e - 1];
  std::vector<std::size_t> ends = groups.begins;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::size_t at = ends[static_cast<std::size_t>(choices[i].expert)]++;
    groups.rows[at] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / of_row);
    groups.weights[at] = choices[i].weight;
  }
  return groups;
}

[[noreturn]] void throw_no_experts(const Backend& backend, const char* op) {
  throw Error(std::string(op) + ": device " + backend.info().kind +
              " computes no mixtures of experts; expected cpu");
}

}  // namespace

void Backend::experts(const Experts& args) {
  check_experts(args);
  const std::int64_t tokens = args.x.rows;
  if (tokens == 0) return;
  const std::int64_t of_row = args.routing.choices();
  std::vector<ExpertChoice> choices(static_cast<std::size_t>(tokens * of_row));
  choose_experts(choices, args.logits, args.routing, args.correction, args.factors);
  RowGroups groups = grouped(choices, of_row, args.routing.all_experts());
  for (std::size_t e = 0; e < args.experts.size(); ++e) {
    const std::size_t begin = groups.begins[e];
    const std::size_t count = groups.begins[e + 1] - begin;
    if (count == 0) continue;
    const Expert& expert = args.experts[e];
    const auto rows = std::span(groups.rows).subspan(begin, count);
    const auto first = static_cast<std::int64_t>(count);
    const Tensor in = args.in.first_rows(first);
    const Tensor gate_up = args.gate_up.first_rows(first).columns(0, expert.gate_up->rows());
    const Tensor act = args.act.first_rows(first).columns(0, expert.down->cols());
    const Tensor down = args.down.first_rows(first);
    const auto weights = std::span(groups.weights).subspan(begin, count);
    gather_rows(in, args.x.tensor(), rows);
    if (args.routing.weighs_inputs) {
      scale_rows(in, weights.data());  // (only a CPU gets here, whose memory is the host's)
      std::ranges::fill(weights, 1.0F);
    }
    matmul(gate_up, in, *expert.gate_up, expert.gate_up_bias, Store::kOverwrite);
    if (args.squared_relu) {
      squared_relu(gate_up);
    } else {
      activate(act, gate_up, args.activation);
    }
    matmul(down, args.squared_relu ? gate_up : act, *expert.down, expert.down_bias,
           Store::kOverwrite);
    add_rows(args.out, down, rows, weights);
  }
}

void Backend::choose_experts(std::span<ExpertChoice>, Tensor, const Routing&, const float*,
                             const float*) {
  throw_no_experts(*this, "choose_experts");
}

void Backend::add_rows(Tensor, Tensor, std::span<const std::int32_t>, std::span<const float>) {
  throw_no_experts(*this, "add_rows");
}

}  // namespace dendrite
