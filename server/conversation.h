#pragma once

#include <optional>
#include <string>

#include "server/json.h"
#include "server/turn.h"

// Conversations in OpenAI's form, however they came.
namespace dendrite::server {

/// The same messages with all system messages in one at the front, a line each, for templates that
/// know no others; nullopt: there is none behind the front.
std::optional<Json> with_one_system_message(const Json& messages);

/// `more` behind `text`, on a line of its own unless it is the first.
void append_line(std::string& text, bool& first, const std::string& more);

/// A request's object `dendrite`, which has what other servers have not: seed, hold_ms, reuse with
/// max_error, and, where `as_generated` is given, history, which it is set by.
void read_extension(Fields& body, TurnRequest& turn, Ignored& ignored,
                    bool* as_generated = nullptr);

}  // namespace dendrite::server
