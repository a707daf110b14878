#include "fuzz/report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "fuzz/operations.h"

namespace dendrite::fuzz {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::pair<const char*, std::int64_t>> named(const Counts& c) {
  return {{"programs", c.programs},
          {"forks", c.forks},
          {"rewinds", c.rewinds},
          {"tokens_generated", c.tokens_generated},
          {"tokens_taken", c.tokens_taken},
          {"tokens_accepted", c.tokens_accepted},
          {"copies_on_write", c.copies_on_write},
          {"evictions", c.evictions},
          {"regenerated_tokens", c.regenerated_tokens},
          {"preemptions", c.preemptions},
          {"compositions", c.compositions},
          {"moved_tokens", c.moved_tokens},
          {"restores", c.restores},
          {"refusals", c.refusals},
          {"cut_calls", c.cut_calls},
          {"agent_operations", c.agent_operations},
          {"timeouts", c.timeouts},
          {"refused_tokens", c.refused_tokens},
          {"dead_ends", c.dead_ends},
          {"forced_tokens", c.forced_tokens},
          {"masks_asked", c.masks_asked},
          {"replayed_tokens", c.replayed_tokens},
          {"comparisons", c.comparisons},
          {"compared_values", c.compared_values}};
}

}  // namespace

std::string text_report(const Options& options, const Totals& totals) {
  std::ostringstream out;
  out << totals.ops << " operations in " << std::fixed << std::setprecision(1) << totals.seconds
      << " s (" << std::setprecision(0)
      << static_cast<double>(totals.ops) / std::max(totals.seconds, 1e-9) << " a second), seed "
      << options.seed << '\n';
  const auto row = [&out](const char* name, std::int64_t count) {
    out << "  " << std::left << std::setw(18) << name << std::right << std::setw(14) << count
        << '\n';
  };
  for (std::size_t i = 0; i < operations().size(); ++i) {
    row(operations()[i].name, totals.counts.operations[i]);
  }
  out << '\n';
  for (const auto& [name, count] : named(totals.counts)) row(name, count);
  return out.str();
}

std::string json_report(const Options& options, const Totals& totals, const Finding* finding) {
  Json json;
  json["ops"] = totals.ops;
  json["seconds"] = totals.seconds;
  json["seed"] = options.seed;
  json["operations"] = Json::object();
  for (std::size_t i = 0; i < operations().size(); ++i) {
    json["operations"][operations()[i].name] = totals.counts.operations[i];
  }
  for (const auto& [name, count] : named(totals.counts)) json[name] = count;
  json["violation"] = nullptr;
  if (finding != nullptr) {
    json["violation"] = {{"message", finding->result.message},
                         {"program", finding->result.program},
                         {"operation", finding->result.op},
                         {"file", finding->file},
                         {"shrunk", to_text(finding->program)}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string missing_counts(const Counts& counts) {
  std::string out;
  for (const auto& [name, count] : named(counts)) {
    if (count == 0) out.append(out.empty() ? "" : ", ").append(name);
  }
  for (std::size_t i = 0; i < operations().size(); ++i) {
    if (counts.operations[i] > 0) continue;
    out.append(out.empty() ? "" : ", ").append(operations()[i].name);
  }
  return out;
}

}  // namespace dendrite::fuzz
