#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/json.h"
#include "server/responses_run.h"

// Another response that begins as one which is under way, and goes its own way from there.
namespace dendrite::server {

/// What a fork is asked to be.
struct ForkRequest {
  std::optional<std::int64_t>
      at;      ///< tokens of its output that it keeps; unset: all that are there
  Json input;  ///< items that are said to it; null: none, it goes on writing
  bool store = true, stream = false, background = false;
  std::optional<std::int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<std::uint64_t> seed;
  Json metadata = Json::object();
  Ignored ignored;
};

/// Throws Fault 400 that names the field.
ForkRequest read_fork(const Json& body);

/// From any thread. The response of this id goes on as though nothing had been.
void fork_response(Responses& all, ForkRequest request, const std::string& id, Caller caller,
                   const Reply& reply);

/// What a branch, whose reply begins behind its prompt, has written, read by `parser`.
std::vector<ReplyEvent> read_branch(Branch& branch, ReplyParser& parser);

}  // namespace dendrite::server
