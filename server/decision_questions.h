#pragma once

#include <string>
#include <vector>

#include "server/json.h"

// Questions about an input that has a few possible answers each, as a model reads and answers them.
namespace dendrite::server {

/// A question of /v1/decisions and /v1/systemone.
struct Question {
  enum class Kind { kPredicate, kChoice, kScore };
  struct Option {
    std::string label;  ///< what the model answers
    Json value;         ///< a choice's, a text or a boolean; a level's label
  };
  Kind kind = Kind::kPredicate;
  Json name;  ///< a text or null; with /v1/systemone its id
  std::string text;
  std::vector<Option> options;  ///< of a predicate: yes, no
};

/// Throws Fault naming the path. 1 to 400 of them.
std::vector<Question> read_questions(const Json& questions, const std::string& path);

/// The input's messages, as a chat's. Throws Fault naming the path.
Json read_decision_input(const Json& input, const std::string& path);

/// The answer: `logprobs` of each label.
Json answer_json(const Question& question, const std::vector<double>& logprobs);

// The same of /v1/systemone: questions by their ids (yes or no is "noul"), a state that is a text
// or any JSON.
std::vector<Question> read_named_questions(const Json& questions, const std::string& path);
Json read_state(const Json& state);
Json named_answer_json(const Question& question, const std::vector<double>& logprobs);

}  // namespace dendrite::server
