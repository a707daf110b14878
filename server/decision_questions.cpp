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

/// A text as it is, any other JSON as it is written.
std::string as_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : dump(value);
}

/// `count`: options of the question; `more`: what is said of this one, or empty.
void add_option(Question& question, const Json& value, std::size_t count, const std::string& more) {
  const bool is_level = question.kind == Question::Kind::kScore;
  const std::string label = label_of(question.options.size(), count, is_level);
  question.text += "\n" + label + ": " + as_text(value) + (more.empty() ? "" : " - " + more);
  question.options.push_back({label, value});
}

/// How options are answered, behind them.
void ask_for_one(Question& question) {
  question.text += question.kind == Question::Kind::kScore
                       ? "\nAnswer with the number of one level only."
                   : question.options.size() <= 26 ? "\nAnswer with the letter of one option only."
                                                   : "\nAnswer with the number of one option only.";
}

void ask_yes_or_no(Question& question) {
  question.text += "\nAnswer with yes or no only.";
  question.options = {{"yes", true}, {"no", false}};
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
    add_option(question, *value, all->size(), option.text("description", kMostText).value_or(""));
  }
  ask_for_one(question);
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
    ask_yes_or_no(out);
  } else {
    out.kind = *type == "choice" ? Question::Kind::kChoice : Question::Kind::kScore;
    read_options(out, fields);
  }
  return out;
}

/// "noul" with what yes and no mean, "choice" of names with what is said of each, "score" of
/// levels.
Question read_named_question(const Json& value, const std::string& path) {
  if (!value.is_object()) throw wrong_type(path, value, "an object");
  Fields fields(value, path);
  Question out;
  const auto type = fields.word("type", {"noul", "choice", "score"});
  if (!type) throw bad_request(path + ".type", "it is missing");
  const Json* instructions = fields.find("instructions");
  if (instructions == nullptr) throw bad_request(path + ".instructions", "it is missing");
  out.text = as_text(*instructions);
  const std::string at = path + ".criteria";
  if (*type == "noul") {
    if (const Json* criteria = fields.object("criteria")) {
      Fields meanings(*criteria, at);
      if (const Json* yes = meanings.find("true")) out.text += "\nyes: " + as_text(*yes);
      if (const Json* no = meanings.find("false")) out.text += "\nno: " + as_text(*no);
    }
    ask_yes_or_no(out);
    return out;
  }
  out.kind = *type == "choice" ? Question::Kind::kChoice : Question::Kind::kScore;
  const bool is_level = out.kind == Question::Kind::kScore;
  const Json* criteria =
      is_level ? fields.array("criteria", kMostOptions) : fields.object("criteria");
  if (criteria == nullptr || criteria->size() < 2 || criteria->size() > kMostOptions) {
    throw bad_request(at, "expected 2 to " + std::to_string(kMostOptions));
  }
  for (const auto& [name, each] : criteria->items()) {
    if (is_level) {
      add_option(out, each, criteria->size(), "");
    } else {
      add_option(out, name, criteria->size(), each.is_null() ? "" : as_text(each));
    }
  }
  ask_for_one(out);
  return out;
}

/// Log-probs of labels, as chances that sum to 1.
struct Chances {
  explicit Chances(const std::vector<double>& logprobs) {
    const double most = *std::ranges::max_element(logprobs);
    double sum = 0;
    for (const double logprob : logprobs) {
      sum += std::exp(logprob - most);
      mass += std::exp(logprob);
    }
    for (const double logprob : logprobs) {
      each.push_back(std::isfinite(most) ? std::exp(logprob - most) / sum
                                         : 1.0 / static_cast<double>(logprobs.size()));
    }
    best = static_cast<std::size_t>(std::ranges::max_element(each) - each.begin());
  }
  /// What is expected of levels, the first one 0.
  double level() const {
    double level = 0;
    for (std::size_t i = 0; i < each.size(); ++i) level += static_cast<double>(i) * each[i];
    return level;
  }

  std::vector<double> each;
  std::size_t best = 0;
  double mass = 0;  ///< of the whole distribution
};

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
  const Chances chances(logprobs);
  if (question.kind == Question::Kind::kPredicate) {
    return {{"type", "predicate"}, {"name", question.name}, {"probability", chances.each[0]}};
  }
  Json all = Json::array();
  for (std::size_t i = 0; i < chances.each.size(); ++i) {
    if (question.kind == Question::Kind::kScore) {
      all.push_back(
          {{"value", i}, {"label", question.options[i].value}, {"probability", chances.each[i]}});
    } else {
      all.push_back({{"value", question.options[i].value}, {"probability", chances.each[i]}});
    }
  }
  Json out = {{"type", question.kind == Question::Kind::kScore ? "score" : "choice"},
              {"name", question.name}};
  if (question.kind == Question::Kind::kScore) {
    out["score"] = chances.level();
  } else {
    out["choice"] = question.options[chances.best].value;
  }
  out["probabilities"] = std::move(all);
  out["confidence"] = chances.each[chances.best] * std::min(1.0, chances.mass);
  return out;
}

std::vector<Question> read_named_questions(const Json& questions, const std::string& path) {
  if (!questions.is_object() || questions.empty() || questions.size() > kMostQuestions) {
    throw bad_request(path, "expected an object of 1 to " + std::to_string(kMostQuestions) +
                                " questions by their ids");
  }
  std::vector<Question> out;
  for (const auto& [id, question] : questions.items()) {
    out.push_back(read_named_question(question, path + "." + id));
    out.back().name = id;
  }
  return out;
}

Json read_state(const Json& state) {
  return Json::array({{{"role", "user"}, {"content", as_text(state)}}});
}

Json named_answer_json(const Question& question, const std::vector<double>& logprobs) {
  const Chances chances(logprobs);
  if (question.kind == Question::Kind::kPredicate) {
    return {{"type", "noul"}, {"noul", chances.each[0]}};
  }
  Json legend = Json::object();
  Json all = Json::object();
  for (std::size_t i = 0; i < chances.each.size(); ++i) {
    const Json& value = question.options[i].value;
    legend[std::to_string(i)] = value;
    all[question.kind == Question::Kind::kScore ? std::to_string(i) : value.get<std::string>()] =
        chances.each[i];
  }
  Json out;
  if (question.kind == Question::Kind::kScore) {
    out = {{"type", "score"}, {"score", chances.level()}, {"legend", std::move(legend)}};
  } else {
    out = {{"type", "choice"}, {"choice", question.options[chances.best].value}};
  }
  out["probabilities"] = std::move(all);
  // From 0, where all are as likely, to 1.
  const auto options = static_cast<double>(chances.each.size());
  out["confidence"] = (options * chances.each[chances.best] - 1) / (options - 1);
  return out;
}

}  // namespace dendrite::server
