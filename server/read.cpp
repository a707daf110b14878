#include "server/read.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dendrite/error.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostStops = 16;
constexpr std::size_t kMostStopBytes = 256;
constexpr std::size_t kMostStopTokens = 64;
constexpr std::size_t kMostBias = 1024;
constexpr std::size_t kMostSalt = 4 << 10;
constexpr std::size_t kMostSchemaBytes = std::size_t{256} << 10;
constexpr JsonLimits kSchemaLimits{.depth = 32, .values = 20'000};

Token token_of(const Json& value, const std::string& path, std::int64_t vocab) {
  const bool is_id = value.is_number_integer() && value >= 0 && value < vocab;
  if (!is_id) {
    throw wrong_type(path, value, "a token, 0 to " + std::to_string(vocab - 1));
  }
  return value.get<Token>();
}

/// Texts, or one of them.
std::vector<std::string> texts(Fields& body, std::string_view name) {
  const Json* value = body.find(name);
  if (value == nullptr) return {};
  std::vector<std::string> out;
  const auto add = [&](const Json& each, const std::string& path) {
    if (!each.is_string()) throw wrong_type(path, each, "a text");
    out.push_back(each.get<std::string>());
    if (out.back().empty() || out.back().size() > kMostStopBytes) {
      throw bad_request(path, "it has " + std::to_string(out.back().size()) +
                                  " bytes; expected 1 to " + std::to_string(kMostStopBytes));
    }
  };
  if (!value->is_array()) {
    add(*value, body.path(name));
    return out;
  }
  const Json* all = body.array(name, kMostStops);
  for (std::size_t i = 0; i < all->size(); ++i) add((*all)[i], at_index(body.path(name), i));
  return out;
}

void read_bias(Fields& body, std::int64_t vocab, DecodeParams& decode) {
  const Json* bias = body.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMostBias) {
    throw bad_request("logit_bias", "it has " + std::to_string(bias->size()) +
                                        " members; expected at most " + std::to_string(kMostBias));
  }
  for (const auto& [key, value] : bias->items()) {
    const std::string path = body.path("logit_bias") + "." + key;
    Token id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab) {
      throw bad_request("logit_bias", "the key " + echoed(key) + " is no token; expected 0 to " +
                                          std::to_string(vocab - 1));
    }
    if (!value.is_number() || std::abs(value.get<double>()) > 100) {
      throw wrong_type(path, value, "a number from -100 to 100");
    }
    decode.logit_bias.emplace_back(id, value.get<float>());
  }
}

void positive(const std::optional<double>& value, std::string_view name) {
  if (value && *value <= 0) throw bad_request(std::string(name), "got 0; expected more than 0");
}

}  // namespace

void default_sampling(const Service& service, TurnRequest& turn) {
  DecodeParams& decode = turn.chat.generate.decode;
  if (!service.model_says_sampling && !decode.temperature) decode.temperature = 1;
}

std::string read_cache_salt(Fields& body) {
  const auto salt = body.text("cache_salt", kMostSalt);
  if (salt && salt->empty()) throw bad_request("cache_salt", "it is empty; expected some text");
  return salt.value_or("");
}

void read_sampling(Fields& body, const Service& service, TurnRequest& turn) {
  const std::int64_t vocab = service.engine.info().vocab;
  DecodeParams& decode = turn.chat.generate.decode;
  decode.temperature = body.number("temperature", 0, 100);
  decode.top_p = body.number("top_p", 0, 1);
  positive(decode.top_p, "top_p");
  if (const auto top_k = body.integer("top_k", -1, INT32_MAX)) {
    decode.top_k = std::max<std::int64_t>(0, *top_k);
  }
  decode.min_p = body.number("min_p", 0, 1);
  decode.repetition_penalty = body.number("repetition_penalty", 0, 100);
  positive(decode.repetition_penalty, "repetition_penalty");
  decode.presence_penalty = body.number("presence_penalty", -2, 2);
  decode.frequency_penalty = body.number("frequency_penalty", -2, 2);
  if (const auto seed = body.integer("seed", INT64_MIN, INT64_MAX)) {
    turn.seed = static_cast<std::uint64_t>(*seed);
  }
  decode.stop = texts(body, "stop");
  if (const Json* ids = body.array("stop_token_ids", kMostStopTokens)) {
    for (std::size_t i = 0; i < ids->size(); ++i) {
      decode.stop_tokens.push_back(
          token_of((*ids)[i], at_index(body.path("stop_token_ids"), i), vocab));
    }
  }
  body.refuse("include_stop_str_in_output", "a stop text is never part of an answer here");
  decode.ignore_eos = body.boolean("ignore_eos").value_or(false);
  decode.min_tokens = body.integer("min_tokens", 0, INT32_MAX);
  read_bias(body, vocab, decode);
  decode.bad_words = texts(body, "bad_words");
  if (!body.boolean("skip_special_tokens").value_or(true)) {
    throw bad_request("skip_special_tokens", "special tokens are never part of an answer's text",
                      "unsupported_value");
  }
  body.accept("spaces_between_special_tokens");
  if (const auto priority = body.integer("priority", -1'000'000, 1'000'000)) {
    turn.priority = static_cast<int>(-*priority);  // in these APIs lower is sooner
  }
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
        "grammar", "regex", "ebnf", "json_schema", "structural_tag"}) {
    body.refuse(name, "please use response_format or structured_outputs");
  }
  body.refuse("allowed_token_ids", "please use structured_outputs or logit_bias");
  body.refuse("logits_processors", "it is not supported");
  body.refuse("use_beam_search", "it is not supported");
  body.refuse("prompt_logprobs", "please use echo and logprobs of /v1/completions");
  body.refuse("truncate_prompt_tokens", "prompts are never cut");
  turn.cache_salt = read_cache_salt(body);
  for (const char* name : {"lora", "lora_path", "lora_request", "id_slot"}) {
    body.refuse(name, "it is not supported");
  }
  for (const char* name : {"user", "metadata", "store", "service_tier", "prompt_cache_key",
                           "prompt_cache_retention", "prompt_cache_options", "safety_identifier"}) {
    body.accept(name);
  }
  default_sampling(service, turn);
}

Constraint checked_schema(const Service& service, const Json& schema, const std::string& path) {
  if (!schema.is_object() && !schema.is_boolean()) {
    throw wrong_type(path, schema, "a JSON schema");
  }
  const std::string text = schema.dump();
  if (text.size() > kMostSchemaBytes) {
    throw bad_request(path,
                      "the schema has " + std::to_string(text.size()) +
                          " bytes; expected at most " + std::to_string(kMostSchemaBytes),
                      "invalid_schema");
  }
  try {
    parse_json(text, kSchemaLimits);
    Constraint constraint = Constraint::json_schema(text);
    service.engine.check(constraint);
    return constraint;
  } catch (const Fault&) {
    throw bad_request(path, "the schema is too deep or has too many parts", "invalid_schema");
  } catch (const ConstraintError& error) {
    throw bad_request(path, error.what(), "invalid_schema");
  }
}

namespace {

std::optional<Constraint> response_format(Fields& body, const Service& service) {
  const Json* format = body.object("response_format");
  if (format == nullptr) return std::nullopt;
  Fields fields(*format, body.path("response_format"));
  const std::optional<std::string> type =
      fields.word("type", {"text", "json_object", "json_schema"});
  if (!type) throw bad_request(fields.path("type"), "it is missing");
  if (*type == "text") return std::nullopt;
  if (*type == "json_object") return Constraint::json_object();
  const Json* given = fields.object("json_schema");
  if (given == nullptr) throw bad_request(fields.path("json_schema"), "it is missing");
  const auto schema = given->find("schema");
  if (schema == given->end()) {
    throw bad_request(fields.path("json_schema") + ".schema", "it is missing");
  }
  return checked_schema(service, *schema, fields.path("json_schema") + ".schema");
}

std::optional<Constraint> structured_outputs(Fields& body, const Service& service) {
  const Json* given = body.object("structured_outputs");
  if (given == nullptr) return std::nullopt;
  Fields fields(*given, body.path("structured_outputs"));
  std::vector<Constraint> all;
  if (const Json* schema = fields.find("json")) {
    const Json read = schema->is_string() ? parse_json(schema->get<std::string>()) : *schema;
    all.push_back(checked_schema(service, read, fields.path("json")));
  }
  if (fields.boolean("json_object").value_or(false)) all.push_back(Constraint::json_object());
  if (const auto text = fields.text("regex", kMostSchemaBytes)) {
    all.push_back(Constraint::regex(*text));
  }
  if (const auto text = fields.text("grammar", kMostSchemaBytes)) {
    all.push_back(Constraint::lark(*text));
  }
  if (const Json* options = fields.array("choice", 1000)) {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < options->size(); ++i) {
      if (!(*options)[i].is_string()) {
        throw wrong_type(at_index(fields.path("choice"), i), (*options)[i], "a text");
      }
      texts.push_back((*options)[i].get<std::string>());
    }
    all.push_back(Constraint::choice(texts));
  }
  fields.refuse("structural_tag", "it is not supported");
  for (const char* name : {"disable_any_whitespace", "disable_fallback"}) fields.accept(name);
  if (all.size() != 1) {
    throw bad_request(body.path("structured_outputs"),
                      "it has " + std::to_string(all.size()) +
                          " of json, json_object, regex, choice and grammar; expected one");
  }
  try {
    service.engine.check(all.front());
  } catch (const ConstraintError& error) {
    throw bad_request(body.path("structured_outputs"), error.what(), "invalid_schema");
  }
  return all.front();
}

}  // namespace

void read_constraint(Fields& body, const Service& service, TurnRequest& turn) {
  std::optional<Constraint> format = response_format(body, service);
  std::optional<Constraint> structured = structured_outputs(body, service);
  if (format && structured) {
    throw bad_request("structured_outputs", "response_format is given, too; expected one of them");
  }
  if (!format) format = std::move(structured);
  if (format) turn.chat.generate.decode.constraint = std::move(format);
}

}  // namespace dendrite::server
