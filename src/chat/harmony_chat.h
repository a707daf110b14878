#pragma once

#include <optional>
#include <string>

#include "chat/tool_schema.h"
#include "dendrite/engine.h"
#include "dendrite/harmony.h"

// What a model in whose template conversations are in Harmony reads.
namespace dendrite::chats {

/// Its marks, where the template writes them and they are tokens. A model without them has none.
std::optional<HarmonyTokens> harmony_tokens_of(const Engine& engine);

/// Messages (for_template) so that such a template loses nothing of them. It knows a system message
/// at the front alone: there are all of them. It writes one call of a message, and takes the
/// results behind it for that call's: each call gets a message of its own, with its results behind
/// it. It refuses thoughts beside content in a message with calls: what was said goes behind what
/// was thought.
Json messages_for_harmony(const Json& messages);
/// Tools (OpenAI's form) with a description each, without which such a template fails.
Json tools_for_harmony(Json tools);
/// Variables of the template with a reasoning_effort that the models know: of others ("none",
/// "xhigh") the next one. Without one, "low" where enable_thinking is false.
std::string variables_for_harmony(const std::string& template_json);

}  // namespace dendrite::chats
