#pragma once

#include <map>
#include <optional>
#include <string>

#include "dendrite/engine.h"
#include "dendrite/reasoning.h"
#include "dendrite/types.h"

namespace dendrite::chats {

/// The tokens of a model's folder that are no text to a grammar, which has to name them: special
/// ones and tags (<...>). Without a tokenizer.json none. O(its size). Throws Error for what is no
/// JSON.
std::map<std::string, Token> added_tokens(const std::string& model_path);

/// The tokens of a model that stand in calls of tools.
std::map<Token, std::string> call_marks_of(const Engine& engine);

/// What the model writes around its thoughts, if its template or its tokens know of any.
std::optional<ReasoningTags> reasoning_tags_of(const std::string& model_path,
                                               const std::map<std::string, Token>& added);

}  // namespace dendrite::chats
