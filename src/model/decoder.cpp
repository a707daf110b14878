#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

/// 1 / s^2 of what RoPE multiplies cosines and sines by.
float inverse_scale2(const RopeConfig& rope) {
  const auto scaling = static_cast<double>(attention_scaling(rope));
  return static_cast<float>(1 / (scaling * scaling));
}

std::optional<Routing> routing_of(const DecoderConfig& config) {
  if (!config.experts) return std::nullopt;
  return config.experts->routing;
}

std::optional<LatentShape> latent_of(const DecoderConfig& config) {
  if (!config.latent) return std::nullopt;
  return latent_shape(config);
}

/// RoPE of a model's layers: its own, that of layers with a window, and none, as angles that are 0.
enum Angles : std::size_t { kOfModel, kOfWindows, kNone };

std::vector<RopeTable> tables_of(const DecoderConfig& config) {
  std::vector<RopeTable> tables;
  const auto add = [&](const RopeConfig& rope, std::int64_t rotary_dim) {
    tables.emplace_back(inv_freq(rope, rotary_dim), attention_scaling(rope));
  };
  add(config.rope, config.wide ? config.wide->head_dim : config.rotary_dim);
  const bool has_none = std::ranges::count(config.unrotated, true) > 0;
  if (config.local_rope || has_none) {
    add(config.local_rope.value_or(config.rope), config.rotary_dim);
  }
  if (has_none) {
    tables.emplace_back(std::vector<float>(static_cast<std::size_t>(config.rotary_dim / 2)), 1.0F);
  }
  return tables;
}

Angles angles_of(const DecoderConfig& config, std::size_t layer) {
  if (!config.is_rotated(static_cast<std::int64_t>(layer))) return kNone;
  return config.local_rope && config.windows[layer] > 0 ? kOfWindows : kOfModel;
}

/// Why K and V at other positions, or in some layers alone, are not to be had; "": they are.
std::string why_not_apart(const DecoderConfig& config) {
  if (config.recurrent_layers() == 0) return "";
  return "its recurrent layers keep a state of all that was before, not of single tokens";
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, DecoderWeights weights, Backend& backend,
                 const ModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      number_(backend.new_model()),
      max_rows_(options.max_rows),
      max_logit_rows_(
          std::clamp<std::int64_t>(options.logit_bytes / (config.vocab * 4), 16, options.max_rows)),
      angles_(tables_of(config)),
      angle_blocks_(angles_.front(), backend),
      buffers_(backend),
      hidden_(buffers_.make(max_rows_, config.dim)),
      scratch_(layer_scratch(buffers_, max_rows_, attention_widths(config), config.widest_ffn(),
                             config.recurrent_sizes(), routing_of(config), latent_of(config),
                             config.experts_beside)),
      head_(weights_.final_norm, weights_.output_matrix(), backend,
            buffers_.make(max_logit_rows_, config.dim),
            buffers_.make(max_logit_rows_, config.vocab),
            {config.logit_scale, config.logit_soft_cap}) {
  if (config_.embedding_scale_rounds && backend.numerics().product == ComputeFormat::kBF16) {
    config_.embedding_scale = to_f32(to_bf16(config_.embedding_scale));
  }
  if (weights_.layer_inputs) {
    layer_inputs_.emplace(layer_inputs_shape(config_), std::move(*weights_.layer_inputs), backend_,
                          buffers_, max_rows_);
  }
  add_tables();
  add_layers();
}

void Decoder::add_tables() {
  const auto add = [&](std::int64_t columns) {
    host_tables_.emplace_back(static_cast<std::size_t>(max_rows_ * columns));
    tables_.push_back({{}, buffers_.make(max_rows_, columns).data});
  };
  for (const RopeTable& table : angles_) add(table.rotary_dim());
  if (config_.query_growth) add(1);
}

void Decoder::add_layers() {
  Places places;
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    DecoderWeights::Layer& layer = weights_.layers[i];
    const auto number = static_cast<std::int64_t>(i);
    Layer& added = layers_.emplace_back(make_mixer(number, layer, places), make_ffn(layer));
    if (layer.input) {
      added.input = std::make_unique<LayerInput>(std::move(*layer.input), backend_, scratch_);
    }
    added.scale = layer.scale;
  }
  weights_.layers.clear();
}

std::unique_ptr<Mixer> Decoder::make_mixer(std::int64_t number, DecoderWeights::Layer& layer,
                                           Places& places) {
  if (std::holds_alternative<std::monostate>(layer.mixer)) return nullptr;
  if (auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
    return std::make_unique<DeltaNetMixer>(delta_net_shape(config_), std::move(*delta),
                                           places.recurrent++, backend_, scratch_);
  }
  if (auto* conv = std::get_if<ShortConvWeights>(&layer.mixer)) {
    return std::make_unique<ShortConvMixer>(short_conv_shape(config_), std::move(*conv),
                                            places.recurrent++, backend_, scratch_);
  }
  if (auto* mamba = std::get_if<MambaWeights>(&layer.mixer)) {
    return std::make_unique<MambaMixer>(mamba_shape(config_), std::move(*mamba), places.recurrent++,
                                        backend_, scratch_);
  }
  const auto i = static_cast<std::size_t>(number);
  const AttentionWindow window{config_.windows[i], config_.chunked && config_.windows[i] > 0};
  const auto found = std::find(windows_.begin(), windows_.end(), window);
  const auto plan = static_cast<std::size_t>(found - windows_.begin());
  if (found == windows_.end()) windows_.push_back(window);
  window_of_layer_.push_back(plan);
  const std::size_t part = config_.is_wide(number) ? 1 : 0;
  if (config_.has_own_kv(number)) ++places.kept[part];
  AttentionPlace place{
      .part = part, .layer = places.kept[part] - 1, .plan = plan, .angles = angles_of(config_, i)};
  if (config_.query_growth && !(config_.query_growth->unrotated && config_.is_rotated(number))) {
    place.query_factors = angles_.size();
  }
  if (auto* latent = std::get_if<LatentWeights>(&layer.mixer)) {
    return std::make_unique<LatentAttention>(latent_shape(config_), std::move(*latent), place,
                                             backend_, scratch_);
  }
  return std::make_unique<Attention>(attention_shape(config_, number),
                                     std::move(std::get<AttentionWeights>(layer.mixer)), place,
                                     backend_, scratch_);
}

std::unique_ptr<FeedForward> Decoder::make_ffn(DecoderWeights::Layer& layer) {
  if (std::holds_alternative<std::monostate>(layer.ffn)) return nullptr;
  if (auto* experts = std::get_if<ExpertsWeights>(&layer.ffn)) {
    return std::make_unique<ExpertsFfn>(config_.experts->routing, std::move(*experts), backend_,
                                        scratch_);
  }
  if (auto* beside = std::get_if<ExpertsBesideWeights>(&layer.ffn)) {
    return std::make_unique<ExpertsBeside>(config_.experts->routing, std::move(*beside), backend_,
                                           scratch_);
  }
  return std::make_unique<GatedFfn>(std::move(std::get<GatedFfnWeights>(layer.ffn)), backend_,
                                    scratch_);
}

PassInputs Decoder::inputs_of(const Batch& batch, KvStore& kv) {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    std::vector<float>& values = host_tables_[i];
    std::int64_t columns = 1;
    if (i < angles_.size()) {
      columns = angles_[i].rotary_dim();
      angles_[i].fill(batch.positions, values.data());
    } else {
      std::ranges::transform(batch.positions, values.begin(), [&](std::int64_t position) {
        return config_.query_growth->at(position);
      });
    }
    tables_[i].values =
        std::span<const float>(values).first(static_cast<std::size_t>(batch.rows() * columns));
  }
  PassInputs inputs;
  inputs.model = number_;
  inputs.kv = &kv;
  inputs.heads = config_.heads;
  inputs.tokens = batch.tokens;
  inputs.slots = batch.slots;
  inputs.extra_stores = batch.extra_stores;
  inputs.logit_rows = batch.logit_rows;
  inputs.plans = batch.plans;
  inputs.first_position = first_position(batch);
  inputs.tables = tables_;
  return inputs;
}

Tensor Decoder::forward(const Batch& batch, const PathStores& stores) {
  PassInputs inputs = inputs_of(batch, stores.kv);
  if (config_.recurrent_layers() > 0) {
    inputs.states = stores.states;
    inputs.recurrence = &batch.recurrence;
  }
  inputs.max_rows = max_rows_;
  inputs.max_logit_rows = max_logit_rows_;
  rows_computed_ = batch.rows();
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_layers(pass); });
  return head_.logits(static_cast<std::int64_t>(batch.logit_rows.size()));
}

Tensor Decoder::hidden() {
  const Tensor normed = scratch_.normed.first_rows(rows_computed_);
  backend_.rms_norm(normed, hidden_.first_rows(rows_computed_), weights_.final_norm.weight->data(),
                    config_.norm_eps);
  return normed;
}

/// (Without room for padding, so that no device records it: these are other ops.)
void Decoder::fill(const Batch& batch, KvStore& kv, std::int64_t layers) {
  if (const std::string why = why_not_apart(config_); !why.empty()) throw Error("fill: " + why);
  backend_.run_pass(inputs_of(batch, kv), [&](const PassInputs& pass) {
    const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
    embed(hidden, pass);
    for (std::int64_t i = 0; i < layers - 1; ++i) run_layer(i, hidden, pass);
    const Layer& last = layers_[static_cast<std::size_t>(layers - 1)];
    if (last.mixer) last.mixer->keep(hidden, pass);
  });
}

/// Of layers with attention and one RoPE alone: K is normed before it (qk_norm), so nothing else of
/// it depends on the position. (Positions at which dynamic RoPE would change
/// its angles are refused when a sequence grows, RopeConfig::position_limit.)
std::string Decoder::why_not_move() const {
  if (std::string why = why_not_apart(config_); !why.empty()) return why;
  if (angles_.size() > 1) return "its layers differ in how they rotate K";
  if (config_.chunked) return "its layers see chunks of positions, which would be others";
  if (std::isnormal(inverse_scale2(config_.rope))) return "";
  return "its RoPE multiplies K by " + std::to_string(attention_scaling(config_.rope)) +
         ", which can't be divided by again";
}

void Decoder::move(std::span<const KvMove> runs, KvStore& kv) {
  if (const std::string why = why_not_move(); !why.empty()) throw Error("move: " + why);
  KvMoves moves;
  moves.runs = runs;
  moves.rotary_dim = config_.rotary_dim;
  moves.angles = angle_blocks_.of(runs);
  moves.inverse_scale2 = inverse_scale2(config_.rope);
  moves.kv = &kv;
  backend_.move_kv(moves);
}

void Decoder::prepare_positions(std::int64_t count, const ThreadPool& workers) {
  for (RopeTable& table : angles_) table.prepare(count, workers);
  if (why_not_move().empty()) angle_blocks_.prepare(count);
}

void Decoder::embed(Tensor hidden, const PassInputs& pass) {
  backend_.embed(hidden, pass.tokens, *weights_.embedding);
  if (config_.embedding_scale != 1) backend_.scale(hidden, config_.embedding_scale, 0);
  if (layer_inputs_) layer_inputs_->look_up(hidden, pass.tokens);
}

void Decoder::run_layer(std::int64_t number, Tensor hidden, const PassInputs& pass) {
  const Layer& layer = layers_[static_cast<std::size_t>(number)];
  if (layer.mixer) layer.mixer->add(hidden, pass);
  if (layer.feed_forward) layer.feed_forward->add(hidden);
  if (layer.input) layer.input->add(hidden, layer_inputs_->of_layer(number, hidden.rows));
  if (layer.scale != 1) backend_.scale(hidden, layer.scale, 0);
}

void Decoder::run_layers(const PassInputs& pass) {
  const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
  embed(hidden, pass);
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    run_layer(i, hidden, pass);
    tap(hidden, i);
  }
  head_.run(hidden, pass.logit_rows);
}

void Decoder::tap(Tensor hidden, std::int64_t layer) {
  const auto found = std::ranges::find(taps_.layers, layer);
  if (found == taps_.layers.end()) return;
  const std::int64_t column = (found - taps_.layers.begin()) * config_.dim;
  backend_.copy(taps_.out.first_rows(hidden.rows).columns(column, config_.dim), hidden);
}

PassSizes Decoder::pass_sizes(std::int64_t positions) const {
  const DecoderConfig& c = config_;
  PassSizes sizes;
  sizes.layers = c.layers;
  sizes.heads = c.heads;
  sizes.head_dim = std::max(c.head_dim, c.wide ? c.wide->head_dim : 0);
  sizes.vocab = c.vocab;
  const AttentionWidths attention = attention_widths(c);
  sizes.widest = std::max({c.dim, c.widest_ffn(), attention.q_columns});
  sizes.tallest = std::max({c.vocab, 2 * c.widest_ffn(), attention.columns});
  if (c.layer_inputs) sizes.tallest = std::max(sizes.tallest, c.layers * c.layer_inputs->dim);
  if (const auto recurrent = c.recurrent_sizes()) {
    sizes.widest = std::max(sizes.widest, recurrent->out_columns);
    sizes.tallest = std::max(sizes.tallest, recurrent->in_columns);
    sizes.recurrent = recurrent->in_columns + recurrent->out_columns;
  }
  sizes.positions = positions;
  sizes.max_rows = max_rows_;
  return sizes;
}

}  // namespace dendrite
