#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "dendrite/stats.h"

namespace dendrite::server {

/// Counts values by upper bounds. Used by one thread.
class Histogram {
 public:
  /// `bounds`: ascending.
  explicit Histogram(std::vector<double> bounds);
  void add(double value);
  /// Of Prometheus's text format.
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
};

/// What the server counts. All but the atomics in the I/O thread alone.
struct Metrics {
  Metrics();

  std::atomic<int> running{0};  ///< requests
  std::atomic<int> waiting{0};
  std::int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::map<std::string, std::int64_t> ended;     ///< choices by how they finished
  std::map<std::string, std::int64_t> rejected;  ///< by code
  Histogram first_token, between_tokens, token, whole, queued, prefill, decode, prompt_lengths,
      output_lengths;

  /// A step took so many rows of one session: a key's, or a search's. In any thread.
  void add_step(std::int64_t rows);

  /// `prefix`: of the names that are vLLM's too ("dendrite:"); the engine's follow.
  std::string text(const std::string& prefix, const std::string& model,
                   const EngineStats& engine) const;

 private:
  mutable std::mutex steps_mutex_;
  Histogram step_rows_;  // with the mutex
};

/// What text() of a model is.
struct ModelMetrics {
  std::string model, text;
};
/// Those of several models as one text, the samples of each with its name. One alone is as it is.
std::string merged(const std::vector<ModelMetrics>& all);

}  // namespace dendrite::server
