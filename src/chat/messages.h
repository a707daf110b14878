#pragma once

#include <string>
#include <string_view>

namespace dendrite::chats {

/// OpenAI's messages as chat templates read them: content in one text, a call's arguments as an
/// object. Throws Error for content that is no text, and for what are no messages.
std::string for_template(std::string_view messages_json);

}  // namespace dendrite::chats
