#pragma once

#include <string_view>

#include "chat/tool_schema.h"

namespace dendrite::chats {

/// OpenAI's messages as chat templates read them: content in one text, a call's arguments as an
/// object. Throws Error for content that is no text, and for what are no messages.
Json for_template(std::string_view messages_json);

/// Ids of calls, also where results name them, of nine characters at most: their last ones, as
/// Mistral's templates want them.
Json with_short_ids(Json messages);

/// Results of tools in the messages whose calls they answer, as Gemma's templates read them
/// ("tool_responses"); those that answer none stay.
Json with_results_in_calls(const Json& messages);

}  // namespace dendrite::chats
