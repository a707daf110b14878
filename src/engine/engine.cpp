#include "dendrite/engine.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <new>
#include <optional>

#include "backend/backend_library.h"
#include "backend/host_cores.h"
#include "backend/product_fit.h"
#include "dendrite/error.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/known_compositions.h"
#include "engine/devices.h"
#include "engine/drafts/draft_sources.h"
#include "engine/first_use.h"
#include "engine/loop/step_loop.h"
#include "engine/observe/event_log.h"
#include "engine/pools.h"
#include "engine/snapshot.h"
#include "io/open_checkpoint.h"
#include "model/fingerprint.h"
#include "model/loader.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

/// Smaller checkpoints are read faster than a thread starts.
constexpr std::int64_t kReadAheadBytes = std::int64_t{64} << 20;

/// EngineOptions::drafter of the model's own MTP head.
constexpr const char* kMtpDrafter = "mtp";

/// Of steps with a long prompt beside other calls.
constexpr double kGpuTargetMs = 25;
constexpr double kCpuTargetMs = 100;

WeightRounding rounding_of(const char* option, const std::string& wanted,
                           std::initializer_list<WeightRounding> known) {
  if (wanted.empty()) return WeightRounding::kNone;
  std::string names;
  for (const WeightRounding rounding : known) {
    if (wanted == name_of(rounding)) return rounding;
    names += (names.empty() ? "" : ", ") + std::string(name_of(rounding));
  }
  throw Error(std::string(option) + " is \"" + wanted + "\"; expected " + names + " or nothing");
}

Numerics numerics_of(const std::string& dtype, const ModelLoader& loader) {
  if (dtype == "f32") return Numerics::kF32;
  if (dtype == "bf16") return Numerics::kBF16;
  if (dtype == "f16") return Numerics::kF16;
  if (dtype != "auto") {
    throw Error("dtype is \"" + dtype + "\"; expected auto, f32, bf16 or f16");
  }
  switch (loader.weight_dtype()) {  // f16 weights must not be rounded to bf16
    case DType::kF32:
      return Numerics::kF32;
    case DType::kF16:
      return Numerics::kF16;
    case DType::kBF16:
      break;
  }
  return Numerics::kBF16;
}

/// What K and V are kept as. `usual`: with the dtype.
KvFormat kv_format_of(const EngineOptions& options, KvFormat usual) {
  const std::string& wanted = options.kv_dtype;
  if (wanted == "auto") return usual;
  if (wanted != "bf16" && wanted != "fp8") {
    throw Error("kv_dtype is \"" + wanted + "\"; expected auto, bf16 or fp8");
  }
  const KvFormat format = wanted == "fp8" ? KvFormat::kFP8 : KvFormat::kBF16;
  if (format == KvFormat::kFP8 && !options.drafter.empty() && options.drafter != kMtpDrafter) {
    throw Error("kv_dtype is fp8 and drafter " + options.drafter +
                ", which reads K and V of its blocks in both directions: that was not proven in 8 "
                "bits; expected auto or bf16 with a drafter");
  }
  return format;
}

int thread_count(int wanted) {
  if (wanted < 0 || wanted > 1024) {
    throw Error("threads is " + std::to_string(wanted) +
                "; expected 1 to 1024, or 0 for one a core that may be used");
  }
  return wanted > 0 ? wanted : usable_cores();
}

void check_options(const EngineOptions& options) {
  const Devices devices = devices_of(options);
  if (devices.indices.size() > 1 && !options.drafter.empty()) {
    throw Error("drafter is " + options.drafter + " and devices are " +
                std::to_string(devices.indices.size()) +
                ": a drafter reads along on one device; expected one with it");
  }
  if (!devices.gpu && !options.backend_library.empty()) {
    throw Error("backend_library is " + options.backend_library + " and device " + options.device +
                "; expected device cuda with it");
  }
  if (options.page_tokens != 8 && options.page_tokens != 16 && options.page_tokens != 32) {
    throw Error("page_tokens is " + std::to_string(options.page_tokens) + "; expected 8, 16 or 32");
  }
  if (options.kv_tokens < 0) {
    throw Error("kv_tokens is " + std::to_string(options.kv_tokens) +
                "; expected >= 0 (0: automatic)");
  }
  if (options.state_bytes < 0) {
    throw Error("state_bytes is " + std::to_string(options.state_bytes) +
                "; expected 0 (automatic) or more");
  }
  if (options.memory_bytes < 0) {
    throw Error("memory_bytes is " + std::to_string(options.memory_bytes) +
                "; expected >= 0 (0: what is free)");
  }
  if (options.draft_kv_tokens < 0) {
    throw Error("draft_kv_tokens is " + std::to_string(options.draft_kv_tokens) +
                "; expected >= 0 (0: automatic)");
  }
  if (!(options.step_target_ms >= 0)) {
    throw Error("step_target_ms is " + std::to_string(options.step_target_ms) +
                "; expected >= 0 (0: 25 on a GPU, 100 on a CPU)");
  }
  if (options.load_format != "auto" && options.load_format != "dummy") {
    throw Error("load_format is \"" + options.load_format + "\"; expected auto or dummy");
  }
}

std::unique_ptr<Checkpoint> open_files(const std::string& model, const EngineOptions& options) {
  const bool dummy = options.load_format != "auto";
  if (options.weights) {
    return open_checkpoint(model, dummy ? WeightFiles::kSkip : WeightFiles::kRequire);
  }
  // Weights that are there are worth telling of, but a folder of texts alone will do.
  return open_checkpoint(model, WeightFiles::kIfThere);
}

/// What the tokenizer and the chat template are read from.
ModelTexts texts_of(const Checkpoint& checkpoint) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 29;
  return {checkpoint.path(), [&checkpoint](const std::string& name) {
            std::optional<std::string> text;
            if (checkpoint.has_text(name)) text = checkpoint.text(name, kMostBytes);
            return text;
          }};
}

void fill_info(EngineCore& core, const Checkpoint& files, const EngineOptions& options) {
  const ModelInfo& model = core.model_info;
  EngineInfo& info = core.info;
  info.model_type = model.type;
  if (core.model != nullptr) {
    info.parameters = core.model->parameters();
    info.weight_bytes = core.model->weight_bytes();
  } else {
    for (const std::string_view name : files.names()) {
      const TensorInfo& tensor = *files.find(name);
      info.parameters += value_count(tensor.shape);
      info.weight_bytes += tensor.size_bytes;
    }
  }
  info.layers = model.sizes.layers;
  info.dim = model.sizes.dim;
  info.ffn_dim = model.sizes.ffn_dim;
  info.heads = model.sizes.heads;
  info.kv_heads = model.sizes.kv_heads;
  info.head_dim = model.sizes.head_dim;
  info.vocab = model.vocab;
  info.experts = model.experts.count;
  info.experts_per_token = model.experts.chosen + (model.experts.shared_ffn_dim > 0 ? 1 : 0);
  info.mtp_layers = model.mtp_layers;
  info.idle_parameters = model.experts.idle(model.sizes.dim);
  info.max_positions = model.positions.max;
  info.rope = model.positions.rope;
  if (model.stored_dtype) info.stored_dtype = name_of(*model.stored_dtype);
  info.compute_dtype = name_of(core.backend->numerics());
  info.quantization = name_of(core.backend->numerics().rounding);
  info.output_quantization = name_of(core.backend->numerics().output);
  const KvShape kv = kv_shape(core, options);
  info.kv_dtype = name_of(kv.format);
  info.kv_token_bytes = kv.token_bytes();
  if (model.state) {
    info.recurrent_layers = model.state->layers;
    info.state_bytes = model.state->anchor_bytes();
    info.state_token_bytes = model.state->journal_bytes();
  }
  if (model.bos) info.bos.push_back(*model.bos);
  info.eos = model.eos;
  info.has_tokenizer = core.tokenizer.has_value();
  info.has_chat_template = core.chat_template.has_value();
  info.dummy_weights = options.load_format == "dummy";
  const DeviceInfo& device = core.backend->info();
  info.device = device.kind;
  info.device_name = device.name;
  info.kernels = device.kernels;
  info.numerics_key = device.numerics_key;
  info.available_kernels = cpu_kernel_paths();
  info.threads = device.threads;
  info.warnings = files.warnings();
  for (const auto& warnings : {model.warnings, device.warnings}) {
    info.warnings.insert(info.warnings.end(), warnings.begin(), warnings.end());
  }
  if (core.model != nullptr) {
    const std::string warning = warning_of(core.model->compatibility());
    if (!warning.empty()) info.warnings.push_back(warning);
  }
  const PassKind kind = core.backend->pass_kind(kv);
  info.attention = kind.attention;
  info.graphs = kind.graphs;
  if (model.state && !kind.graphs.empty()) info.graphs = "none: recurrent layers";
  if (!kind.slow.empty()) {
    info.warnings.push_back("the GPU's fast attention and CUDA graphs do not take this model (" +
                            kind.slow + "): it runs several times slower");
  }
}

ModelOptions model_options(const EngineOptions& options) {
  ModelOptions out;
  out.dummy_weights = options.load_format == "dummy";
  if (devices_of(options).gpu) {  // where a row costs little, weights are read for more at once
    out.max_rows = 2048;
    out.logit_bytes = std::int64_t{512} << 20;
  }
  return out;
}

void load_reader(EngineCore& core, const ModelLoader& loader, const EngineOptions& options) {
  if (options.drafter == kMtpDrafter) {
    core.mtp =
        loader.load_mtp(*core.model, *core.backend, model_options(options), options.page_tokens);
    return;
  }
  const std::unique_ptr<Checkpoint> files = open_files(options.drafter, options);
  const DrafterConfig config = load_drafter_config(*files, core.model_info);
  core.drafter = load_drafter(*files, config, *core.model, *core.backend, model_options(options));
  core.model->set_taps({config.taps, core.drafter->features()});
}

/// An engine without pages, and its files.
struct Loaded {
  std::shared_ptr<EngineCore> core;
  std::unique_ptr<Checkpoint> files;
};

Loaded load_weights(const std::string& model, const EngineOptions& options,
                    const MakeBackend& make_backend) {
  check_options(options);
  const bool dummy = options.load_format == "dummy";
  std::unique_ptr<Checkpoint> files = open_files(model, options);
  auto core = std::make_shared<EngineCore>();
  core->loop = std::make_shared<StepLoop>(*core);
  core->info.model_path = files->path().string();
  const std::unique_ptr<ModelLoader> loader = make_loader(*files);
  core->model_info = loader->info();
  const ModelInfo::Positions& positions = core->model_info.positions;
  if (!options.beyond_positions || positions.hard) core->position_limit = positions.max;
  const int threads = thread_count(options.threads);
  Numerics numerics = numerics_of(options.dtype, *loader);
  numerics.rounding =
      rounding_of("quantization", options.quantization,
                  {WeightRounding::kFp8, WeightRounding::kInt8, WeightRounding::kInt4});
  numerics.output = rounding_of("output_quantization", options.output_quantization,
                                {WeightRounding::kFp8, WeightRounding::kInt8});
  numerics.kv = kv_format_of(options, numerics.kv);
  core->backend = make_backend(numerics, threads);
  core->workers = std::make_unique<ThreadPool>(threads);
  core->tokenizer = Tokenizer::try_open(texts_of(*files));
  if (core->tokenizer) {
    constexpr int kMostFamilies = 16;  // of matchers, each with a lexer
    core->detokenizer.emplace(*core->tokenizer);
    core->grammars = std::make_unique<GrammarCache>(
        *core->tokenizer, core->vocab(), core->model_info.eos, std::min(threads, kMostFamilies));
  }
  core->chat_template = ChatTemplate::try_open(texts_of(*files));
  if (options.weights) {
    // Files that are not in the page cache are read ahead while what is there is packed.
    std::jthread reader;
    if (files->total_bytes() > kReadAheadBytes) reader = std::jthread([&] { files->prefetch(2); });
    core->model = loader->load(*core->backend, model_options(options));
    core->step_rows = core->model->max_rows();
    core->step_target_ms = options.step_target_ms;
    if (options.step_target_ms == 0) {
      core->step_target_ms = devices_of(options).gpu ? kGpuTargetMs : kCpuTargetMs;
    }
    if (!options.drafter.empty()) load_reader(*core, *loader, options);
    core->fingerprint = model_fingerprint(core->model_info.config_hash, *files, dummy);
  }
  return {std::move(core), std::move(files)};
}

/// Pages, and what is told of it.
void finish(const Loaded& loaded, const EngineOptions& options, const PoolRoom& room) {
  EngineCore& core = *loaded.core;
  if (core.model != nullptr) make_tree(core, options, room);
  fill_info(core, *loaded.files, options);
  if (core.model != nullptr) use_first(core);
}

/// In front of others: what it leaves is what their pages are made from.
std::shared_ptr<EngineCore> load_draft_model(const EngineOptions& options,
                                             const MakeBackend& make_backend) {
  EngineOptions draft = options;
  draft.draft_model.clear();
  draft.drafter.clear();
  draft.kv_tokens = options.draft_kv_tokens;
  const Loaded loaded = load_weights(options.draft_model, draft, make_backend);
  PoolRoom room = room_for(*loaded.core, draft, weight_bytes_of(*loaded.core), 1);
  room.given = false;  // not all of it
  finish(loaded, draft, room);
  return loaded.core;
}

void begin_calls(EngineCore& core, std::shared_ptr<EngineCore> draft_model) {
  {
    const TreeLock lock(core.tree_mutex);  // nobody else knows it yet
    add_log_readers(core.events);
  }
  core.drafts = std::make_unique<DraftSources>(core, core.loop->host(), std::move(draft_model));
}

/// What `load` returns; what the host lacks is told by names.
template <typename Load>
auto with_memory_told(const std::string& model, const Load& load) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    const DeviceMemory memory = host_memory();
    throw Error(model + ": the host is out of memory, " + size_text(memory.free) + " of " +
                size_text(memory.total) +
                " free; a smaller pool of pages (kv_tokens, --kv-tokens) or a smaller model takes "
                "less");
  }
}

MakeBackend backend_of(const EngineOptions& options) {
  return [&options](Numerics numerics, int threads) {
    const Devices devices = devices_of(options);
    if (!devices.gpu) {
      const auto ranks = static_cast<int>(devices.indices.size());
      if (ranks > 1) return make_cpu_group(numerics, threads, ranks, options.kernels);
      return make_cpu_backend(numerics, threads, options.kernels);
    }
    const CudaOptions cuda{options.deterministic, options.host_tables, devices.indices};
    if (options.backend_library.empty()) return make_cuda_backend(numerics, cuda);
    return open_cuda_backend(options.backend_library, {numerics, cuda});
  };
}

}  // namespace

Engine Engine::load(const std::string& model, const EngineOptions& options) {
  return handle_of(load_core(model, options, backend_of(options)));
}

std::vector<Engine> Engine::load_all(const std::vector<std::string>& models,
                                     const EngineOptions& options) {
  if (!options.draft_model.empty() || !options.drafter.empty()) {
    throw Error(
        "load_all: " + (options.draft_model.empty() ? options.drafter : options.draft_model) +
        " drafts for one model, and " + std::to_string(models.size()) +
        " are loaded; expected no draft_model and no drafter");
  }
  std::vector<Loaded> all;
  std::int64_t taken = 0;
  for (const std::string& model : models) {
    all.push_back(
        with_memory_told(model, [&] { return load_weights(model, options, backend_of(options)); }));
    if (options.weights) taken += weight_bytes_of(*all.back().core);
  }
  // One room for all: pools that nobody has touched yet are memory that is free still.
  std::optional<PoolRoom> room;
  if (options.weights && !all.empty()) {
    room = room_for(*all.front().core, options, taken, std::ssize(all));
  }
  std::vector<Engine> engines;
  for (std::size_t i = 0; i < all.size(); ++i) {
    with_memory_told(models[i], [&] {
      finish(all[i], options, room.value_or(PoolRoom{}));
      begin_calls(*all[i].core, nullptr);
    });
    engines.push_back(handle_of(all[i].core));
  }
  return engines;
}

std::shared_ptr<EngineCore> load_core(const std::string& model, const EngineOptions& options,
                                      const MakeBackend& make_backend) {
  return with_memory_told(model, [&] {
    std::shared_ptr<EngineCore> draft_model;
    std::int64_t taken = 0;
    if (options.weights && !options.draft_model.empty()) {
      draft_model = load_draft_model(options, make_backend);
      const EngineInfo& draft = draft_model->info;
      taken = draft.weight_bytes + draft.kv_tokens * draft.kv_token_bytes;
    }
    const Loaded loaded = load_weights(model, options, make_backend);
    PoolRoom room;
    if (options.weights) {
      room = room_for(*loaded.core, options, taken + weight_bytes_of(*loaded.core), 1);
    }
    finish(loaded, options, room);
    begin_calls(*loaded.core, std::move(draft_model));
    return loaded.core;
  });
}

const EngineInfo& Engine::info() const {
  return core_->info;
}

Compatibility Engine::compatibility() const {
  const auto files = open_checkpoint(core_->info.model_path, WeightFiles::kIfThere);
  if (core_->info.dummy_weights || files->names().empty()) return {};
  return make_loader(*files)->judge(*core_->backend);
}

Restored Engine::restore(const std::filesystem::path& file, std::function<bool()> poll) const {
  return restore_session(core_, SnapshotReader(file), std::move(poll));
}

Restored Engine::restore(std::span<const std::byte> snapshot, std::function<bool()> poll) const {
  return restore_session(core_, SnapshotReader(snapshot), std::move(poll));
}

EngineThread Engine::start() const {
  if (core_->model == nullptr) {
    throw Error("start: the engine was loaded without weights; expected EngineOptions::weights");
  }
  return EngineThread(
      std::jthread([core = core_](const std::stop_token& stop) { core->loop->drive(stop); }));
}

bool Engine::step() const {
  return core_->loop->step();
}

std::vector<Token> Engine::encode(std::string_view text, bool add_special) const {
  return core_->require_tokenizer().encode(text, add_special);
}

std::vector<Token> Engine::encode_after(std::span<const Token> before,
                                        std::string_view text) const {
  core_->check_tokens(before);
  return core_->require_tokenizer().encode_after(before, text);
}

std::string Engine::decode(std::span<const Token> ids, bool skip_special) const {
  return core_->require_tokenizer().decode(ids, skip_special);
}

std::string Engine::token_bytes(Token token) const {
  core_->check_tokens(std::span(&token, 1));
  return core_->require_tokenizer().bytes_of(token);
}

void Engine::check(const Constraint& constraint) const {
  core_->compiled(constraint);
}

std::string Engine::render_chat(std::string_view messages_json, const ChatOptions& options) const {
  if (!core_->chat_template) {
    throw Error(core_->info.model_path +
                ": has no chat template; expected chat_template.jinja or a \"chat_template\" in "
                "tokenizer_config.json");
  }
  return core_->chat_template->render(messages_json,
                                      {.add_generation_prompt = options.add_generation_prompt,
                                       .tools_json = options.tools_json,
                                       .extra_json = options.extra_json});
}

}  // namespace dendrite
