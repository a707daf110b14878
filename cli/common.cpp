#include "common.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>

namespace dendrite::cli {
namespace {

std::stop_source* active_source = nullptr;  // of the one Interrupt; the signal handler needs it

extern "C" void on_interrupt(int) {
  if (active_source == nullptr || active_source->stop_requested()) _exit(kExitInterrupted);
  active_source->request_stop();
}

/// What `load` returns, with a line on a terminal while it lasts, and another when that was long.
template <typename Load>
auto with_progress(bool weights, const std::string& name, const Load& load) {
  const bool shows = weights && isatty(STDERR_FILENO) != 0;
  if (shows) std::cerr << "loading " << name << " ..." << std::flush;
  const auto begin = std::chrono::steady_clock::now();
  auto loaded = [&] {
    try {
      return load();
    } catch (...) {
      if (shows) std::cerr << "\r\033[K" << std::flush;
      throw;
    }
  }();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (shows) std::cerr << "\r\033[K" << std::flush;
  if (took.count() > 2) std::fprintf(stderr, "loaded %s in %.1f s\n", name.c_str(), took.count());
  return loaded;
}

void tell(const EngineInfo& info) {
  for (const std::string& warning : info.warnings) std::cerr << "warning: " << warning << "\n";
  if (info.dummy_weights) std::cerr << "note: dummy (random) weights; speed tests only\n";
}

}  // namespace

std::string default_model() {
  std::error_code ignored;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* relative :
       {"../../models/dendrite-24", "../share/dendrite/models/dendrite-24"}) {
    const std::filesystem::path path = (program / relative).lexically_normal();
    if (std::filesystem::exists(path / "config.json", ignored)) return path.string();
  }
  throw Error("the shipped model dendrite-24 was not found near " + program.string() +
              "; expected ../../models/dendrite-24 there, or --model DIR_OR_ID");
}

void CommonFlags::add_to(CLI::App& app) {
  app.add_option(
         "--model", model,
         "Model folder, GGUF file, or an id in the local Hugging Face cache (default: dendrite-24)")
      ->type_name("DIR_OR_ID");
  add_engine_to(app);
}

void CommonFlags::add_engine_to(CLI::App& app) {
  app.add_option("--device", engine.device, "Where to compute")
      ->check(CLI::Validator(
          [](const std::string& text) {
            static const std::regex kDevice("cpu|cuda(:[0-9]+)?");
            return std::regex_match(text, kDevice) ? "" : text + " is not one of cpu, cuda, cuda:N";
          },
          "cpu, cuda or cuda:N"))
      ->capture_default_str();
  app.add_option("--devices", engine.devices,
                 "Devices of that kind that compute the model together, each with its share: their "
                 "indices; 0,0 gives on one the bits of two")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,N");
  app.add_option("--dtype", engine.dtype, "Compute type; auto: the checkpoint's")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--quantization", engine.quantization,
                 "Round the matrices of layers when they are loaded: int8 (8.5 bits a weight), "
                 "int4 (5), or fp8 (8.1 to 8.5), which rounds no activations on a CPU")
      ->check(CLI::IsMember({"fp8", "int8", "int4"}));
  app.add_option("--output-quantization", engine.output_quantization,
                 "The same of the matrix that gives the logits (and of the embeddings, where they "
                 "are one)")
      ->check(CLI::IsMember({"fp8", "int8"}));
  app.add_option("--kv-dtype", engine.kv_dtype,
                 "What K and V are kept as; auto: f32 or bf16, with the compute type; fp8: half of "
                 "bf16's memory, less exact (not with a DFlash drafter)")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->capture_default_str();
  app.add_option("--threads", engine.threads, "Threads; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", seed, "Seed of all random draws")->capture_default_str();
  app.add_option("--page-tokens", engine.page_tokens, "Tokens a KV page")
      ->check(CLI::IsMember({8, 16, 32}))
      ->capture_default_str();
  app.add_option("--kv-tokens", engine.kv_tokens, "KV pool size in tokens; 0: automatic")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--memory", engine.memory_bytes,
                 "What weights and KV pages take at most, of all models together; 0: what is free")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(true));
  app.add_option(
         "--state-memory", engine.state_bytes,
         "What states of recurrent layers take; 0: on a GPU half of what is free, on a CPU a "
         "quarter, at most 4 GB")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(true));
  app.add_flag("--beyond-positions", engine.beyond_positions,
               "Goes on where a text is longer than the model has positions; answers get worse");
  app.add_flag("--deterministic,!--fast", engine.deterministic,
               "Results that do not depend on company (the default; the CPU always is). --fast: "
               "products of few rows faster on a GPU");
  app.add_option("--load-format", engine.load_format, "dummy: random weights, for speed tests")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  app.add_option("--kernels", engine.kernels,
                 "Force an instruction path (portable, avx2, avx512, avx512_bf16, amx_bf16, neon)");
  app.add_flag("--json", json, "One JSON object on stdout, nothing else there");
}

void add_windows_to(CLI::App& app, PerplexityParams& params) {
  app.add_option("--window", params.window,
                 "Tokens that are computed together; less where the model has fewer positions")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  app.add_option("--max-tokens", params.tokens,
                 "No further window begins once so many are scored; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void CommonFlags::add_drafting_to(CLI::App& app, std::int64_t& budget) {
  app.add_option("--draft-model", engine.draft_model, "A smaller model with the same tokens")
      ->type_name("DIR_OR_ID");
  app.add_option(
         "--drafter", engine.drafter,
         "A block drafter that was trained for the model (DFlash), or \"mtp\": the MTP head in "
         "the model's own files")
      ->type_name("DIR_OR_ID");
  app.add_option("--speculate-budget", budget, "Drafted tokens a branch and step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

Engine CommonFlags::load(bool weights) const {
  EngineOptions options = engine;
  options.weights = weights;
  const std::string name = model.empty() ? default_model() : model;
  const Engine loaded = with_progress(weights, name, [&] { return Engine::load(name, options); });
  tell(loaded.info());
  return loaded;
}

std::vector<Engine> CommonFlags::load_all(const std::vector<std::string>& models) const {
  std::vector<Engine> loaded = with_progress(true, std::to_string(models.size()) + " models",
                                             [&] { return Engine::load_all(models, engine); });
  for (const Engine& one : loaded) tell(one.info());
  return loaded;
}

void print_json(const Json& value) {
  std::cout << value.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

Json to_json(const Stats& stats, double seconds) {
  return {{"tokens_computed", stats.tokens_computed},
          {"tokens_independent", stats.tokens_independent},
          {"tokens_generated", stats.tokens_generated},
          {"tokens_drafted", stats.tokens_drafted},
          {"tokens_accepted", stats.tokens_accepted},
          {"tokens_reused", stats.tokens_reused},
          {"tokens_redundant", stats.tokens_redundant},
          {"tokens_discarded", stats.tokens_discarded},
          {"tokens_moved", stats.tokens_moved},
          {"tokens_repaired", stats.tokens_repaired},
          {"compositions", stats.compositions},
          {"kv_bytes_unique", stats.kv_bytes_unique},
          {"kv_bytes_naive", stats.kv_bytes_naive},
          {"fork_ns", stats.fork_ns},
          {"forks", stats.forks},
          {"copies_on_write", stats.copies_on_write},
          {"evictions", stats.evictions},
          {"preemptions", stats.preemptions},
          {"tokens_regenerated", stats.tokens_regenerated},
          {"steps", stats.steps},
          {"largest_batch_rows", stats.largest_batch_rows},
          {"pages_total", stats.pages_total},
          {"pages_used", stats.pages_used},
          {"speculation", Json::parse(dendrite::to_json(stats.speculation))},
          {"seconds", seconds}};
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    throw Error(path + ": cannot be read; expected a readable file");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string read_stdin() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::vector<Token> parse_ids(const std::string& text, const std::string& what) {
  std::vector<Token> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto separator = [](char c) {
    return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
  };
  while (at != end) {
    if (separator(*at)) {
      ++at;
      continue;
    }
    Token id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || (next != end && !separator(*next))) {
      throw Error(what + ": \"" + std::string(at, std::min<std::size_t>(20, end - at)) +
                  "\" is not a token id; expected whole numbers >= 0 like 1,2,3");
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) throw Error(what + ": holds no token ids; expected some like 1,2,3");
  return ids;
}

void PromptFlags::add_to(CLI::App& app) {
  app_ = &app;
  auto* prompt = app.add_option(
      "--prompt", text, "Prompt text; special tokens are added and parsed (default: stdin)");
  auto* prompt_ids = app.add_option("--prompt-ids", ids, "Prompt as token ids, taken as they are")
                         ->type_name("1,2,3")
                         ->excludes(prompt);
  app.add_option("--messages", messages,
                 "JSON array of {role, content}, rendered with the model's chat template")
      ->type_name("FILE.json")
      ->excludes(prompt)
      ->excludes(prompt_ids);
}

std::vector<Token> PromptFlags::tokens(const Engine& engine) const {
  std::vector<Token> tokens;
  if (app_->count("--prompt-ids") > 0) {
    tokens = parse_ids(ids, "--prompt-ids");
  } else if (app_->count("--messages") > 0) {
    // The rendered text holds the special tokens already.
    tokens = engine.encode(engine.render_chat(read_file(messages)), false);
  } else if (app_->count("--prompt") > 0) {
    tokens = engine.encode(text, true);
  } else {
    if (isatty(STDIN_FILENO) != 0) {
      throw Error(
          "no prompt; expected --prompt TEXT, --prompt-ids 1,2,3, --messages FILE.json, or "
          "text on stdin");
    }
    tokens = engine.encode(read_stdin(), true);
  }
  if (tokens.empty()) throw Error("the prompt has no tokens; expected at least one");
  return tokens;
}

void install_interrupt_handler() {
  std::signal(SIGINT, on_interrupt);
}

Interrupt::Interrupt() {
  active_source = new std::stop_source;
}
Interrupt::~Interrupt() {
  delete std::exchange(active_source, nullptr);
}

std::stop_token Interrupt::token() const {
  return active_source->get_token();
}
bool Interrupt::requested() const {
  return active_source->stop_requested();
}

bool use_colours() {
  return isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
}

}  // namespace dendrite::cli
