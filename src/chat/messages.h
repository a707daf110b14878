#pragma once

#include <string_view>

#include "chat/tool_schema.h"

namespace dendrite::chats {

/// OpenAI's messages as chat templates read them: content in one text, a call's arguments as an
/// object. Throws Error for content that is no text, and for what are no messages.
Json for_template(std::string_view messages_json);

}  // namespace dendrite::chats
