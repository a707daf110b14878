#include "server/decision_questions.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "server/chat_request.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostQuestions = 400;
constexpr std::size_t kMostOptions = 255;
constexpr std::size_t kMostText = std::size_t{1} << 20;

/// A letter where those suffice, else three digits: none is the beginning of another.
std::string label_of(std::size_t index, std::size_t options, bool is_level) {
  if (is_level && options <= 10) return std::string(1, static_cast<char>('0' + index));
  if (!is_level && options <= 26) return std::string(1, static_cast<char>('A' + index));
  const std::string number = std::to_string(index);
  return std::string(3 - number.size(), '0') + number;
}

/// A text, or the texts of parts.
std::string read_text(const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) throw wrong_type(path, value, "a text or an array of parts");
  std::string out;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string at = at_index(path, i);
    Fields part(value[i], at);
    const std::string type = part.text("type").value_or("");
    std::string text;
    if (type == "input_json") {
      const Json* json = part.find("data");
      if (json == nullptr) throw bad_request(at + ".data", "it is missing");
      text = dump(*json);
    } else if (type == "input_text" || type == "output_text" || type == "text") {
      text = part.text("text", kMostText).value_or("");
    } else {
      throw bad_request(at + ".type", "parts of type " + echoed(type) + " are not supported here",
                        "unsupported_value");
    }
    out += (i > 0 ? "\n" : "") + text;
  }
  return out;
}

void add_option(Question& question, const Json& value, std::size_t count, Fields& fields) {
  const bool is_level = question.kind == Question::Kind::kScore;
  const std::string label = label_of(question.options.size(), count, is_level);
  const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
  question.text += "\n" + label + ": " + shown;
  if (const auto more = fields.text("description", kMostText); more && !more->empty()) {
    question.text += " - " + *more;
  }
  question.options.push_back({label, value});
}

void read_options(Question& question, Fields& fields) {
  const bool is_level = question.kind == Question::Kind::kScore;
  const char* name = is_level ? "levels" : "choices";
  const Json* all = fields.array(name, kMostOptions);
  if (all == nullptr || all->size() < 2) {
    throw bad_request(fields.path(name), "expected 2 to " + std::to_string(kMostOptions));
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < all->size(); ++i) {
    const std::string at = at_index(fields.path(name), i);
    Fields option((*all)[i], at);
    const char* key = is_level ? "label" : "value";
    const Json* value = option.find(key);
    const bool is_value =
        value != nullptr && (value->is_string() || (!is_level && value->is_boolean()));
    if (!is_value) {
      throw bad_request(at + "." + key,
                        is_level ? "expected a text" : "expected a text or boolean");
    }
    if (!seen.insert(value->dump()).second) {
      throw bad_request(at + "." + key, echoed(value->dump()) + " is there twice");
    }
    add_option(question, *value, all->size(), option);
  }
  question.text += is_level            ? "\nAnswer with the number of one level only."
                   : all->size() <= 26 ? "\nAnswer with the letter of one option only."
                                       : "\nAnswer with the number of one option only.";
}

Question read_question(const Json& value, const std::string& path) {
  Fields fields(value, path);
  Question out;
  const auto type = fields.word("type", {"predicate", "choice", "score"});
  if (!type) throw bad_request(path + ".type", "it is missing");
  if (const auto name = fields.text("name", kMostText)) out.name = *name;
  const Json* instructions = fields.find("instructions");
  if (instructions == nullptr) throw bad_request(path + ".instructions", "it is missing");
  out.text = read_text(*instructions, path + ".instructions");
  if (*type == "predicate") {
    out.text += "\nAnswer with yes or no only.";
    out.options = {{"yes", true}, {"no", false}};
  } else {
    out.kind = *type == "choice" ? Question::Kind::kChoice : Question::Kind::kScore;
    read_options(out, fields);
  }
  return out;
}

}  // namespace

std::vector<Question> read_questions(const Json& questions, const std::string& path) {
  if (!questions.is_array() || questions.empty() || questions.size() > kMostQuestions) {
    throw bad_request(path, "expected 1 to " + std::to_string(kMostQuestions) + " questions");
  }
  std::vector<Question> out;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    out.push_back(read_question(questions[i], at_index(path, i)));
  }
  return out;
}

Json read_decision_input(const Json& input, const std::string& path) {
  if (input.is_string()) return Json::array({{{"role", "user"}, {"content", input}}});
  if (!input.is_array()) throw wrong_type(path, input, "a text or an array of messages");
  Json messages = Json::array();
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string at = at_index(path, i);
    Fields fields(input[i], at);
    const std::string type = fields.text("type").value_or("message");
    if (type == "function_call") {
      messages.push_back({{"role", "assistant"},
                          {"content", ""},
                          {"tool_calls",
                           {{{"id", fields.text("call_id").value_or("")},
                             {"type", "function"},
                             {"function",
                              {{"name", fields.text("name").value_or("")},
                               {"arguments", fields.text("arguments").value_or("{}")}}}}}}});
    } else if (type == "function_call_output") {
      const Json* output = fields.find("output");
      messages.push_back(
          {{"role", "tool"},
           {"tool_call_id", fields.text("call_id").value_or("")},
           {"content", output == nullptr ? "" : read_text(*output, at + ".output")}});
    } else if (type == "message") {
      const Json* content = fields.find("content");
      if (content == nullptr) throw bad_request(at + ".content", "it is missing");
      messages.push_back({{"role", fields.text("role").value_or("")},
                          {"content", read_text(*content, at + ".content")}});
    } else {
      throw bad_request(at + ".type", "items of type " + echoed(type) + " are not supported here",
                        "unsupported_value");
    }
  }
  return read_messages(messages, path);
}

Json answer_json(const Question& question, const std::vector<double>& logprobs) {
  const double most = *std::ranges::max_element(logprobs);
  double sum = 0;
  double mass = 0;
  for (const double logprob : logprobs) {
    sum += std::exp(logprob - most);
    mass += std::exp(logprob);
  }
  std::vector<double> chances;
  for (const double logprob : logprobs) {
    chances.push_back(std::isfinite(most) ? std::exp(logprob - most) / sum
                                          : 1.0 / static_cast<double>(logprobs.size()));
  }
  const auto best = static_cast<std::size_t>(std::ranges::max_element(chances) - chances.begin());
  if (question.kind == Question::Kind::kPredicate) {
    return {{"type", "predicate"}, {"name", question.name}, {"probability", chances[0]}};
  }
  Json all = Json::array();
  double level = 0;
  for (std::size_t i = 0; i < chances.size(); ++i) {
    level += static_cast<double>(i) * chances[i];
    if (question.kind == Question::Kind::kScore) {
      all.push_back(
          {{"value", i}, {"label", question.options[i].value}, {"probability", chances[i]}});
    } else {
      all.push_back({{"value", question.options[i].value}, {"probability", chances[i]}});
    }
  }
  Json out = {{"type", question.kind == Question::Kind::kScore ? "score" : "choice"},
              {"name", question.name}};
  if (question.kind == Question::Kind::kScore) {
    out["score"] = level;
  } else {
    out["choice"] = question.options[best].value;
  }
  out["probabilities"] = std::move(all);
  out["confidence"] = chances[best] * std::min(1.0, mass);
  return out;
}

}  // namespace dendrite::server
