#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "commit.h"  // written by commit.cmake
#include "provenance.h"

namespace dendrite::bench {
namespace {

constexpr int kSchema = 1;

/// Six significant digits: more than any clock here has.
double rounded(double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return std::strtod(buffer, nullptr);
}

Json to_json(const Row& row) {
  Json out{{"name", row.name},          {"params", row.params},
           {"unit", row.unit},          {"median", row.value.median},
           {"p90", row.value.p90},      {"p99", row.value.p99},
           {"min", row.value.min},      {"ci95", {row.value.ci_low, row.value.ci_high}},
           {"trials", row.value.trials}};
  for (const double sample : row.samples) out["samples"].push_back(rounded(sample));
  out.update(row.extra);
  return out;
}

std::string text(const Json& params) {
  std::string out;
  for (const auto& [key, value] : params.items()) {
    if (!out.empty()) out += ' ';
    out += key + '=' + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out;
}

/// "step [llama.cpp]"; where a peer has several ways after its version, the way.
std::string label(const std::string& name, const std::string& peer) {
  const std::size_t way = peer.find(", ");
  return (way == std::string::npos ? name : peer.substr(way + 2)) + " [" +
         peer.substr(0, peer.find(' ')) + "]";
}

/// Four significant digits, no exponent for what people compare.
std::string number(double value) {
  char buffer[48];
  const double magnitude = std::fabs(value);
  const int decimals = magnitude >= 1000 ? 0 : magnitude >= 100 ? 1 : magnitude >= 10 ? 2 : 3;
  std::snprintf(buffer, sizeof buffer, "%.*f", decimals, value);
  return buffer;
}

}  // namespace

Report::Report(std::string bench) : bench_(std::move(bench)), begin_(conditions()) {}

std::string commit() {
  return DENDRITE_COMMIT;
}

void Report::describe(const Engine& engine, const std::string& model) {
  const EngineInfo& info = engine.info();
  model_ = model;
  device_["kind"] = info.device;
  device_["name"] = info.device_name;
  device_["kernels"] = info.kernels;
  device_["threads"] = info.threads;
  device_["dtype"] = info.compute_dtype;
  if (info.numerics_key.find("/kv_") != std::string::npos) device_["kv_dtype"] = info.kv_dtype;
  if (info.numerics_key.find("/fast") != std::string::npos) side_ = "dendrite-fast";
  std::printf(
      "%s | %s, %s, %d thread%s, %s | commit %s\n%s: %.1f M parameters, %.2f GB of weights%s\n",
      bench_.c_str(), info.device_name.c_str(), info.kernels.c_str(), info.threads,
      info.threads == 1 ? "" : "s", info.compute_dtype.c_str(), commit().c_str(), model.c_str(),
      static_cast<double>(info.parameters) * 1e-6, static_cast<double>(info.weight_bytes) * 1e-9,
      info.dummy_weights ? " (random)" : "");
}

void Report::print(const Row& row, const std::string& peer) {
  if (!header_printed_) {
    std::printf("\n%-24s %-46s %10s %10s %10s %21s %7s  %s\n", "name", "params", "median", "p99",
                "min", "95 % of the median", "trials", "unit");
    header_printed_ = true;
  }
  const std::string name = peer.empty() ? row.name : label(row.name, peer);
  const std::string interval = number(row.value.ci_low) + " - " + number(row.value.ci_high);
  std::printf("%-24s %-46s %10s %10s %10s %21s %7lld  %s\n", name.c_str(), text(row.params).c_str(),
              number(row.value.median).c_str(), number(row.value.p99).c_str(),
              number(row.value.min).c_str(), interval.c_str(),
              static_cast<long long>(row.value.trials), row.unit.c_str());
  std::fflush(stdout);
}

void Report::add(Row row) {
  print(row, "");
  rows_.push_back(to_json(row));
}

void Report::add(const std::string& name, Json params, const std::string& unit,
                 std::span<const double> samples, Better better) {
  add(Row{.name = name,
          .params = std::move(params),
          .unit = unit,
          .value = summarize(samples, better),
          .samples = {samples.begin(), samples.end()}});
}

void Report::add_pooled(const std::string& name, Json params, const std::string& unit,
                        std::span<const std::vector<double>> trials) {
  std::vector<double> all, medians;
  for (const std::vector<double>& trial : trials) {
    all.insert(all.end(), trial.begin(), trial.end());
    medians.push_back(median(trial));
  }
  Summary value = summarize(all);
  const Summary of_medians = summarize(medians);
  value.ci_low = of_medians.ci_low;
  value.ci_high = of_medians.ci_high;
  value.trials = of_medians.trials;
  add(Row{.name = name,
          .params = std::move(params),
          .unit = unit,
          .value = value,
          .extra = {{"max", std::ranges::max(all)}},
          .samples = medians});
}

void Report::add_value(const std::string& name, Json params, const std::string& unit, double value,
                       Json extra) {
  add(Row{.name = name,
          .params = std::move(params),
          .unit = unit,
          .value = summarize(std::span(&value, 1)),
          .extra = std::move(extra)});
}

void Report::add_share(const std::string& name, Json params, const std::string& unit,
                       std::int64_t hits, std::int64_t trials, Json extra) {
  const Interval interval = wilson(hits, trials);
  const double share = static_cast<double>(hits) / static_cast<double>(trials);
  add(Row{name,
          std::move(params),
          unit,
          {share, share, share, share, interval.low, interval.high, trials},
          std::move(extra)});
}

void Report::add_peer(const std::string& peer, const std::string& name, Json params,
                      const std::string& unit, std::span<const double> samples, Better better) {
  const Row row{.name = name,
                .params = std::move(params),
                .unit = unit,
                .value = summarize(samples, better),
                .extra = {{"peer", peer}},
                .samples = {samples.begin(), samples.end()}};
  print(row, peer);
  peers_.push_back(to_json(row));
}

void Report::add_ratio(const std::string& name, Json params, std::span<const double> ratios,
                       double ours, double theirs) {
  add(Row{name,
          std::move(params),
          "x",
          summarize(ratios, Better::kHigh),
          {{"ours_median", ours}, {"peer_median", theirs}}});
}

void Report::write_json(const std::string& path) const {
  const Json out{{"schema", kSchema},    {"bench", bench_},
                 {"side", side_},        {"version", commit()},
                 {"date", utc_now()},    {"command", command_line()},
                 {"machine", machine()}, {"device", device_},
                 {"model", model_},      {"conditions", {begin_, conditions()}},
                 {"rows", rows_},        {"peers", peers_}};
  const std::string line = out.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (path == "-") {
    std::printf("%s\n", line.c_str());
    return;
  }
  std::ofstream file(path);
  file << line << "\n";
  file.flush();
  if (!file) throw Error(path + ": cannot be written; expected a file in a writable folder");
}

}  // namespace dendrite::bench
