// llama_step: decode steps of branches that share a prompt, by llama.cpp, on request.
//   llama_step --model FILE.gguf [--threads N] [--tokens N] [--branches N] [--gpu] [--flash 0|1]
//              [--argmax host|device] [--load mmap|none] [--cpu-clock] [--label TEXT]
//              [--backends FOLDER]
// Compiled with -DIK_LLAMA it is ik_llama.cpp's, which repacks tensors as it reads them
// (ik_llama.h). Speaks the line protocol of bench/peer.h. Branches are sequences that share the
// prompt's cells of one unified KV cache (llama_memory_seq_cp); a step is one llama_decode of one
// token a branch, and the argmax of each branch's logits. --gpu: all layers there, with --flash 1
// --argmax device.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#ifdef IK_LLAMA
#include "ik_llama.h"
#else
#include "ggml-backend.h"
#include "llama.h"
#endif

namespace {

struct Options {
  std::string model;
  std::string label;
  std::string backends;       // of prebuilt libraries: which kernels fit is found at run time
  std::string load = "none";  // read into memory: may use huge pages, which mapped files do not
  int threads = 1;
  int tokens = 16384;  // KV cells
  int branches = 16;
  bool flash =
      false;  // measured: on the CPU three times slower with 16 branches, and no faster with one
  bool gpu = false;
  bool argmax_on_device = false;  // by samplers in the graph: rows of logits stay there
  bool cpu_clock = false;
};

double now_ms(const Options& options) {
  timespec time{};
  clock_gettime(options.cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "llama_step: %s\n", what.c_str());
  std::exit(1);
}

#ifdef IK_LLAMA
constexpr const char* kEngine = "ik_llama.cpp";

void set(llama_model_params& params, const Options&) {
  params.use_mmap = false;
  params.repack_tensors = true;
}
void set(llama_context_params& params, const Options& options) {
  params.flash_attn = options.flash;
}
#else
constexpr const char* kEngine = "llama.cpp";
using Sampler = llama_sampler;

void set(llama_model_params& params, const Options& options) {
  params.load_mode = llama_load_mode_from_str(options.load.c_str());
}
void set(llama_context_params& params, const Options& options) {
  params.flash_attn_type =
      options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.kv_unified = true;
  params.no_perf = true;
}
#endif

class Peer {
 public:
  explicit Peer(const Options& options) : options_(options) {
    if (!options.backends.empty()) ggml_backend_load_all_from_path(options.backends.c_str());
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    if (options.gpu && !llama_supports_gpu_offload()) fail("--gpu: the library finds none");
    model_params.n_gpu_layers = options.gpu ? -1 : 0;
    set(model_params, options);
    model_ = llama_model_load_from_file(options.model.c_str(), model_params);
    if (model_ == nullptr) fail(options.model + ": cannot be loaded");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(options.tokens);
    params.n_batch = 512;
    params.n_ubatch = 512;
    params.n_seq_max = static_cast<std::uint32_t>(options.branches + 1);
    params.n_threads = options.threads;
    params.n_threads_batch = options.threads;
    set(params, options);
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) fail("no context could be made");
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    batch_ = llama_batch_init(kBatch, 0, 1);
    sequences_ = options.branches + 1;
  }
  ~Peer() {
    if (sampler_ != nullptr) llama_sampler_free(sampler_);
    llama_batch_free(batch_);
    llama_free(context_);
    llama_model_free(model_);
  }

  double prefill(const std::vector<llama_token>& tokens) {
    llama_memory_clear(llama_get_memory(context_), false);
    const double begin = now_ms(options_);
    for (std::size_t at = 0; at < tokens.size(); at += 512) {
      const std::size_t end = std::min(tokens.size(), at + 512);
      batch_.n_tokens = 0;
      for (std::size_t i = at; i < end; ++i)
        add(tokens[i], static_cast<int>(i), 0, i + 1 == tokens.size());
      decode();
    }
    first_ = argmax(batch_.n_tokens - 1);
    length_ = static_cast<int>(tokens.size());
    const double ms = now_ms(options_) - begin;
    const float* logits = llama_get_logits_ith(context_, batch_.n_tokens - 1);
    logits_.assign(logits, logits + vocab_);
    return ms;
  }

  void steps(int branches, int count, std::vector<double>& ms, std::vector<llama_token>& tokens) {
    llama_memory_t memory = llama_get_memory(context_);
    for (int b = 1; b <= branches; ++b) llama_memory_seq_cp(memory, 0, b, -1, -1);
    std::vector<Sampler*> samplers;
    for (int b = 1; b <= branches && options_.argmax_on_device; ++b) {
      samplers.push_back(llama_sampler_chain_init(llama_sampler_chain_default_params()));
      llama_sampler_chain_add(samplers.back(), llama_sampler_init_greedy());
      if (!llama_set_sampler(context_, b, samplers.back())) fail("no argmax on this device");
    }
    std::vector<llama_token> next(static_cast<std::size_t>(branches), first_);
    tokens.assign(1, first_);
    const int warm_up = options_.gpu ? 4 : 1;  // a GPU's kernels are recorded in its first steps
    double before = now_ms(options_);
    for (int step = 0; step < warm_up + count; ++step) {
      batch_.n_tokens = 0;
      for (int b = 0; b < branches; ++b)
        add(next[static_cast<std::size_t>(b)], length_ + step, b + 1, true);
      decode();
      for (int b = 0; b < branches; ++b) next[static_cast<std::size_t>(b)] = argmax(b);
      const double now = now_ms(options_);
      if (step >= warm_up) ms.push_back(now - before);
      before = now;
      tokens.push_back(next[0]);
    }
    for (std::size_t i = 0; i < samplers.size(); ++i) {
      llama_set_sampler(context_, static_cast<llama_seq_id>(i + 1), nullptr);
      llama_sampler_free(samplers[i]);
    }
    for (int b = 1; b <= branches; ++b) llama_memory_seq_rm(memory, b, -1, -1);
  }

#ifndef IK_LLAMA
  /// Milliseconds for `count` tokens of each of `branches`, drawn at T = 0.7 of what a grammar
  /// (GBNF; empty: none) allows, never an end. `mask_us`: of each draw, what the grammar took of
  /// it.
  double constrained(int branches, int count, const std::string& grammar,
                     std::vector<double>& mask_us) {
    const llama_vocab* vocab = llama_model_get_vocab(model_);
    llama_memory_t memory = llama_get_memory(context_);
    std::vector<llama_sampler*> grammars;
    for (int b = 0; b < branches && !grammar.empty(); ++b) {
      grammars.push_back(llama_sampler_init_grammar(vocab, grammar.c_str(), "root"));
      if (grammars.back() == nullptr) fail("no grammar: " + grammar);
    }
    llama_sampler* temperature = llama_sampler_init_temp(0.7f);
    llama_sampler* draw = llama_sampler_init_dist(1);
    for (int b = 1; b <= branches; ++b) llama_memory_seq_cp(memory, 0, b, -1, -1);
    const double begin = now_ms(options_);
    std::vector<llama_token_data> candidates(static_cast<std::size_t>(vocab_));
    for (int step = 0; step < count; ++step) {
      std::vector<llama_token> next;
      for (int b = 0; b < branches; ++b) {
        const float* logits = step == 0 ? logits_.data() : llama_get_logits_ith(context_, b);
        for (llama_token t = 0; t < vocab_; ++t) {
          candidates[static_cast<std::size_t>(t)] = {t, logits[t], 0};
        }
        candidates[static_cast<std::size_t>(llama_vocab_eos(vocab))].logit = -INFINITY;
        llama_token_data_array all{candidates.data(), candidates.size(), -1, false};
        const double before = now_ms(options_);
        if (!grammars.empty()) llama_sampler_apply(grammars[static_cast<std::size_t>(b)], &all);
        mask_us.push_back((now_ms(options_) - before) * 1e3);
        llama_sampler_apply(temperature, &all);
        llama_sampler_apply(draw, &all);
        next.push_back(all.data[all.selected].id);
        if (!grammars.empty()) {
          llama_sampler_accept(grammars[static_cast<std::size_t>(b)], next.back());
        }
      }
      if (step + 1 == count) break;
      batch_.n_tokens = 0;
      for (int b = 0; b < branches; ++b) {
        add(next[static_cast<std::size_t>(b)], length_ + step, b + 1, true);
      }
      decode();
    }
    const double ms = now_ms(options_) - begin;
    for (int b = 1; b <= branches; ++b) llama_memory_seq_rm(memory, b, -1, -1);
    for (llama_sampler* sampler : grammars) llama_sampler_free(sampler);
    llama_sampler_free(temperature);
    llama_sampler_free(draw);
    return ms;
  }
#endif

  // A tree of sequences: a child is a copy of its parent's, which shares the cells. What a node has
  // not computed yet waits in `pending`, its last token always.

  int begin(std::vector<llama_token> tokens) {
    llama_memory_clear(llama_get_memory(context_), false);
    nodes_.clear();
    free_.clear();
    for (int i = sequences_; i-- > 0;) free_.push_back(i);
    const int id = ++last_node_;
    nodes_[id] = {take_sequence(), 0, std::move(tokens)};
    compute({id}, /*keep=*/1);
    return id;
  }

  int child(int parent, const std::vector<llama_token>& tokens) {
    Node node = nodes_.at(parent);
    node.sequence = take_sequence();
    llama_memory_seq_cp(llama_get_memory(context_), nodes_.at(parent).sequence, node.sequence, -1,
                        -1);
    node.pending.insert(node.pending.end(), tokens.begin(), tokens.end());
    nodes_[++last_node_] = std::move(node);
    return last_node_;
  }

  std::vector<llama_token> generate(const std::vector<int>& ids, int count, float temperature) {
    if (sampler_ != nullptr) llama_sampler_free(sampler_);
    sampler_ = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (temperature > 0) {
      llama_sampler_chain_add(sampler_, llama_sampler_init_temp(temperature));
      llama_sampler_chain_add(sampler_, llama_sampler_init_dist(1));
    } else {
      llama_sampler_chain_add(sampler_, llama_sampler_init_greedy());
    }
    for (int step = 0; step < count; ++step) compute(ids, /*keep=*/0);
    std::vector<llama_token> last;
    for (const int id : ids) last.push_back(nodes_.at(id).pending.back());
    return last;
  }

  void drop(int id) {
    const auto found = nodes_.find(id);
    if (found == nodes_.end()) fail("no node " + std::to_string(id));
    llama_memory_seq_rm(llama_get_memory(context_), found->second.sequence, -1, -1);
    free_.push_back(found->second.sequence);
    nodes_.erase(found);
  }

 private:
  static constexpr int kBatch = 512;

  struct Node {
    int sequence = 0;
    int length = 0;  // computed
    std::vector<llama_token> pending;
  };

  int take_sequence() {
    if (free_.empty()) fail("no sequence is free; give more --branches");
    const int sequence = free_.back();
    free_.pop_back();
    return sequence;
  }

  /// Computes what these nodes have pending but for the last `keep` tokens, in batches; without
  /// `keep` samples the token after each node's last and leaves it pending.
  void compute(const std::vector<int>& ids, std::size_t keep) {
    std::map<int, int> rows;  // node: its row of logits in the batch in hand
    const auto flush = [&] {
      if (batch_.n_tokens == 0) return;
      decode();
      for (const auto& [id, row] : rows) {
        nodes_.at(id).pending = {llama_sampler_sample(sampler_, context_, row)};
      }
      rows.clear();
      batch_.n_tokens = 0;
    };
    batch_.n_tokens = 0;
    for (const int id : ids) {
      Node& node = nodes_.at(id);
      const std::vector<llama_token> tokens = node.pending;
      for (std::size_t i = 0; i + keep < tokens.size(); ++i) {
        const bool last = i + 1 == tokens.size();
        add(tokens[i], node.length++, node.sequence, last);
        if (last) rows[id] = batch_.n_tokens - 1;
        if (batch_.n_tokens == kBatch) flush();
      }
      if (keep > 0) node.pending = {tokens.back()};
    }
    flush();
  }

  void add(llama_token token, int position, int sequence, bool logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }
  void decode() {
    if (const int status = llama_decode(context_, batch_); status != 0) {
      fail("llama_decode returned " + std::to_string(status));
    }
  }
  llama_token argmax(int row) {
    const llama_token sampled = llama_get_sampled_token_ith(context_, row);
    if (sampled != LLAMA_TOKEN_NULL) return sampled;
    const float* logits = llama_get_logits_ith(context_, row);
    return static_cast<llama_token>(std::max_element(logits, logits + vocab_) - logits);
  }

  const Options& options_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  llama_batch batch_{};
  int vocab_ = 0;
  int length_ = 0;
  llama_token first_ = 0;
  std::vector<float> logits_;  // after the prompt
  Sampler* sampler_ = nullptr;
  std::map<int, Node> nodes_;
  std::vector<int> free_;  // sequences
  int sequences_ = 0;
  int last_node_ = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--cpu-clock") {
      options.cpu_clock = true;
      continue;
    }
    if (flag == "--gpu") {
      options.gpu = options.flash = options.argmax_on_device = true;
      continue;
    }
    if (i + 1 == argc) fail(flag + ": has no value");
    const char* value = argv[++i];
    if (flag == "--model")
      options.model = value;
    else if (flag == "--label")
      options.label = value;
    else if (flag == "--threads")
      options.threads = std::atoi(value);
    else if (flag == "--tokens")
      options.tokens = std::atoi(value);
    else if (flag == "--branches")
      options.branches = std::atoi(value);
    else if (flag == "--flash")
      options.flash = std::atoi(value) != 0;
    else if (flag == "--argmax")
      options.argmax_on_device = std::strcmp(value, "device") == 0;
    else if (flag == "--load")
      options.load = value;
    else if (flag == "--backends")
      options.backends = value;
    else
      fail(flag + ": is not a flag of this program");
  }
  if (options.model.empty()) fail("no --model FILE.gguf");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if ((level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) ||
            std::strstr(text, "Repacked") != nullptr) {
          std::fputs(text, stderr);
        }
      },
      nullptr);
  Peer peer(options);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "hello") {
      std::string file = options.model.substr(options.model.rfind('/') + 1);
      std::printf("%s %s %s threads=%d gpu=%d flash=%d argmax=%s load=%s |%s\n", kEngine,
                  options.label.c_str(), file.c_str(), options.threads, options.gpu, options.flash,
                  options.argmax_on_device ? "device" : "host", options.load.c_str(),
                  llama_print_system_info());
    } else if (command == "prefill") {
      std::vector<llama_token> tokens;
      for (llama_token token = 0; words >> token;) tokens.push_back(token);
      std::printf("%.4f\n", peer.prefill(tokens));
    } else if (command == "decode") {
      int branches = 0;
      int count = 0;
      words >> branches >> count;
      std::vector<double> ms;
      std::vector<llama_token> tokens;
      peer.steps(branches, count, ms, tokens);
      for (const double value : ms) std::printf("%.4f ", value);
      std::printf("|");
      for (const llama_token token : tokens) std::printf(" %d", token);
      std::printf("\n");
#ifndef IK_LLAMA
    } else if (command == "constrain") {
      int branches = 0;
      int count = 0;
      words >> branches >> count >> std::ws;
      std::string grammar;
      std::getline(words, grammar);
      std::replace(grammar.begin(), grammar.end(), '\t', '\n');
      std::vector<double> us;
      std::printf("%.4f", peer.constrained(branches, count, grammar, us));
      for (const double value : us) std::printf(" %.3f", value);
      std::printf("\n");
#endif
    } else if (command == "begin" || command == "child") {
      int parent = 0;
      if (command == "child") words >> parent;
      std::vector<llama_token> tokens;
      for (llama_token token = 0; words >> token;) tokens.push_back(token);
      std::printf("%d\n", command == "begin" ? peer.begin(tokens) : peer.child(parent, tokens));
    } else if (command == "generate") {
      int count = 0;
      float temperature = 0;
      words >> count >> temperature;
      std::vector<int> nodes;
      for (int node = 0; words >> node;) nodes.push_back(node);
      for (const llama_token token : peer.generate(nodes, count, temperature)) {
        std::printf("%d ", token);
      }
      std::printf("\n");
    } else if (command == "drop") {
      int node = 0;
      words >> node;
      peer.drop(node);
      std::printf("ok\n");
    } else {
      fail("unknown command " + command);
    }
    std::fflush(stdout);
  }
  return 0;
}
