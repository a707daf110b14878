#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "dendrite/search.h"
#include "server/json.h"
#include "server/service.h"

// What a request says of a search: a strategy of the library by numbers and prompts alone.
namespace dendrite::server {

using SearchStrategy = std::variant<BestOfN, SelfConsistency, BeamSearch, TreeOfThoughts,
                                    DepthFirst, BestFirst, Mcts, SelfRefinement, ForkJoin>;

/// A body of /v1/searches, read.
struct SearchBody {
  std::string model;
  std::vector<Token> prompt;
  std::string prompt_text;  ///< of it, for people
  SearchStrategy strategy;
  Json asked;                            ///< the strategy as it came
  std::optional<Constraint> constraint;  ///< of every text of the search
  std::uint64_t seed = 0;
  Budget budget;
  std::string cache_salt;  ///< of the prompt, and of all that is behind it
  int priority = 0;        ///< higher: sooner
  int at_once = 1;         ///< branches that are decoded at a time, about
  bool stream = false, trace = false;
};

/// Throws Fault naming the path, also for what nobody knows. `cancel` ends the strategy, and what
/// judges for it. In a helper thread: grammars are compiled.
SearchBody read_search(const Service& service, const Json& body, const std::stop_token& cancel);

struct StrategyRead {
  SearchStrategy strategy;
  int at_once = 1;
};
/// `fields`: the member "strategy"; `body`: the whole, whose sampling is in `decode`. `room`:
/// tokens that fit behind the prompt.
StrategyRead read_strategy(Fields& fields, Fields& body, const Service& service,
                           const DecodeParams& decode, std::int64_t room,
                           const std::stop_token& cancel);

}  // namespace dendrite::server
