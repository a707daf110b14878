#include <array>
#include <string>

#include "server/json.h"
#include "server/service.h"

// GET /openapi.json: what the server takes and answers, in OpenAPI 3.1. openapi/*.json, which are
// part of the program, say it by families; what holds for all operations is added here.
namespace dendrite::server {

extern const std::string_view kOpenapiCommon, kOpenapiChats, kOpenapiCompletions, kOpenapiResponses,
    kOpenapiMessages, kOpenapiDecisions, kOpenapiBranches, kOpenapiEffects, kOpenapiSearches,
    kOpenapiModels;

namespace {

struct Refusal {
  const char* status;
  const char* description;
};
constexpr std::array<Refusal, 6> kRefusals = {
    {{"400", "The request is not understood, or can't be obeyed; param names the field."},
     {"403", "Without keys: the Host header is not this machine."},
     {"408", "The request did not come in time."},
     {"413", "The body is too large."},
     {"431", "The head is too large."},
     {"500", "The server failed."}}};
constexpr Refusal kNoJson = {"415", "The body is not application/json."};
constexpr std::array<Refusal, 2> kClosed = {
    {{"401", "There is no key, or not one of this server's."},
     {"503", "server_overloaded: too much is under way. shutting_down: the server ends."}}};

/// Adds what every answer of its kind has: refusals, the form of errors, headers.
void complete(Json& operation, const std::string& form) {
  Json& responses = operation["responses"];
  const auto refuse = [&](const Refusal& refusal) {
    if (!responses.contains(refusal.status)) {
      responses[refusal.status]["description"] = refusal.description;
    }
  };
  for (const Refusal& refusal : kRefusals) refuse(refusal);
  const bool is_open = operation.contains("security");
  if (!is_open) {
    for (const Refusal& refusal : kClosed) refuse(refusal);
  }
  const bool has_body = operation.contains("requestBody");
  if (has_body) refuse(kNoJson);
  for (auto& [status, response] : responses.items()) {
    const bool is_error = status >= "400";
    if (is_error && !response.contains("content")) {
      response["content"]["application/json"]["schema"]["$ref"] = "#/components/schemas/" + form;
    }
    if (status == "429" || (status == "503" && !is_open)) {
      response["headers"]["Retry-After"]["$ref"] = "#/components/headers/RetryAfter";
    }
    if (!is_error && has_body) {
      response["headers"]["x-dendrite-ignored"]["$ref"] = "#/components/headers/Ignored";
    }
  }
}

void replace_all(std::string& text, std::string_view mark, const std::string& by) {
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
    text.replace(at, mark.size(), by);
  }
}

Json document(const ServerOptions& options) {
  Json out;
  for (const std::string_view piece :
       {kOpenapiCommon, kOpenapiChats, kOpenapiCompletions, kOpenapiResponses, kOpenapiMessages,
        kOpenapiDecisions, kOpenapiBranches, kOpenapiEffects, kOpenapiSearches, kOpenapiModels}) {
    std::string text(piece);
    replace_all(text, "@VERSION@", DENDRITE_VERSION);
    replace_all(text, "\"@MAX_N@\"", std::to_string(options.max_n));
    replace_all(text, "\"@MAX_LOGPROBS@\"", std::to_string(options.max_logprobs));
    out.update(Json::parse(text), true);
  }
  for (auto& [path, item] : out["paths"].items()) {
    const std::string form = path.starts_with("/v1/messages") ? "MessagesError" : "Error";
    for (auto& [name, operation] : item.items()) {
      if (name != "parameters") complete(operation, form);
    }
  }
  return out;
}

}  // namespace

void add_openapi_route(HttpServer& http, const ServerOptions& options) {
  // (Made for who asks first: a server is to start at once.)
  http.route("GET", "/openapi.json",
             [&options, text = std::string()](const Request&, const Reply& reply) mutable {
               if (text.empty()) text = dump(document(options));
               reply.send({.body = text});
             });
}

}  // namespace dendrite::server
