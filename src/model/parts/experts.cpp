#include "model/parts/experts.h"

#include <cstddef>
#include <utility>

namespace dendrite {
namespace {

using Part = WeightSource::Part;

/// The matrices of a layer's experts, by how the checkpoint holds them.
class ExpertParts {
 public:
  ExpertParts(const Checkpoint* checkpoint, const std::string& prefix, const ExpertsShape& shape)
      : shape_(shape),
        prefix_(prefix + (shape.names == ExpertNames::kMlp ? "mlp." : "block_sparse_moe.")) {
    const auto holds = [&](const std::string& name) {
      return checkpoint != nullptr && checkpoint->find(prefix_ + name) != nullptr;
    };
    fused_ = holds("experts.gate_up_proj");
    stacked_ = holds("experts.gate_proj.weight");
  }

  const std::string& prefix() const { return prefix_; }

  std::vector<Part> gate_up(std::int64_t expert) const {
    const std::int64_t ffn = shape_.ffn_dim;
    if (fused_) return {slice("experts.gate_up_proj", expert, 2 * ffn)};
    if (stacked_) {
      return {slice("experts.gate_proj.weight", expert, ffn),
              slice("experts.up_proj.weight", expert, ffn)};
    }
    const bool mlp = shape_.names == ExpertNames::kMlp;
    return {{of_expert(expert, mlp ? "gate_proj" : "w1"), ffn},
            {of_expert(expert, mlp ? "up_proj" : "w3"), ffn}};
  }
  std::vector<Part> down(std::int64_t expert) const {
    if (fused_) return {slice("experts.down_proj", expert, shape_.dim)};
    if (stacked_) return {slice("experts.down_proj.weight", expert, shape_.dim)};
    const bool mlp = shape_.names == ExpertNames::kMlp;
    return {{of_expert(expert, mlp ? "down_proj" : "w2"), shape_.dim}};
  }

 private:
  std::string of_expert(std::int64_t expert, const char* matrix) const {
    return prefix_ + "experts." + std::to_string(expert) + "." + matrix + ".weight";
  }
  Part slice(const char* name, std::int64_t expert, std::int64_t rows) const {
    Part part{prefix_ + name, rows};
    part.slice = Slice{expert, shape_.routing.experts};
    return part;
  }

  const ExpertsShape& shape_;
  std::string prefix_;
  bool fused_ = false;    // [experts, 2 * ffn, dim] and [experts, dim, ffn]
  bool stacked_ = false;  // [experts, ffn, dim] twice, and [experts, dim, ffn]: GGUF
};

}  // namespace

ExpertsWeights ExpertsWeights::read(WeightSource& source, const std::string& prefix,
                                    const ExpertsShape& s) {
  const ExpertParts parts(source.checkpoint(), prefix, s);
  NormNames norms{prefix + "post_attention_layernorm.weight"};
  norms.zero_centred = s.zero_centred;
  ExpertsWeights weights;
  weights.norm = {source.vector({{norms.before, s.dim}}, 1.0F, change_of(s.zero_centred)),
                  s.norm_eps};
  std::vector<Part> router{{parts.prefix() + "gate.weight", s.routing.experts}};
  if (s.routing.shared == SharedExpert::kGated) {
    router.push_back({parts.prefix() + "shared_expert_gate.weight", 1});
  }
  weights.router.weight = source.matrix(router, s.dim);
  for (std::int64_t expert = 0; expert < s.routing.experts; ++expert) {
    OfExpert& of = weights.experts.emplace_back();
    of.gate_up = source.matrix(parts.gate_up(expert), s.dim, norms, true);
    of.down = source.matrix(parts.down(expert), s.ffn_dim, {}, true);
  }
  if (s.routing.shared != SharedExpert::kNone) {
    const std::string shared = parts.prefix() + "shared_expert.";
    OfExpert& of = weights.experts.emplace_back();
    of.gate_up = source.matrix({{shared + "gate_proj.weight", s.shared_ffn_dim},
                                {shared + "up_proj.weight", s.shared_ffn_dim}},
                               s.dim, norms, true);
    of.down = source.matrix({{shared + "down_proj.weight", s.dim}}, s.shared_ffn_dim, {}, true);
  }
  return weights;
}

ExpertsFfn::ExpertsFfn(const Routing& routing, ExpertsWeights weights, Backend& backend,
                       const LayerScratch& scratch)
    : routing_(routing), weights_(std::move(weights)), backend_(backend), scratch_(scratch) {
  for (const ExpertsWeights::OfExpert& expert : weights_.experts) {
    experts_.push_back({expert.gate_up.get(), expert.down.get()});
  }
  backend_.add_experts(experts_);
}

void ExpertsFfn::add(Tensor hidden) {
  const Tensor normed = scratch_.normed.first_rows(hidden.rows);
  Product router = weights_.router.product(weights_.router.input(normed));
  weights_.norm.before(router, hidden);
  router.out = scratch_.router.first_rows(hidden.rows);
  backend_.product(router);

  Experts args;
  args.x = router.in;
  args.logits = router.out;
  args.routing = routing_;
  args.experts = experts_;
  args.out = hidden;
  args.in = scratch_.expert_in.first_rows(hidden.rows);
  args.gate_up = scratch_.gate_up.first_rows(hidden.rows);
  args.act = scratch_.act.first_rows(hidden.rows);
  args.down = scratch_.expert_out.first_rows(hidden.rows);
  backend_.experts(args);
}

}  // namespace dendrite
