#pragma once

#include "server/json.h"
#include "server/service.h"
#include "server/turn.h"

// What OpenAI's older endpoints say alike.
namespace dendrite::server {

/// Token ids, checked. Throws Fault naming the path.
std::vector<Token> read_ids(const Json& ids, const std::string& path, std::int64_t vocab);

/// moved, repaired, estimated_error and a note, of a turn that might be composed.
void add_composed(Json& extension, const TurnUsage& usage);

/// "usage", with what was found and what was computed of the prompt.
Json openai_usage(const TurnUsage& usage);

/// A token as text: what it decodes to, or token_id:5 where that is not whole characters.
std::string token_text(const Service& service, Token token);

/// -infinity as -9999.0, as other servers have it.
double logprob_number(float logprob);

/// An element of logprobs.content of a chat.
Json chat_logprob(const Service& service, const ChosenToken& token);

/// An event of a stream: the members of an object, whose text is `head`, and those of `rest`. The
/// chunks of one stream have the same head, which is made once.
std::string chunk_event(std::string_view head, const Json& rest);

/// What of a choice's end OpenAI has no word for, such as "budget" or "dead_end"; else null.
Json unusual_finish(const TurnEnd& end);

Answer openai_form(const Fault& fault, const Request& request);

/// x-dendrite-ignored, where there is something.
void tell_ignored(const Reply& reply, const Ignored& ignored);
/// The same of a body's members that nobody has asked for.
void tell_rest(const Reply& reply, const Fields& fields);

}  // namespace dendrite::server
