#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/json.h"

// Items of OpenAI's Responses API, and the conversation that they are.
namespace dendrite::server {

/// The items of `input`, a text or an array, each with an id and a type; none where it is null.
/// `resolve`: what an item_reference stands for, null where it is not known. Throws Fault 400 that
/// names the field.
Json items_of_input(const Json& input, const std::string& path,
                    const std::function<Json(const std::string& id)>& resolve);

/// Adds what items say to messages in OpenAI's form. What a model wrote one after the other
/// (reasoning, text, calls) is one message. Items that are nothing for a model are left out, and
/// named. Throws Fault 400 that names the field.
void add_items(const Json& items, const std::string& path, Json& messages, Ignored& ignored);

/// What a reasoning item carries of its text for a client that sends back nothing else, and back.
std::string pack_reasoning(const std::string& text);
/// Empty for what is not ours.
std::string unpack_reasoning(const std::string& packed);

}  // namespace dendrite::server
