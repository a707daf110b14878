#include "server/openai.h"

#include <cmath>

namespace dendrite::server {

std::vector<Token> read_ids(const Json& ids, const std::string& path, std::int64_t vocab) {
  if (!ids.is_array()) throw wrong_type(path, ids, "an array of tokens");
  std::vector<Token> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Json& id = ids[i];
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      throw wrong_type(at_index(path, i), id, "a token, 0 to " + std::to_string(vocab - 1));
    }
    out.push_back(id.get<Token>());
  }
  return out;
}

void add_composed(Json& extension, const TurnUsage& usage) {
  if (!usage.composed) return;
  const ComposedUsage& composed = *usage.composed;
  extension["moved"] = composed.moved;
  extension["repaired"] = composed.repaired;
  extension["estimated_error"] = composed.error ? Json(*composed.error) : Json();
  if (!composed.note.empty()) extension["note"] = composed.note;
}

Json openai_usage(const TurnUsage& usage) {
  Json out = {{"prompt_tokens", usage.prompt},
              {"completion_tokens", usage.output},
              {"total_tokens", usage.prompt + usage.output},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
              {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning}}},
              {"dendrite", {{"shared", usage.cached}, {"computed", usage.computed}}}};
  add_composed(out["dendrite"], usage);
  return out;
}

std::string token_text(const Service& service, Token token) {
  std::string text = service.engine.decode(std::span(&token, 1));
  if (text.find("\xEF\xBF\xBD") == std::string::npos) return text;
  return "token_id:" + std::to_string(token);
}

namespace {

Json token_bytes(const Service& service, Token token) {
  Json bytes = Json::array();
  for (const char byte : service.engine.token_bytes(token)) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return bytes;
}

}  // namespace

double logprob_number(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

Json chat_logprob(const Service& service, const ChosenToken& token) {
  Json top = Json::array();
  for (const TokenLogprob& each : token.top) {
    top.push_back({{"token", token_text(service, each.id)},
                   {"logprob", logprob_number(each.logprob)},
                   {"bytes", token_bytes(service, each.id)}});
  }
  return {{"token", token_text(service, token.id)},
          {"logprob", logprob_number(token.logprob)},
          {"bytes", token_bytes(service, token.id)},
          {"top_logprobs", std::move(top)}};
}

std::string chunk_event(std::string_view head, const Json& rest) {
  std::string out = "data: ";
  out.append(head.substr(0, head.size() - 1)).append(",");
  out.append(dump(rest), 1);
  return out.append("\n\n");
}

Json unusual_finish(const TurnEnd& end) {
  switch (end.finish) {
    case Finish::kEos:
    case Finish::kStop:
    case Finish::kLength:
      return nullptr;
    default:
      return name_of(end.finish);
  }
}

Answer openai_form(const Fault& fault, const Request&) {
  return openai_error(fault);
}

void tell_ignored(const Reply& reply, const Ignored& ignored) {
  if (const std::string names = ignored.header(); !names.empty()) {
    reply.header("x-dendrite-ignored", names);
  }
}

void tell_rest(const Reply& reply, const Fields& fields) {
  Ignored ignored;
  fields.rest(ignored);
  tell_ignored(reply, ignored);
}

}  // namespace dendrite::server
