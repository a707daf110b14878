#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "llama.h"

// What llama_step.cpp calls of llama.cpp, by ik_llama.cpp, whose C API is an older one: sequences
// belong to the context, and samplers work on candidates on the host.

using llama_memory_t = llama_context*;

inline llama_memory_t llama_get_memory(llama_context* context) {
  return context;
}
inline void llama_memory_clear(llama_memory_t memory, bool) {
  llama_kv_cache_clear(memory);
}
inline void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to,
                                llama_pos begin, llama_pos end) {
  llama_kv_cache_seq_cp(memory, from, to, begin, end);
}
inline bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id sequence, llama_pos begin,
                                llama_pos end) {
  return llama_kv_cache_seq_rm(memory, sequence, begin, end);
}

inline void ggml_backend_load_all_from_path(const char*) {}
inline void llama_model_free(llama_model* model) {
  llama_free_model(model);
}

/// Of a chain the temperature is kept; 0 takes the largest logit.
struct Sampler {
  float temperature = 0;
  std::mt19937 random{1};
};

inline int llama_sampler_chain_default_params() {
  return 0;
}
inline Sampler* llama_sampler_chain_init(int) {
  return new Sampler;
}
inline Sampler* llama_sampler_init_greedy() {
  return new Sampler;
}
inline Sampler* llama_sampler_init_temp(float temperature) {
  return new Sampler{temperature};
}
inline Sampler* llama_sampler_init_dist(std::uint32_t) {
  return new Sampler;
}
inline void llama_sampler_free(Sampler* sampler) {
  delete sampler;
}
inline void llama_sampler_chain_add(Sampler* chain, Sampler* sampler) {
  chain->temperature = std::max(chain->temperature, sampler->temperature);
  llama_sampler_free(sampler);
}

inline llama_token llama_sampler_sample(Sampler* sampler, llama_context* context, int row) {
  const float* logits = llama_get_logits_ith(context, row);
  const float* end = logits + llama_n_vocab(llama_get_model(context));
  const float* most = std::max_element(logits, end);
  if (sampler->temperature <= 0) return static_cast<llama_token>(most - logits);
  std::vector<float> shares(logits, end);
  for (float& share : shares) share = std::exp((share - *most) / sampler->temperature);
  return std::discrete_distribution<llama_token>(shares.begin(), shares.end())(sampler->random);
}

inline bool llama_set_sampler(llama_context*, llama_seq_id, Sampler* sampler) {
  return sampler == nullptr;
}
inline llama_token llama_get_sampled_token_ith(llama_context*, int) {
  return LLAMA_TOKEN_NULL;
}
