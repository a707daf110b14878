#include "server/metrics.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "server/json.h"

namespace dendrite::server {
namespace {

std::string number(double value) {
  return Json(value).dump();
}

const std::vector<double> kSeconds = {0.3, 0.5, 0.8, 1.0,  1.5,  2.0,  2.5,  5.0,   10.0,  15.0,
                                      20., 30., 40., 50.0, 60.0, 120., 240., 480.0, 960.0, 1920.0};
const std::vector<double> kFirst = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06,  0.08, 0.1,
                                    0.25,  0.5,   0.75, 1.0,  2.5,  5.0,   7.5,  10.0,
                                    20.0,  40.0,  80.0, 160., 640., 2560.0};
const std::vector<double> kBetween = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3, 0.4, 0.5,
                                      0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40., 80.0};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

const std::vector<double> kRows = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::add(double value) {
  const auto place = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(place)];
  sum_ += value;
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string out = "# TYPE " + name + " histogram\n";
  std::int64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    out += name + "_bucket{" + labels + ",le=\"" + bound + "\"} " + std::to_string(below) + "\n";
  }
  out += name + "_sum{" + labels + "} " + number(sum_) + "\n";
  return out + name + "_count{" + labels + "} " + std::to_string(below) + "\n";
}

Metrics::Metrics()
    : first_token(kFirst),
      between_tokens(kBetween),
      token(kBetween),
      whole(kSeconds),
      queued(kSeconds),
      prefill(kSeconds),
      decode(kSeconds),
      prompt_lengths(kTokens),
      output_lengths(kTokens),
      step_rows_(kRows) {}

void Metrics::add_step(std::int64_t rows) {
  const std::lock_guard lock(steps_mutex_);
  step_rows_.add(static_cast<double>(rows));
}

std::string Metrics::text(const std::string& prefix, const std::string& model,
                          const EngineStats& engine) const {
  const std::string labels = "model_name=" + Json(model).dump();
  std::string out;
  const auto one = [&](const std::string& name, const char* type, const std::string& value) {
    out += "# TYPE " + prefix + name + " " + type + "\n";
    out += prefix + name + "{" + labels + "} " + value + "\n";
  };
  const auto each = [&](const std::string& name, const std::string& label,
                        const std::map<std::string, std::int64_t>& values) {
    out += "# TYPE " + prefix + name + " counter\n";
    for (const auto& [key, count] : values) {
      out += prefix + name + "{" + labels + "," + label + "=" + Json(key).dump() + "} " +
             std::to_string(count) + "\n";
    }
  };
  const double pages = static_cast<double>(std::max<std::int64_t>(1, engine.pool_pages));
  one("num_requests_running", "gauge", std::to_string(running));
  one("num_requests_waiting", "gauge", std::to_string(waiting));
  one("kv_cache_usage_perc", "gauge", number(static_cast<double>(engine.pages_used) / pages));
  one("prefix_cache_queries_total", "counter", std::to_string(engine.prefix_looked_up_tokens));
  one("prefix_cache_hits_total", "counter", std::to_string(engine.prefix_hit_tokens));
  one("num_preemptions_total", "counter", std::to_string(engine.preemptions));
  one("prompt_tokens_total", "counter", std::to_string(prompt_tokens));
  one("prompt_tokens_cached_total", "counter", std::to_string(cached_tokens));
  one("generation_tokens_total", "counter", std::to_string(generated_tokens));
  each("request_success_total", "finished_reason", ended);
  each("admission_rejections_total", "reason", rejected);
  out += first_token.text(prefix + "time_to_first_token_seconds", labels);
  out += between_tokens.text(prefix + "inter_token_latency_seconds", labels);
  out += token.text(prefix + "request_time_per_output_token_seconds", labels);
  out += whole.text(prefix + "e2e_request_latency_seconds", labels);
  out += queued.text(prefix + "request_queue_time_seconds", labels);
  out += prefill.text(prefix + "request_prefill_time_seconds", labels);
  out += decode.text(prefix + "request_decode_time_seconds", labels);
  out += prompt_lengths.text(prefix + "request_prompt_tokens", labels);
  out += output_lengths.text(prefix + "request_generation_tokens", labels);
  {
    const std::lock_guard lock(steps_mutex_);
    out += step_rows_.text(prefix + "iteration_tokens_total", labels);
  }
  return out + to_prometheus(engine);
}

std::string merged(const std::vector<ModelMetrics>& all) {
  if (all.size() == 1) return all.front().text;
  // Families in the order in which they come: what is told of one, then all its samples.
  struct Family {
    std::string head, samples;
  };
  std::vector<Family> families;
  std::map<std::string, std::size_t> places;
  for (const ModelMetrics& one : all) {
    const std::string label = "model_name=" + Json(one.model).dump();
    std::size_t place = 0;
    std::set<std::size_t> is_new;
    std::istringstream lines(one.text);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# ")) {
        const std::size_t begin = line.find(' ', 2) + 1;
        const std::string name = line.substr(begin, line.find(' ', begin) - begin);
        const auto [found, added] = places.emplace(name, families.size());
        if (added) {
          families.emplace_back();
          is_new.insert(found->second);
        }
        place = found->second;
        if (is_new.contains(place)) families[place].head += line + "\n";
        continue;
      }
      if (line.find("model_name=") == line.npos) {
        const std::size_t open = line.find('{');
        if (open != line.npos) {
          line.insert(open + 1, label + ",");
        } else {
          line.insert(line.find(' '), "{" + label + "}");
        }
      }
      families[place].samples += line + "\n";
    }
  }
  std::string out;
  for (const Family& family : families) out += family.head + family.samples;
  return out;
}

}  // namespace dendrite::server
