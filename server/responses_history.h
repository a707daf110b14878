#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/service.h"

// Conversations that go on as they were generated: `dendrite.history` is "as_generated".
namespace dendrite::server {

/// What the template writes behind a reply: the end of its turn, what is said then, and the
/// beginning of another one, as what follows the tokens `before`, which end with that reply. In
/// `messages_json` a `word` that is nowhere else stands for it. Throws Fault where the template
/// doesn't tell.
std::vector<Token> tokens_behind(const Service& service, const std::string& messages_json,
                                 const std::string& word, const ChatParams& chat,
                                 std::span<const Token> before);

}  // namespace dendrite::server
