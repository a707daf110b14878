#include <algorithm>

#include "dendrite/error.h"
#include "dendrite/model_files.h"
#include "server/metrics.h"
#include "server/openai.h"
#include "server/service.h"
#include "server/turns.h"

// Which models there are, their tokens, and how the server is.
namespace dendrite::server {
namespace {

constexpr std::chrono::seconds kStuck{30};

Answer json_answer(const Json& value) {
  return {.body = dump(value)};
}

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.created},
          {"owned_by", "dendrite"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", service.context_length()}};
}

Answer list(std::span<Service* const> models) {
  Json data = Json::array();
  Json slugs = Json::array();
  for (const Service* model : models) {
    for (const std::string& name : model->names()) {
      data.push_back(model_json(*model, name));
      slugs.push_back(
          {{"slug", name}, {"display_name", name}, {"context_window", model->context_length()}});
    }
  }
  return json_answer({{"object", "list"}, {"data", data}, {"models", slugs}});
}

Answer one(std::span<Service* const> models, const std::string& name) {
  for (const Service* model : models) {
    if (std::ranges::find(model->names(), name) != model->names().end()) {
      return json_answer(model_json(*model, name));
    }
  }
  try {
    return json_answer(model_json(*models.front(), models.front()->model_name(name)));
  } catch (const Fault& fault) {
    return openai_error(fault);
  }
}

std::vector<Token> tokens_of(const Service& service, Fields& fields) {
  const auto text = fields.text("prompt", std::size_t{32} << 20);
  const auto content = fields.text("content", std::size_t{32} << 20);
  const Json* messages = fields.array("messages", 8192);
  const int given = (text ? 1 : 0) + (content ? 1 : 0) + (messages != nullptr ? 1 : 0);
  if (given != 1) {
    throw bad_request("prompt", "got " + std::to_string(given) +
                                    " of prompt, content and messages; expected one");
  }
  const auto special = fields.boolean("add_special_tokens");
  if (text) return service.engine.encode(*text, special.value_or(true));
  if (content) {
    return service.engine.encode(*content, fields.boolean("add_special").value_or(false));
  }
  const bool begins = fields.boolean("add_generation_prompt").value_or(true);
  Json tools = Json::array();
  if (const Json* given_tools = fields.array("tools", 512)) tools = *given_tools;
  const std::string rendered = service.engine.render_chat(
      dump(*messages),
      {.add_generation_prompt = begins, .tools_json = tools.empty() ? std::string() : dump(tools)});
  return service.engine.encode(rendered, special.value_or(false));
}

void tokenize(Service& service, const Json& body, const Reply& reply) {
  Fields fields(body, "");
  service.model_name(fields.text("model").value_or(""));
  const std::vector<Token> tokens = tokens_of(service, fields);
  Json out = {
      {"count", tokens.size()}, {"max_model_len", service.context_length()}, {"tokens", tokens}};
  if (fields.boolean("return_token_strs").value_or(false)) {
    Json texts = Json::array();
    for (const Token token : tokens) texts.push_back(service.engine.decode(std::span(&token, 1)));
    out["token_strs"] = std::move(texts);
  }
  tell_rest(reply, fields);
  reply.send(json_answer(out));
}

void detokenize(Service& service, const Json& body, const Reply& reply) {
  Fields fields(body, "");
  service.model_name(fields.text("model").value_or(""));
  const Json* ids = fields.array("tokens", 1 << 20);
  if (ids == nullptr) throw bad_request("tokens", "it is missing");
  std::vector<Token> tokens;
  const std::int64_t vocab = service.engine.info().vocab;
  for (std::size_t i = 0; i < ids->size(); ++i) {
    const Json& id = (*ids)[i];
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      throw wrong_type(at_index("tokens", i), id, "a token, 0 to " + std::to_string(vocab - 1));
    }
    tokens.push_back(id.get<Token>());
  }
  const std::string text = service.engine.decode(tokens);
  tell_rest(reply, fields);
  reply.send(json_answer({{"prompt", text}, {"content", text}}));
}

/// As lm-eval's remote tokenizer asks for.
Answer tokenizer_info(const Service& service) {
  const EngineInfo& info = service.engine.info();
  const auto text = [&](const std::vector<Token>& ids) {
    return ids.empty() ? Json() : Json(service.engine.decode(std::span(ids).first(1)));
  };
  Json out = {{"bos_token", text(info.bos)},
              {"eos_token", text(info.eos)},
              {"pad_token", nullptr},
              {"chat_template", nullptr}};
  const auto said = [&](const char* name) { return model_text(info.model_path, name); };
  const Json config = Json::parse(said("tokenizer_config.json").value_or(""), nullptr, false);
  if (!config.is_object()) return json_answer(out);
  const auto pad = config.find("pad_token");
  if (pad != config.end() && pad->is_string()) out["pad_token"] = *pad;
  if (pad != config.end() && pad->is_object()) out["pad_token"] = pad->value("content", Json());
  const auto form = config.find("chat_template");
  if (form != config.end() && form->is_string()) {
    out["chat_template"] = *form;
  } else if (const std::optional<std::string> jinja = said("chat_template.jinja")) {
    out["chat_template"] = *jinja;
  }
  return json_answer(out);
}

Answer health(std::span<Service* const> models, bool to_take_more) {
  const bool is_stuck = std::ranges::any_of(models, [](const Service* model) {
    return static_cast<EngineTurns&>(model->turns).admission().is_stuck(kStuck);
  });
  const char* status = models.front()->draining && to_take_more ? "shutting_down"
                       : is_stuck                               ? "stuck"
                                                                : "ok";
  Answer answer = json_answer({{"status", status}});
  if (std::string_view(status) != "ok") answer.status = 503;
  return answer;
}

void metrics(std::span<Service* const> models, const Reply& reply) {
  Service& first = *models.front();
  first.workers.run([models, &first, reply] {
    // (Forks and steps wait for these: not in the I/O thread.)
    auto stats = std::make_shared<std::vector<EngineStats>>();
    for (const Service* model : models) stats->push_back(model->engine.stats());
    first.http.post([models, &first, reply, stats] {
      std::vector<ModelMetrics> texts;
      for (std::size_t i = 0; i < models.size(); ++i) {
        const std::string& name = models[i]->names().front();
        texts.push_back(
            {name, models[i]->metrics.text(first.options.metrics_prefix, name, (*stats)[i])});
      }
      reply.send({.body = merged(texts), .type = "text/plain; version=0.0.4; charset=utf-8"});
    });
  });
}

}  // namespace

void add_server_routes(std::span<Service* const> models) {
  HttpServer& http = models.front()->http;
  http.route("GET", "/v1/models",
             [models](const Request&, const Reply& reply) { reply.send(list(models)); });
  http.route("GET", "/v1/models/{}", [models](const Request& request, const Reply& reply) {
    reply.send(one(models, request.ids.front()));
  });
  for (const char* path : {"/health", "/ping"}) {
    http.route("GET", path,
               [models](const Request&, const Reply& reply) { reply.send(health(models, false)); });
  }
  http.route("GET", "/ready",
             [models](const Request&, const Reply& reply) { reply.send(health(models, true)); });
  http.route("GET", "/version", [](const Request&, const Reply& reply) {
    reply.send(json_answer({{"version", DENDRITE_VERSION}}));
  });
  http.route("GET", "/metrics",
             [models](const Request&, const Reply& reply) { metrics(models, reply); });
}

void add_token_routes(Service& service) {
  service.route("GET", "/tokenizer_info", [&](const Request&, const Reply& reply) {
    service.workers.run([&service, reply] { reply.send(tokenizer_info(service)); });
  });
  service.route("POST", "/tokenize", [&](Request request, const Reply& reply) {
    with_body(
        service, std::move(request), reply, openai_form,
        [&](const Request&, const Json& body, const Reply& out) { tokenize(service, body, out); });
  });
  service.route("POST", "/detokenize", [&](Request request, const Reply& reply) {
    with_body(service, std::move(request), reply, openai_form,
              [&](const Request&, const Json& body, const Reply& out) {
                detokenize(service, body, out);
              });
  });
}

}  // namespace dendrite::server
