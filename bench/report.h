#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "statistics.h"

namespace dendrite::bench {

using Json = nlohmann::ordered_json;

/// One measured quantity.
struct Row {
  std::string name;
  Json params = Json::object();
  std::string unit;
  Summary value;
  Json extra = Json::object();    // merged into the row's JSON; not printed
  std::vector<double> samples{};  // one a trial; empty for what was counted or derived
};

/// What a bench found, as a table for people and as JSON for programs, one object a run
/// (bench/results/README.md):
///   {"schema", "bench", "side", "version", "date", "command", "machine", "device", "model",
///   "conditions": [before, after], "rows":
///   [{"name", "params", "unit", "median", "p90", "p99", "min", "ci95", "trials", "samples"}],
///   "peers": [the same, with "peer"]}
class Report {
 public:
  explicit Report(std::string bench);

  void describe(const Engine& engine, const std::string& model);
  void set_device(const std::string& key, Json value) { device_[key] = std::move(value); }

  void add(Row row);
  /// One sample a trial.
  void add(const std::string& name, Json params, const std::string& unit,
           std::span<const double> samples, Better better = Better::kLow);
  /// Several times a trial: median, p99, minimum and "max" are of all, the interval and the samples
  /// of the trials' medians.
  void add_pooled(const std::string& name, Json params, const std::string& unit,
                  std::span<const std::vector<double>> trials);
  /// A value that was counted rather than measured, or that is one number.
  void add_value(const std::string& name, Json params, const std::string& unit, double value,
                 Json extra = Json::object());
  /// `hits` of `trials` as a share, with its Wilson 95 % interval.
  void add_share(const std::string& name, Json params, const std::string& unit, std::int64_t hits,
                 std::int64_t trials, Json extra);
  void add_peer(const std::string& peer, const std::string& name, Json params,
                const std::string& unit, std::span<const double> samples,
                Better better = Better::kLow);
  /// One a trial: ours / theirs or theirs / ours, with both sides' medians.
  void add_ratio(const std::string& name, Json params, std::span<const double> ratios, double ours,
                 double theirs);

  /// Rows are printed as they are added; this writes the JSON. "-": to stdout. Throws Error.
  void write_json(const std::string& path) const;

 private:
  void print(const Row& row, const std::string& peer);

  std::string bench_;
  Json begin_;  // conditions
  std::string side_ = "dendrite";
  std::string model_;
  Json device_ = Json::object();
  Json rows_ = Json::array();
  Json peers_ = Json::array();
  bool header_printed_ = false;
};

/// Git commit of the sources at build time, with "-dirty" where they differed; "unknown" outside
/// git.
std::string commit();

}  // namespace dendrite::bench
