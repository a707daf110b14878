#include "options.h"

#include <cstdio>
#include <filesystem>

#include "backend/backend.h"
#include "common.h"  // the command line's: where the shipped model is
#include "models.h"

namespace dendrite::bench {

void CommonOptions::add_to(CLI::App& app) {
  auto* model_flag =
      app.add_option("--model", model, "Model folder or id (default: the shipped model)")
          ->type_name("DIR_OR_ID");
  app.add_option("--shape", shape, "Random weights of a built-in shape instead of a model")
      ->check(CLI::IsMember(shape_names()))
      ->excludes(model_flag);
  app.add_option("--device", engine.device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--devices", engine.devices, "Of that kind, by their indices, for one model")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,N");
  app.add_option("--precision,--dtype", engine.dtype, "Compute type; auto: the checkpoint's")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--quantization", engine.quantization, "Of matrices of layers: fp8, int8 or int4");
  app.add_option("--output-quantization", engine.output_quantization,
                 "Of the matrix that gives the logits: fp8 or int8");
  app.add_option("--kv-dtype", engine.kv_dtype, "What K and V are kept as")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str();
  app.add_option("--threads", engine.threads, "Threads; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--kernels", engine.kernels,
                 "Force an instruction path (portable, avx2, avx512, avx512_bf16, amx_bf16, neon)");
  app.add_flag("!--fast", engine.deterministic, "Products of few rows faster on a GPU; see matmul");
  app.add_option("--page-tokens", engine.page_tokens, "Tokens a KV page")
      ->check(CLI::IsMember({8, 16, 32}))
      ->capture_default_str();
  app.add_option("--kv-tokens", engine.kv_tokens, "KV pool size in tokens; 0: what the bench needs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--load-format", engine.load_format, "dummy: random weights of the model's shapes")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app.add_option("--json", json, "Write the results there as JSON; -: stdout")->type_name("FILE");
}

void BackendOptions::add_to(CLI::App& app) {
  app.add_option("--device", device, "Where")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--json", json, "Write the results there as JSON; -: stdout");
  app.add_option("--threads", threads, "Of the CPU; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--trials", trials, "Trials a row")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
}

std::unique_ptr<Backend> BackendOptions::make() const {
  if (device == "cuda") return make_cuda_backend(Numerics::kBF16);
  return make_cpu_backend(Numerics::kBF16, threads);
}

Engine CommonOptions::load() const {
  if (!shape.empty()) return load_shape(shape, engine);
  Engine loaded = Engine::load(model.empty() ? cli::default_model() : model, engine);
  for (const std::string& warning : loaded.info().warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return loaded;
}

std::string CommonOptions::model_name() const {
  if (!shape.empty()) return "random-" + shape;
  const std::filesystem::path path(model.empty() ? cli::default_model() : model);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace dendrite::bench
