#include "model/parts/experts.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "model/parts/norm.h"

namespace dendrite {
namespace {

using Part = WeightSource::Part;

/// The matrices of a layer's experts, by how the checkpoint holds them.
class ExpertParts {
 public:
  ExpertParts(const Checkpoint* checkpoint, const std::string& prefix, const ExpertsShape& shape)
      : shape_(shape), prefix_(prefix + shape.names.block) {
    const auto holds = [&](const std::string& name) {
      return checkpoint != nullptr && checkpoint->find(prefix_ + name) != nullptr;
    };
    fused_ = holds(shape.names.fused_gate_up);
    stacked_ = holds("experts.up_proj.weight");
    in_turns_ = shape.names.in_turns && !stacked_ && !holds(of_expert(0, shape.names.up, ".bias"));
  }

  const std::string& prefix() const { return prefix_; }

  std::vector<Part> gate_up(std::int64_t expert) const {
    const std::int64_t ffn = shape_.ffn_dim;
    if (shape_.squared_relu) {
      if (stacked_) return {slice("experts.up_proj.weight", expert, ffn)};
      return {alone(expert, shape_.names.up, ".weight", ffn)};
    }
    if (stacked_) {
      return {slice("experts.gate_proj.weight", expert, ffn),
              slice("experts.up_proj.weight", expert, ffn)};
    }
    if (in_turns_) return in_turns(shape_.names.fused_gate_up, expert);
    if (fused_) return {fused(shape_.names.fused_gate_up, expert, 2 * ffn)};
    return {alone(expert, shape_.names.gate, ".weight", ffn),
            alone(expert, shape_.names.up, ".weight", ffn)};
  }
  std::vector<Part> down(std::int64_t expert) const {
    if (stacked_) return {slice("experts.down_proj.weight", expert, shape_.dim)};
    if (in_turns_) {
      Part part = slice(shape_.names.fused_down, expert, shape_.dim);
      part.transposed = fused_;
      return {part};
    }
    if (fused_) return {fused(shape_.names.fused_down, expert, shape_.dim)};
    return {alone(expert, shape_.names.down, ".weight", shape_.dim)};
  }

  /// Of all experts, each one's behind another's.
  std::vector<Part> gate_up_biases() const {
    std::vector<Part> all;
    for (std::int64_t expert = 0; expert < shape_.routing.experts; ++expert) {
      for (Part& part : gate_up_bias(expert)) all.push_back(std::move(part));
    }
    return all;
  }
  std::vector<Part> down_biases() const {
    const std::string name =
        stacked_ ? "experts.down_proj.bias" : shape_.names.fused_down + "_bias";
    std::vector<Part> all;
    for (std::int64_t expert = 0; expert < shape_.routing.experts; ++expert) {
      all.push_back(stacked_ || in_turns_ ? slice(name, expert, shape_.dim)
                                          : alone(expert, shape_.names.down, ".bias", shape_.dim));
    }
    return all;
  }

 private:
  std::vector<Part> gate_up_bias(std::int64_t expert) const {
    if (stacked_) {
      return {slice("experts.gate_proj.bias", expert, shape_.ffn_dim),
              slice("experts.up_proj.bias", expert, shape_.ffn_dim)};
    }
    if (!in_turns_) {
      return {alone(expert, shape_.names.gate, ".bias", shape_.ffn_dim),
              alone(expert, shape_.names.up, ".bias", shape_.ffn_dim)};
    }
    std::vector<Part> parts = in_turns(shape_.names.fused_gate_up + "_bias", expert);
    for (Part& part : parts) part.transposed = false;
    return parts;
  }
  /// Gates, then ups.
  std::vector<Part> in_turns(const std::string& name, std::int64_t expert) const {
    Part gates = slice(name, expert, shape_.ffn_dim);
    gates.turns = {1, 1};
    gates.transposed = fused_;
    Part ups = gates;
    ups.kind = 1;
    return {gates, ups};
  }
  static std::string of_expert(std::int64_t expert, const std::string& matrix, const char* kind) {
    return "experts." + std::to_string(expert) + "." + matrix + kind;
  }
  Part alone(std::int64_t expert, const std::string& matrix, const char* kind,
             std::int64_t rows) const {
    return {prefix_ + of_expert(expert, matrix, kind), rows};
  }
  Part fused(const std::string& name, std::int64_t expert, std::int64_t rows) const {
    Part part = slice(name, expert, rows);
    part.transposed = shape_.names.transposed;
    return part;
  }
  Part slice(const std::string& name, std::int64_t expert, std::int64_t rows) const {
    Part part{prefix_ + name, rows};
    part.mxfp4 = shape_.names.in_mxfp4;
    part.slice = Slice{expert, shape_.routing.experts};
    return part;
  }

  const ExpertsShape& shape_;
  std::string prefix_;
  bool fused_ = false;     // [experts, 2 * ffn, dim] and [experts, dim, ffn]
  bool in_turns_ = false;  // gpt-oss's own: gates and ups of all experts in turns
  bool stacked_ = false;   // [experts, ffn, dim] of gates and of ups, and [experts, dim, ffn]: GGUF
};

}  // namespace

ExpertsWeights ExpertsWeights::read(WeightSource& source, const std::string& prefix,
                                    const ExpertsShape& s) {
  const ExpertParts parts(source.checkpoint(), prefix, s);
  NormNames norms{prefix + s.norms.before_ffn + ".weight"};
  norms.zero_centred = s.zero_centred;
  ExpertsWeights weights;
  weights.norm = read_norm(source, prefix, s.norms.before_ffn, s.dim, s.norm_eps, s.zero_centred);
  std::vector<Part> router{{parts.prefix() + s.names.router, s.routing.experts}};
  if (s.routing.shared == SharedExpert::kGated) {
    router.push_back({parts.prefix() + "shared_expert_gate.weight", 1});
  }
  weights.router.weight = source.matrix(router, s.dim);
  if (!s.names.correction.empty()) {
    weights.correction =
        source.vector({{parts.prefix() + s.names.correction, s.routing.experts}}, 0.0F);
  }
  if (!s.names.factors.empty()) {
    weights.factors = source.vector({{parts.prefix() + s.names.factors, s.routing.experts}}, 1.0F);
  }
  if (!s.names.router_norm.empty()) {
    weights.router_norm = {source.vector({{parts.prefix() + s.names.router_norm, s.dim}}, 1.0F),
                           s.norm_eps};
    weights.router_scale = 1.0F / std::sqrt(static_cast<float>(s.dim));
  }
  weights.behind = read_norm(source, prefix, s.norms.behind_ffn, s.dim, s.norm_eps, s.zero_centred);
  if (!s.names.router_bias.empty()) {
    weights.router.bias =
        source.vector({{parts.prefix() + s.names.router_bias, s.routing.experts}}, 0.0F);
  }
  weights.activation = s.activation;
  weights.squared_relu = s.squared_relu;
  for (std::int64_t expert = 0; expert < s.routing.experts; ++expert) {
    OfExpert& of = weights.experts.emplace_back();
    of.gate_up = source.matrix(parts.gate_up(expert), s.dim, norms, true);
    of.down = source.matrix(parts.down(expert), s.ffn_dim, {}, true);
  }
  if (s.names.in_turns) {
    weights.gate_up_bias = source.vector(parts.gate_up_biases(), 0.0F);
    weights.down_bias = source.vector(parts.down_biases(), 0.0F);
  }
  if (s.routing.shared != SharedExpert::kNone) {
    const std::string shared = parts.prefix() + s.names.shared;
    OfExpert& of = weights.experts.emplace_back();
    std::vector<Part> gate_up{{shared + "up_proj.weight", s.shared_ffn_dim}};
    if (!s.squared_relu) {
      gate_up.insert(gate_up.begin(), {shared + "gate_proj.weight", s.shared_ffn_dim});
    }
    of.gate_up = source.matrix(gate_up, s.dim, norms, true);
    of.down = source.matrix({{shared + "down_proj.weight", s.dim}}, s.shared_ffn_dim, {}, true);
  }
  return weights;
}

ExpertsFfn::ExpertsFfn(const Routing& routing, ExpertsWeights weights, Backend& backend,
                       const LayerScratch& scratch)
    : routing_(routing), weights_(std::move(weights)), backend_(backend), scratch_(scratch) {
  const float* gate_up_bias = data_or_null(weights_.gate_up_bias);
  const float* down_bias = data_or_null(weights_.down_bias);
  for (const ExpertsWeights::OfExpert& of : weights_.experts) {
    Expert& expert = experts_.emplace_back(Expert{of.gate_up.get(), of.down.get()});
    if (gate_up_bias == nullptr) continue;
    expert.gate_up_bias = gate_up_bias;
    expert.down_bias = down_bias;
    gate_up_bias += of.gate_up->rows();
    down_bias += of.down->rows();
  }
  backend_.add_experts(experts_);
}

/// Logits of the router; what the experts read.
Rows ExpertsFfn::routed(Tensor hidden) {
  const Tensor normed = scratch_.normed.first_rows(hidden.rows);
  const bool own_norm = weights_.router_norm.weight != nullptr;
  Product router = weights_.router.product(weights_.router.input(normed));
  (own_norm ? weights_.router_norm : weights_.norm).before(router, hidden);
  router.out = scratch_.router.first_rows(hidden.rows);
  backend_.product(router);
  if (!own_norm) return router.in;
  backend_.scale(router.out, weights_.router_scale, 0);
  backend_.rms_norm(normed, hidden, weights_.norm.weight->data(), weights_.norm.eps);
  return normed;
}

void ExpertsFfn::add_to(Tensor out, Tensor hidden) {
  const bool normed = weights_.behind.weight != nullptr;
  const Tensor sum = normed ? scratch_.expert_sum.first_rows(hidden.rows) : out;
  if (normed) backend_.copy(sum, scratch_.zeros.first_rows(hidden.rows));

  Experts args;
  args.x = routed(hidden);
  args.logits = scratch_.router.first_rows(hidden.rows);
  args.routing = routing_;
  args.correction = data_or_null(weights_.correction);
  args.factors = data_or_null(weights_.factors);
  args.activation = weights_.activation;
  args.squared_relu = weights_.squared_relu;
  args.experts = experts_;
  args.out = sum;
  args.in = scratch_.expert_in.first_rows(hidden.rows);
  args.gate_up = scratch_.gate_up.first_rows(hidden.rows);
  args.act = scratch_.act.first_rows(hidden.rows);
  args.down = scratch_.expert_out.first_rows(hidden.rows);
  backend_.experts(args);
  if (normed) {
    backend_.add_normed(out, sum, weights_.behind.weight->data(), weights_.behind.eps, 1);
  }
}

}  // namespace dendrite
