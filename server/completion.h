#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/service.h"

// Completions of prompts and of branches, to one answer or one stream.
namespace dendrite::server {

/// A body, read. `turns`: one for each prompt.
struct CompletionBody {
  std::vector<TurnRequest> turns;
  std::vector<std::string> texts;  // of the prompts, with echo
  std::string model;
  int n = 1;
  bool echo = false, stream = false, include_usage = false, token_ids = false;
  std::optional<int> logprobs;
  std::optional<std::uint64_t> seed;  // none: a branch's own
  Ignored ignored;
};

/// For turns that go on with a branch.
struct Keepers {
  std::function<void(Branch)> kept{};          ///< gets it back, see TurnRequest::keep
  std::function<void(const Turn&)> started{};  ///< in the I/O thread
  /// Calls it, in any thread, when what was kept would survive; nobody hears of the end before. A
  /// fault is one of the answer.
  std::function<void(std::function<void(std::optional<Fault>)>)> when_safe{};
};

/// All but the prompts: `out` and what its turns have in common. Throws Fault.
void read_completion(Fields& fields, const Service& service, CompletionBody& out,
                     TurnRequest& common);

/// Starts the turns, and answers with what comes of them.
void complete(Service& service, Caller caller, CompletionBody body, const Reply& reply,
              Keepers keepers = {});

}  // namespace dendrite::server
