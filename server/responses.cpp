// The /v1/responses family: OpenAI's Responses API.
#include <ctime>
#include <memory>
#include <utility>

#include "server/conversation.h"
#include "server/ids.h"
#include "server/openai.h"
#include "server/read.h"
#include "server/responses_fork.h"
#include "server/responses_history.h"
#include "server/responses_items.h"
#include "server/responses_request.h"
#include "server/responses_run.h"
#include "server/service.h"

namespace dendrite::server {
namespace {

using Stored = std::shared_ptr<StoredResponse>;

Fault no_response(const std::string& id) {
  return not_found("there is no response with the id " + echoed(id), "response_id");
}

/// A checked body, and the turn that it asks for.
struct Asked {
  ResponsesRequest request;
  Stored response;  // new
  TurnRequest turn;
  Json messages;
  bool as_generated = false;
};

/// `reply`: stands for the last one, as an assistant's text; empty: it is there itself.
Json messages_of(const ResponsesRequest& request, const StoredResponse& response, Ignored& ignored,
                 const std::string& reply = {}) {
  Json messages = Json::array();
  if (!request.instructions.empty()) {
    messages.push_back({{"role", "system"}, {"content", request.instructions}});
  }
  if (const StoredResponse* previous = response.previous.get()) {
    Json items = previous->conversation();
    if (!reply.empty()) {
      items.erase(items.end() - std::ssize(previous->output), items.end());
      items.push_back({{"type", "message"}, {"role", "assistant"}, {"content", reply}});
    }
    Ignored before;  // told when it was sent
    add_items(items, "previous_response_id", messages, before);
  }
  add_items(response.input, "input", messages, ignored);
  // Programs look this way whether there is somebody.
  if (messages.empty()) messages.push_back({{"role", "user"}, {"content", ""}});
  return messages;
}

/// What stands before the last reply is as it was: it can't be another now.
void check_as_generated(const Asked& asked) {
  const StoredResponse* previous = asked.response->previous.get();
  if (previous == nullptr) {
    throw bad_request("dendrite.history",
                      "nothing was generated; expected previous_response_id beside it");
  }
  if (asked.turn.cache_salt != previous->cache_salt) {
    throw bad_request(
        "cache_salt",
        "it is another than the previous response's, whose tokens stay where they are "
        "with dendrite.history \"as_generated\"",
        "unsupported_value");
  }
  for (const char* name : {"instructions", "tools", "reasoning"}) {
    if (asked.request.echo[name] != previous->head.echo.value(name, Json())) {
      throw bad_request(name,
                        "it is another than the previous response's, whose prompt stays as "
                        "it is with dendrite.history \"as_generated\"",
                        "unsupported_value");
    }
  }
}

void fill(const Service& service, Asked& asked) {
  ResponsesRequest& request = asked.request;
  TurnRequest& turn = asked.turn;
  turn.messages_json = dump(asked.messages);
  turn.chat.tools_json = request.tools.empty() ? "" : dump(request.tools);
  turn.chat.tool_choice = request.tool_choice;
  turn.chat.parallel_calls = request.parallel_calls;
  if (!request.variables.empty()) turn.chat.template_json = dump(request.variables);
  turn.max_tokens = request.max_tokens;
  DecodeParams& decode = turn.chat.generate.decode;
  if (request.schema) {
    decode.constraint = checked_schema(service, *request.schema, "text.format.schema");
  } else if (request.any_object) {
    decode.constraint = Constraint::json_object();
  }
  if (request.logprobs) decode.top_logprobs = request.top_logprobs;
  request.echo["temperature"] = decode.temperature ? Json(*decode.temperature) : Json();
  request.echo["top_p"] = decode.top_p ? Json(*decode.top_p) : Json();
}

Asked read(Responses& all, Caller caller, const Json& json) {
  const Service& service = all.service;
  Fields body(json, "");
  Asked asked{read_responses(body), std::make_shared<StoredResponse>(), {}, {}};
  ResponsesRequest& request = asked.request;
  request.model = service.model_name(request.model);
  read_sampling(body, service, asked.turn);
  read_extension(body, asked.turn, request.ignored, &asked.as_generated);
  body.rest(request.ignored);

  StoredResponse& response = *asked.response;
  response.key = caller.key;
  response.key_name = service.key_name(caller.key);
  response.cache_salt = asked.turn.cache_salt;
  if (!request.previous_id.empty()) {
    response.previous = all.store.find_ended(request.previous_id, caller.key);
    if (response.previous && response.previous->end->fault) {
      throw bad_request("previous_response_id", "that response has failed");
    }
    if (!response.previous) {
      throw bad_request("previous_response_id",
                        "there is no response with the id " + echoed(request.previous_id) +
                            ", or it has not ended",
                        "previous_response_not_found");
    }
  }
  response.input = items_of_input(request.input, "input", [&](const std::string& id) {
    const Stored of = all.store.find_ended(response_of_item(id), caller.key);
    for (const Json& item : of ? of->output : Json::array()) {
      if (item["id"] == id) return item;
    }
    return Json();
  });
  asked.messages = messages_of(request, response, request.ignored);
  fill(service, asked);
  if (asked.as_generated) check_as_generated(asked);
  response.head = {.id = new_id("resp_"),
                   .model = request.model,
                   .created = static_cast<std::int64_t>(std::time(nullptr)),
                   .echo = std::move(request.echo),
                   .namespaces = request.namespaces,
                   .packed_reasoning = request.packed_reasoning,
                   .ignored = request.ignored,
                   .forked_from = request.previous_id};
  return asked;
}

/// Makes its turn go on from `branch`, the previous response's as it was generated.
void go_on(const Service& service, Asked& asked, Branch branch) {
  if (!branch.valid()) {
    throw bad_request("dendrite.history",
                      "the tokens of the previous response are not there any more; expected "
                      "\"as_rendered\"",
                      "unsupported_value");
  }
  TurnRequest& turn = asked.turn;
  const std::string word = "reply" + random_hex(16);
  Ignored told;
  const Json marked = messages_of(asked.request, *asked.response, told, word);
  const std::vector<Token> behind =
      tokens_behind(service, dump(marked), word, turn.chat, branch.tokens());
  branch.append(behind);
  ChatRequest chat = service.model.request(turn.messages_json, turn.chat);
  turn.chat.generate.decode = std::move(chat.decode);
  turn.parser = std::move(chat.parser);
  turn.messages_json.clear();
  if (!turn.seed) turn.seed = draw_seed();
  if (!turn.reuse_composed && branch.composition().exactness == Exactness::kComposed) {
    turn.ids = branch.tokens();  // computed, as nobody asks for less
    return;
  }
  turn.uncached = std::ssize(behind) + 1;  // the reply's last token was never read
  turn.branch = std::move(branch);
}

/// The branch is the I/O thread's, and what is said is rendered in a helper's.
void start_as_generated(Responses& all, Asked given, ResponseRun::Plan plan, const Reply& reply) {
  auto asked = std::make_shared<Asked>(std::move(given));
  auto planned = std::make_shared<ResponseRun::Plan>(std::move(plan));
  all.service.http.post([&all, asked, planned, reply] {
    Branch& known = asked->response->previous->branch;
    auto branch = std::make_shared<Branch>(known.valid() ? known.fork({.stream = 0}) : Branch());
    all.service.workers.run([&all, asked, planned, reply, branch] {
      try {
        go_on(all.service, *asked, std::move(*branch));
        std::make_shared<ResponseRun>(all, asked->response, std::move(*planned), reply)
            ->start(std::move(asked->turn));
      } catch (const Fault& fault) {
        reply.send(openai_error(fault));
      } catch (const std::exception& error) {
        reply.send(openai_error(bad_request("", error.what())));
      }
    });
  });
}

void create(Responses& all, const Request& asker, const Json& body, const Reply& reply) {
  const Caller caller = all.service.caller(asker);
  Asked asked = read(all, caller, body);
  const ResponsesRequest& request = asked.request;
  ResponseRun::Plan plan{
      .store = request.store, .stream = request.stream, .background = request.background};
  if (asked.as_generated) {
    plan.question =
        ResponseRun::Question{asked.turn.messages_json, asked.turn.chat, asked.turn.max_tokens};
    return start_as_generated(all, std::move(asked), std::move(plan), reply);
  }
  if (with_one_system_message(asked.messages)) {
    plan.otherwise = [&all, caller, body, response = asked.response]() {
      Asked again = read(all, caller, body);
      again.turn.messages_json = dump(*with_one_system_message(again.messages));
      response->head.ignored.add("input(system-position)");
      return std::move(again.turn);
    };
  }
  std::make_shared<ResponseRun>(all, asked.response, std::move(plan), reply)
      ->start(std::move(asked.turn));
}

void count(Responses& all, const Request& asker, const Json& body, const Reply& reply) {
  Asked asked = read(all, all.service.caller(asker), body);
  std::size_t tokens = 0;
  try {
    tokens = all.service.turns.count(asked.turn).size();
  } catch (const Fault&) {
    const std::optional<Json> moved = with_one_system_message(asked.messages);
    if (!moved) throw;
    asked.turn.messages_json = dump(*moved);
    tokens = all.service.turns.count(asked.turn).size();
  }
  tell_ignored(reply, asked.request.ignored);
  reply.send({.body = dump({{"object", "response.input_tokens"}, {"input_tokens", tokens}})});
}

// In the I/O thread:

Json object_of(const StoredResponse& response) {
  return response.run ? response.run->response() : response.response();
}

void get(const Stored& response, const Request& request, const Reply& reply) {
  const auto stream = request.query_value("stream");
  if (!stream || *stream == "false" || *stream == "0") {
    return reply.send({.body = dump(object_of(*response))});
  }
  std::int64_t after = -1;
  if (const auto text = request.query_value("starting_after")) {
    after = -2;
    if (!text->empty() && text->size() < 10 &&
        text->find_first_not_of("0123456789") == std::string::npos) {
      after = std::stoll(*text);
    }
    if (after < 0) throw bad_request("starting_after", "expected the number of an event");
  }
  if (response->run) {
    response->run->watch(reply, after);
  } else {
    replay(*response, reply, after);
  }
}

void fork(Responses& all, const Request& asker, const Json& body, const Reply& reply) {
  fork_response(all, read_fork(body), asker.ids.front(), all.service.caller(asker), reply);
}

void remove(Responses& all, const Stored& response, const Reply& reply) {
  const std::string& id = response->head.id;
  if (response->run) response->run->stop();
  all.store.erase(id, response->key);
  const Answer answer{.body = dump({{"id", id}, {"object", "response"}, {"deleted", true}})};
  if (!all.journal) return reply.send(answer);
  all.journal->append(journal_delete(id), [reply, answer](bool ok) {
    reply.send(ok ? answer
                  : openai_error({500, "server_error", "", "", "the deletion was not stored"}));
  });
}

void cancel(const Stored& response, const Reply& reply) {
  if (response->head.echo.value("background", Json(false)) != true) {
    throw bad_request("response_id",
                      "the response is not made in the background: its client ends it by leaving");
  }
  if (!response->run) return reply.send({.body = dump(response->response())});
  response->run->answer_at_end(reply);
  response->run->stop();
}

Branch branch_of(Responses& all, const std::string& id, Caller caller) {
  const Stored response = all.store.find(id, caller.key);
  if (!response) throw no_response(id);
  Branch fork = response->run ? response->run->fork(std::nullopt) : Branch();
  if (fork.valid()) return fork;
  if (response->branch.valid()) return response->branch.fork();
  throw bad_request("response_id",
                    "the response has not begun, or its branch ended with a former process of the "
                    "server; expected another, or prompt or messages",
                    "unsupported_value");
}

/// Items as they are listed: the newest first, unless the query says otherwise.
Json list_of(Json items, const Request& request) {
  const std::string order = request.query_value("order").value_or("desc");
  if (order != "asc" && order != "desc") throw bad_request("order", "expected asc or desc");
  std::int64_t limit = 20;
  if (const auto text = request.query_value("limit")) {
    const bool is_number = !text->empty() && text->size() < 4 &&
                           text->find_first_not_of("0123456789") == std::string::npos;
    limit = is_number ? std::stoll(*text) : 0;
    if (limit < 1 || limit > 100) throw bad_request("limit", "expected a number from 1 to 100");
  }
  Json data = Json::array();
  bool begun = !request.query_value("after").has_value();
  bool more = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Json& item = items[order == "asc" ? i : items.size() - 1 - i];
    if (!begun) {
      begun = item["id"] == *request.query_value("after");
    } else if (std::ssize(data) == limit) {
      more = true;
    } else {
      // In a list contents are parts.
      if (item.value("content", Json()).is_string()) {
        const char* type = item["role"] == "assistant" ? "output_text" : "input_text";
        item["content"] = Json::array({{{"type", type}, {"text", item["content"]}}});
      }
      data.push_back(std::move(item));
    }
  }
  const Json first = data.empty() ? Json() : data.front()["id"];
  const Json last = data.empty() ? Json() : data.back()["id"];
  return {{"object", "list"},
          {"data", std::move(data)},
          {"first_id", first},
          {"last_id", last},
          {"has_more", more}};
}

Json input_items(const StoredResponse& response) {
  Json items = response.previous ? response.previous->conversation() : Json::array();
  for (const Json& item : response.input) items.push_back(item);
  return items;
}

/// A handler for one stored response.
Handler with_stored(const std::shared_ptr<Responses>& all,
                    std::function<void(const Stored&, const Request&, const Reply&)> act) {
  return [all, act = std::move(act)](const Request& request, const Reply& reply) {
    try {
      const std::string& id = request.ids.front();
      const Stored response = all->store.find(id, all->service.caller(request).key);
      if (!response) throw no_response(id);
      act(response, request, reply);
    } catch (const Fault& fault) {
      reply.send(openai_error(fault));
    }
  };
}

}  // namespace

void add_responses_routes(Service& service) {
  auto all = std::make_shared<Responses>(service);
  all->restore();
  service.http.every(std::chrono::seconds(1), [all] { all->sweep(); });
  service.response_branch = [all](const std::string& id, Caller caller) {
    return branch_of(*all, id, caller);
  };
  service.holders.push_back([all](const std::string& id, Caller caller) {
    return all->store.find(id, caller.key) != nullptr;
  });
  const auto with_json = [&service, all](auto act) {
    return [&service, all, act](Request request, Reply reply) {
      with_body(service, std::move(request), std::move(reply), openai_form,
                [all, act](const Request& asker, const Json& body, const Reply& to) {
                  act(*all, asker, body, to);
                });
    };
  };
  service.route("POST", "/v1/responses", with_json(create));
  service.route("POST", "/v1/responses/input_tokens", with_json(count));
  service.route("POST", "/v1/responses/{}/fork", with_json(fork));
  service.route("GET", "/v1/responses/{}", with_stored(all, get));
  service.route("DELETE", "/v1/responses/{}",
                with_stored(all, [all](const Stored& response, const Request& /*request*/,
                                       const Reply& reply) { remove(*all, response, reply); }));
  service.route("POST", "/v1/responses/{}/cancel",
                with_stored(all, [](const Stored& response, const Request& /*request*/,
                                    const Reply& reply) { cancel(response, reply); }));
  service.route(
      "GET", "/v1/responses/{}/input_items",
      with_stored(all, [](const Stored& response, const Request& request, const Reply& reply) {
        reply.send({.body = dump(list_of(input_items(*response), request))});
      }));
}

}  // namespace dendrite::server
