#include "model/mtp_head.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dendrite/error.h"
#include "model/parts/norm.h"
#include "model/parts/weight_source.h"
#include "model/weights.h"

namespace dendrite {
namespace {

constexpr std::string_view kPrefix = "mtp.";
/// Of the model's widest passes: as many have their hidden states kept.
constexpr std::int64_t kKeptPasses = 2;
/// Texts of one pass: few, since their logits come to the host.
constexpr std::int64_t kMostTexts = 64;
constexpr std::int64_t kLogitBytes = std::int64_t{64} << 20;

enum Tables : std::size_t { kAngles, kKnown };

std::string layer_prefix(std::int64_t layer) {
  return std::string(kPrefix) + "layers." + std::to_string(layer) + ".";
}

/// As the file says; without one, as the model's other layers.
bool is_mixed(const Checkpoint* checkpoint, const DecoderConfig& config) {
  if (!config.experts) return false;
  return checkpoint == nullptr || checkpoint->find(layer_prefix(0) + "mlp.gate.weight") != nullptr;
}

Linear read_context(WeightSource& source, const AttentionShape& shape) {
  const auto parts = [&](const char* kind) {
    const std::string prefix = layer_prefix(0) + "self_attn.";
    const std::int64_t rows = shape.kv_heads * shape.head_dim;
    return std::vector<WeightSource::Part>{{prefix + "k_proj." + kind, rows},
                                           {prefix + "v_proj." + kind, rows}};
  };
  Linear context;
  context.weight = source.matrix(parts("weight"), shape.dim);
  if (shape.bias) context.bias = source.vector(parts("bias"), 0.0F);
  return context;
}

MtpWeights read_all(WeightSource& source, const DecoderConfig& c) {
  const std::string prefix(kPrefix);
  const auto norm = [&](const std::string& before, const std::string& name) {
    return read_norm(source, before, name, c.dim, c.norm_eps, c.zero_centred_norms);
  };
  const AttentionShape attention = attention_shape(c, 0);
  MtpWeights weights;
  weights.embedding_norm = norm(prefix, "pre_fc_norm_embedding");
  weights.hidden_norm = norm(prefix, "pre_fc_norm_hidden");
  weights.join = source.matrix({{prefix + "fc.weight", c.dim}}, 2 * c.dim);
  weights.attention = AttentionWeights::read(source, layer_prefix(0), attention);
  if (is_mixed(source.checkpoint(), c)) {
    weights.ffn = ExpertsWeights::read(source, layer_prefix(0), experts_shape(c));
  } else {
    weights.ffn = GatedFfnWeights::read(source, layer_prefix(0), ffn_shape(c, 0));
  }
  weights.final_norm = norm(prefix, "norm");
  weights.parameters = source.parameters();
  weights.context_norm = norm(layer_prefix(0), c.norms.before_mixer);
  weights.context = read_context(source, attention);
  weights.size_bytes = source.size_bytes();
  return weights;
}

std::int64_t ffn_dim(const MtpWeights& weights, const DecoderConfig& config) {
  const bool mixed = std::holds_alternative<ExpertsWeights>(weights.ffn);
  return mixed ? config.experts->widest() : config.ffn_dim;
}

std::optional<Routing> routing_of(const DecoderConfig& config) {
  if (!config.experts) return std::nullopt;
  return config.experts->routing;
}

Tensor rows_from(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return {tensor.data + first * tensor.stride, count, tensor.cols, tensor.stride};
}

}  // namespace

MtpHead::MtpHead(const DecoderConfig& config, MtpWeights weights, Model& model, Backend& backend,
                 const ModelOptions& options, std::int64_t page_tokens)
    : config_(config),
      weights_(std::move(weights)),
      model_(model),
      backend_(backend),
      context_number_(backend.new_model()),
      draft_number_(backend.new_model()),
      max_rows_(std::clamp<std::int64_t>(kLogitBytes / (config.vocab * 4), 1,
                                         std::min(kMostTexts, options.max_rows))),
      angles_(inv_freq(config.rope, config.rotary_dim), attention_scaling(config.rope)),
      kept_(kKeptPasses * model.max_rows(), page_tokens),
      buffers_(backend),
      ring_(buffers_.make(kKeptPasses * model.max_rows() + max_rows_, config.dim)),
      pair_(buffers_.make(model.max_rows(), 2 * config.dim)),
      hidden_(buffers_.make(model.max_rows(), config.dim)),
      context_kv_(buffers_.make(model.max_rows(), 2 * config.kv_heads * config.head_dim)),
      device_angles_(buffers_.make(model.max_rows(), config.rotary_dim)),
      device_known_(buffers_.make(model.max_rows(), 1)),
      logits_(buffers_.make(max_rows_, config.vocab)),
      scratch_(layer_scratch(buffers_, max_rows_, widths_of(attention_shape(config, 0)),
                             ffn_dim(weights_, config), {}, routing_of(config))) {
  const AttentionPlace place{.layer = 0, .plan = 0, .angles = kAngles};
  attention_ = std::make_unique<Attention>(
      attention_shape(config_, 0), std::move(weights_.attention), place, backend_, scratch_);
  if (auto* experts = std::get_if<ExpertsWeights>(&weights_.ffn)) {
    feed_forward_ = std::make_unique<ExpertsFfn>(config_.experts->routing, std::move(*experts),
                                                 backend_, scratch_);
  } else {
    feed_forward_ = std::make_unique<GatedFfn>(std::move(std::get<GatedFfnWeights>(weights_.ffn)),
                                               backend_, scratch_);
  }
}

KvShape MtpHead::shape_beside(KvShape model) const {
  model.layers = 1;
  model.kv_heads = config_.kv_heads;
  model.head_dim = config_.head_dim;
  model.wide = {};
  model.guarded = false;
  model.values_are_keys = false;
  return model;
}

/// Of a pass that gathers hidden_rows_: those go where rows that give logits do elsewhere.
PassInputs MtpHead::inputs_of(const Batch& batch, KvStore& kv) {
  host_angles_.resize(static_cast<std::size_t>(batch.rows() * config_.rotary_dim));
  angles_.fill(batch.positions, host_angles_.data());
  tables_ = {{host_angles_, device_angles_.data}, {host_known_, device_known_.data}};
  PassInputs inputs;
  inputs.kv = &kv;
  inputs.heads = config_.heads;
  inputs.tokens = batch.tokens;
  inputs.slots = batch.slots;
  inputs.extra_stores = batch.extra_stores;
  inputs.logit_rows = hidden_rows_;
  inputs.first_position = first_position(batch);
  inputs.tables = tables_;
  return inputs;
}

void MtpHead::use_kept(const Batch& batch) {
  hidden_rows_.clear();
  host_known_.clear();
  for (const std::int64_t slot : batch.before) {
    const std::int64_t row = kept_.find(slot);
    hidden_rows_.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(row, 0)));
    host_known_.push_back(row < 0 ? 0.0F : 1.0F);
  }
}

void MtpHead::add_context(const Batch& batch, KvStore& kv) {
  const std::int64_t first = kept_.take(batch.rows());
  backend_.copy(rows_from(ring_, first, batch.rows()), model_.hidden());
  for (std::int64_t i = 0; i < batch.rows(); ++i) {
    kept_.set(batch.places[static_cast<std::size_t>(i)], first + i);
  }
  for (const ExtraStore& extra : batch.extra_stores) kept_.set(extra.slot, first + extra.row);
  use_kept(batch);
  PassInputs inputs = inputs_of(batch, kv);
  inputs.model = context_number_;
  inputs.max_rows = inputs.max_logit_rows = model_.max_rows();
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_context(pass); });
}

void MtpHead::enter(Tensor hidden, const PassInputs& pass) {
  const Tensor pair = pair_.first_rows(hidden.rows);
  const Tensor embedded = pair.columns(0, config_.dim);
  backend_.embed(embedded, pass.tokens, model_.embedding());
  backend_.rms_norm(embedded, embedded, weights_.embedding_norm.weight->data(), config_.norm_eps);
  const Tensor before = pair.columns(config_.dim, config_.dim);
  backend_.gather_rows(before, ring_, pass.logit_rows);
  backend_.rms_norm(before, before, weights_.hidden_norm.weight->data(), config_.norm_eps);
  backend_.matmul(hidden, pair, *weights_.join, nullptr, Backend::Store::kOverwrite);
  backend_.scale_rows(hidden, pass.tables[kKnown].device);
}

void MtpHead::run_context(const PassInputs& pass) {
  const std::int64_t rows = std::ssize(pass.tokens);
  const Tensor hidden = hidden_.first_rows(rows);
  enter(hidden, pass);
  backend_.rms_norm(hidden, hidden, weights_.context_norm.weight->data(), config_.norm_eps);
  const Tensor kv = context_kv_.first_rows(rows);
  backend_.matmul(kv, hidden, *weights_.context.weight, data_or_null(weights_.context.bias),
                  Backend::Store::kOverwrite);
  attention_->store(kv, pass);
}

Tensor MtpHead::draft(const Batch& batch, KvStore& kv, From from) {
  if (from == From::kModel) {
    use_kept(batch);
  } else {
    hidden_rows_.clear();
    host_known_.assign(static_cast<std::size_t>(batch.rows()), 1.0F);
    const std::int64_t first = ring_.rows - max_rows_;
    for (std::int64_t i = 0; i < batch.rows(); ++i) {
      hidden_rows_.push_back(static_cast<std::int32_t>(first + i));
    }
  }
  PassInputs inputs = inputs_of(batch, kv);
  inputs.model = draft_number_;
  inputs.plans = batch.plans;
  inputs.max_rows = inputs.max_logit_rows = max_rows_;
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_draft(pass); });
  return logits_.first_rows(batch.rows());
}

void MtpHead::run_draft(const PassInputs& pass) {
  const std::int64_t rows = std::ssize(pass.tokens);
  const Tensor hidden = hidden_.first_rows(rows);
  enter(hidden, pass);
  attention_->add(hidden, pass);
  feed_forward_->add(hidden);
  const Tensor out = rows_from(ring_, ring_.rows - max_rows_, rows);
  backend_.rms_norm(out, hidden, weights_.final_norm.weight->data(), config_.norm_eps);
  backend_.matmul(logits_.first_rows(rows), out, model_.output_matrix(), nullptr,
                  Backend::Store::kOverwrite);
}

std::int64_t mtp_layers(const Checkpoint& checkpoint, const DecoderConfig& config) {
  const std::vector<std::string_view> names = checkpoint.names();
  if (names.empty()) return config.mtp_layers;
  const auto any = [&](std::string_view prefix) {
    const auto found = std::ranges::lower_bound(names, prefix);
    return found != names.end() && found->starts_with(prefix);
  };
  if (!any(kPrefix)) return 0;
  std::int64_t layers = 1;
  while (any(layer_prefix(layers))) ++layers;
  return layers;
}

std::unique_ptr<MtpHead> load_mtp_head(const Checkpoint& checkpoint, const DecoderConfig& config,
                                       Model& model, Backend& backend, const ModelOptions& options,
                                       std::int64_t page_tokens) {
  const std::string path = checkpoint.path().string();
  const std::int64_t layers = mtp_layers(checkpoint, config);
  if (layers != 1) {
    throw Error("drafter is mtp, and " + path +
                (layers == 0 ? " has no MTP head (no tensors mtp.*)"
                             : " has an MTP head of " + std::to_string(layers) + " layers") +
                "; expected one of one layer, or another drafter");
  }
  if (config.mtp_own_embedding) {
    throw Error(path +
                ": mtp_use_dedicated_embeddings is true; expected false (MTP heads with an "
                "embedding of their own are not supported)");
  }
  using Walk = WeightSource::Walk;
  if (!options.dummy_weights) {
    WeightSource check(Walk::kCheck, &checkpoint, backend);
    read_all(check, config);
  }
  WeightSource source(options.dummy_weights ? Walk::kRandom : Walk::kRead,
                      options.dummy_weights ? nullptr : &checkpoint, backend,
                      config.keeps_fp8_inputs, config.rounds_block_inputs);
  return std::make_unique<MtpHead>(config, read_all(source, config), model, backend, options,
                                   page_tokens);
}

}  // namespace dendrite
