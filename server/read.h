#pragma once

#include "server/json.h"
#include "server/service.h"
#include "server/turn.h"

// Fields that several APIs have, from their bodies into a turn.
namespace dendrite::server {

/// temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
/// stop, stop_token_ids, include_stop_str_in_output, ignore_eos, min_tokens, logit_bias, bad_words,
/// priority, cache_salt: OpenAI's defaults where the model's generation_config.json has none.
void read_sampling(Fields& body, const Service& service, TurnRequest& turn);

/// Empty: none.
std::string read_cache_salt(Fields& body);

/// The sampling that counts for a body without any such fields.
void default_sampling(const Service& service, TurnRequest& turn);

/// response_format and structured_outputs, into the constraint; at most one of them. Compiled here,
/// so that what cannot be obeyed is refused: 400, invalid_schema.
void read_constraint(Fields& body, const Service& service, TurnRequest& turn);

/// The constraint of a JSON schema that a client gave, checked; `path` is for errors.
Constraint checked_schema(const Service& service, const Json& schema, const std::string& path);

}  // namespace dendrite::server
