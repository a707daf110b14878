#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "dendrite/search/answers.h"
#include "dendrite/search/beam.h"
#include "dendrite/search/common.h"
#include "dendrite/search/fork_join.h"
#include "dendrite/search/mcts.h"
#include "dendrite/search/refinement.h"
#include "dendrite/search/trees.h"

// A search on record: JSON lines in UTF-8, one object each. Two runs of one search with the same
// parameters and seed give the same bytes, whatever the threads and batches, unless times are on.
//
// 1. The header, the first line:
//      {"trace":1,"strategy":"mcts","params":{"iterations":"64",...},"seed":7,"prompt":"...",
//       "model":"dendrite-24","numerics":"cpu/avx2/bf16"}
//    "trace" is the version of the format. "params" are texts, in order: what run() of the strategy
//    was told (numbers; not its callables), then what the program added with `with`.
// 2. One line an event, in the order of SearchEvents:
//      {"event":"proposed","node":3,"parent":1,"depth":2,"text":"10-4=6 | 5 6 6","tokens":[...],
//       "logprob":-0.25}
//      {"event":"judged","node":3,"value":0.93}
//      {"event":"visited","node":3,"value":0.41,"visits":5}
//      {"event":"kept","node":3}      {"event":"pruned","node":3}      {"event":"solved","node":3}
//    "node" counts from 1 in the order of "proposed"; parent 0 is the prompt. A node is proposed
//    before anything else is said of it, and a later value of one replaces an earlier one. "tokens"
//    are the ids of the step, "text" is theirs without line ends behind. Behind a join "proposed"
//    has "joined":[3,4,5], the nodes that were joined, the parent first. "value" is null where it
//    could not be computed. With times on, events have "ms", milliseconds since the header.
// 3. The result, the last line; missing where the program ended before its search did:
//      {"result":{"solved":true,"finish":"stop","path":[1,3,7],"nodes":12}}
//    "path" are the nodes from the first step to the result's last, empty when there is none;
//    "finish" is name_of(Finish); self-consistency adds "votes":[["24",5],["18",2]].
namespace dendrite {

inline constexpr int kTraceVersion = 1;

using TraceParams = std::vector<std::pair<std::string, std::string>>;

/// What a trace says of a strategy: its name and the numbers that it was told.
struct StrategyInfo {
  std::string name;
  TraceParams params;
};
StrategyInfo describe(const TreeOfThoughts& strategy);
StrategyInfo describe(const DepthFirst& strategy);
StrategyInfo describe(const BestFirst& strategy);
StrategyInfo describe(const BeamSearch& strategy);
StrategyInfo describe(const BestOfN& strategy);
StrategyInfo describe(const SelfConsistency& strategy);
StrategyInfo describe(const Mcts& strategy);
StrategyInfo describe(const SelfRefinement& strategy);
StrategyInfo describe(const ForkJoin& strategy);

struct TraceHeader {
  int version = kTraceVersion;
  std::string strategy;
  TraceParams params;
  std::uint64_t seed = 0;
  std::string prompt;
  std::string model;     ///< the folder's name
  std::string numerics;  ///< EngineInfo::numerics_key

  /// Adds a parameter of the program's own, such as which puzzle it was.
  TraceHeader& with(std::string name, std::string value);
  /// The value of a parameter; throws Error naming it when there is none.
  const std::string& param(std::string_view name) const;
};
TraceHeader trace_header(const Engine& engine, StrategyInfo strategy, std::uint64_t seed,
                         std::string prompt);

/// Writes a trace while a search runs:
///     SearchTrace trace(file, trace_header(engine, describe(strategy), seed, prompt));
///     strategy.on_event = [&](const SearchEvent& event) { trace.on(event); };
///     trace.finish(session.run_tree(strategy, prompt));
class SearchTrace {
 public:
  /// Writes the header. `times`: events get the time since then. `out` must outlive the trace.
  SearchTrace(std::ostream& out, const TraceHeader& header, bool times = false);
  void on(const SearchEvent& event);
  void finish(const SearchResult& result);

 private:
  std::ostream& out_;
  bool times_;
  std::chrono::steady_clock::time_point begin_;
};

/// A line of a trace; what its kind does not have is as it is here.
struct TraceEvent {
  SearchEvent::Kind kind = SearchEvent::Kind::kProposed;
  std::int64_t node = 0;
  std::int64_t parent = 0;
  int depth = 0;
  std::string text;
  std::vector<Token> tokens;
  std::vector<std::int64_t> joined;
  double logprob = 0;
  double value = 0;  ///< NaN: could not be computed
  std::int64_t visits = 0;
  double ms = -1;  ///< -1: the trace has no times
};

struct TraceResult {
  bool solved = false;
  std::string finish;
  std::vector<std::int64_t> path;
  std::int64_t nodes = 0;
  std::vector<Vote> votes;
};

struct Trace {
  TraceHeader header;
  std::vector<TraceEvent> events;
  std::optional<TraceResult> result;  ///< empty: the search did not come to its end
};

/// Reads a trace. Throws Error with the number of the line: not JSON, a field that is missing or of
/// another type, a node before it was proposed, or another version.
Trace read_trace(std::istream& in);

/// Where two traces part.
struct TraceDifference {
  std::int64_t line = 0;  ///< from 1
  std::string expected;   ///< the line of the first trace, empty: it has ended
  std::string got;        ///< the line of the second
  std::string message() const;
};
/// The first difference but for times; nullopt: none.
std::optional<TraceDifference> compare_traces(std::istream& expected, std::istream& got);

/// Searches again and compares: `search` gets the header of the trace and where to write, and has
/// to run the same strategy with a SearchTrace. Throws what read_trace and `search` throw.
std::optional<TraceDifference> replay(
    std::istream& trace,
    const std::function<void(const TraceHeader& header, std::ostream& out)>& search);

}  // namespace dendrite
