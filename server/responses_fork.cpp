#include "server/responses_fork.h"

#include <ctime>
#include <utility>

#include "dendrite/error.h"
#include "server/openai.h"
#include "server/responses_items.h"

namespace dendrite::server {
namespace {

/// What the fork is made of, taken in the I/O thread.
struct Taken {
  Branch branch;
  ResponseRun::Question question;
  ResponseHead head;
  std::uint64_t key = 0;
  std::string key_name;
  std::string cache_salt;
  std::shared_ptr<StoredResponse> previous;
  Json input;
};

std::shared_ptr<Taken> take(Responses& all, const ForkRequest& request, const std::string& id,
                            Caller caller) {
  const auto parent = all.store.find(id, caller.key);
  if (!parent) {
    throw not_found("there is no response with the id " + echoed(id), "response_id");
  }
  auto taken = std::make_shared<Taken>();
  if (parent->run) taken->branch = parent->run->fork(std::nullopt);
  if (!taken->branch.valid()) {
    throw bad_request("response_id",
                      "the response has not begun, or has ended; expected one that is being "
                      "written, or previous_response_id of a new one");
  }
  if (request.at) {
    const std::int64_t prompt = taken->branch.prompt_length();
    const std::int64_t most = taken->branch.length() - prompt;
    if (*request.at > most) {
      throw bad_request("at", "got " + std::to_string(*request.at) + "; it has " +
                                  std::to_string(most) + " tokens by now");
    }
    taken->branch = parent->run->fork(prompt + *request.at);
  }
  taken->question = parent->run->question();
  taken->head = parent->head;
  taken->key = parent->key;
  taken->key_name = parent->key_name;
  taken->cache_salt = parent->cache_salt;
  taken->previous = parent->previous;
  taken->input = parent->input;
  return taken;
}

/// The items that events come to, whole as far as they go.
Json items_of(const ResponseHead& head, const std::vector<ReplyEvent>& events) {
  ResponseWriter writer(head);
  writer.begin();
  writer.piece({events, {}, {}});
  writer.end({.finish = Finish::kLength});
  return writer.response()["output"];
}

/// The new response, and its turn. In a helper thread.
void start(Responses& all, ForkRequest& request, Taken& taken, const Reply& reply) {
  Service& service = all.service;
  auto response = std::make_shared<StoredResponse>();
  ResponseHead& head = response->head;
  head = taken.head;
  head.forked_from = std::exchange(head.id, new_id("resp_"));
  head.created = static_cast<std::int64_t>(std::time(nullptr));
  head.ignored = request.ignored;
  head.known = 0;
  head.echo["metadata"] = request.metadata;
  head.echo["store"] = request.store;
  head.echo["background"] = request.background;
  response->key = taken.key;
  response->key_name = taken.key_name;
  response->cache_salt = taken.cache_salt;
  response->previous = taken.previous;
  response->input = taken.input;

  ResponseRun::Question& question = taken.question;
  const std::int64_t begun = taken.branch.length() - taken.branch.prompt_length();
  if (request.max_tokens) question.max_tokens = request.max_tokens;
  DecodeParams& decode = question.chat.generate.decode;
  if (request.temperature) decode.temperature = request.temperature;
  ChatRequest chat = service.model.request(question.messages_json, question.chat);
  ReplyParser parser = chat.parser;
  std::vector<ReplyEvent> events = read_branch(taken.branch, parser);

  ResponseRun::Plan plan{
      .store = request.store, .stream = request.stream, .background = request.background};
  TurnRequest turn;
  turn.seed = request.seed;
  turn.max_tokens = question.max_tokens;
  if (!request.input.is_null()) {
    // It hears more, as though it had ended here.
    for (ReplyEvent& each : parser.finish(Finish::kLength)) events.push_back(std::move(each));
    Json said = items_of(head, events);
    for (Json& item : items_of_input(request.input, "input", [](auto&) { return Json(); })) {
      said.push_back(std::move(item));
    }
    Json messages = Json::parse(question.messages_json);
    add_items(said, "input", messages, head.ignored);
    for (Json& item : said) response->input.push_back(std::move(item));
    turn.messages_json = dump(messages);
    turn.chat = question.chat;
    turn.cache_salt = taken.cache_salt;
  } else {
    turn.chat.generate.decode = chat.decode;
    std::optional<Constraint>& constraint = turn.chat.generate.decode.constraint;
    if (constraint) {
      if (!taken.branch.constrain_from(*constraint, taken.branch.prompt_length())) {
        throw Fault(500, "server_error", "", "", "the constraint can't be followed from there");
      }
      constraint.reset();
    }
    if (!request.max_tokens && turn.max_tokens) {
      turn.max_tokens = std::max<std::int64_t>(1, *turn.max_tokens - begun);
    }
    turn.branch = std::move(taken.branch);
    turn.parser = std::move(parser);
    plan.begun = std::move(events);
    plan.question = std::move(question);
  }
  std::make_shared<ResponseRun>(all, std::move(response), std::move(plan), reply)
      ->start(std::move(turn));
}

}  // namespace

std::vector<ReplyEvent> read_branch(Branch& branch, ReplyParser& parser) {
  std::vector<ReplyEvent> events;
  const auto add = [&](std::vector<ReplyEvent> more) {
    for (ReplyEvent& each : more) {
      const bool is_text =
          each.kind != ReplyEvent::Kind::kCallBegin && each.kind != ReplyEvent::Kind::kCallEnd;
      if (is_text && !events.empty() && events.back().kind == each.kind) {
        events.back().text += each.text;
      } else {
        events.push_back(std::move(each));
      }
    }
  };
  std::size_t fed = 0;
  const std::vector<Token> tokens = branch.tokens();
  for (std::int64_t i = branch.prompt_length(); i < std::ssize(tokens); ++i) {
    const Token token = tokens[static_cast<std::size_t>(i)];
    if (!parser.is_mark(token)) continue;
    // It may be no text.
    const std::string text = branch.at(i + 1).text();
    if (fed < text.size()) add(parser.feed(std::string_view(text).substr(fed)));
    fed = text.size();
    add(parser.feed(token, ""));
  }
  const std::string text = branch.text();
  if (fed < text.size()) add(parser.feed(std::string_view(text).substr(fed)));
  return events;
}

ForkRequest read_fork(const Json& body) {
  Fields fields(body, "");
  ForkRequest request;
  request.at = fields.integer("at", 0, INT64_MAX);
  if (const Json* input = fields.find("input")) request.input = *input;
  request.store = fields.boolean("store").value_or(true);
  request.stream = fields.boolean("stream").value_or(false);
  request.background = fields.boolean("background").value_or(false);
  if (request.background && !request.store) {
    throw bad_request("background",
                      "what is made in the background is stored; expected store true");
  }
  request.max_tokens = fields.integer("max_output_tokens", 1, INT64_MAX);
  request.temperature = fields.number("temperature", 0, 100);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    request.seed = static_cast<std::uint64_t>(*seed);
  }
  if (const Json* metadata = fields.object("metadata")) request.metadata = *metadata;
  fields.rest(request.ignored);
  return request;
}

void fork_response(Responses& all, ForkRequest request, const std::string& id, Caller caller,
                   const Reply& reply) {
  auto shared = std::make_shared<ForkRequest>(std::move(request));
  all.service.http.post([&all, shared, id, caller, reply] {
    try {
      auto taken = take(all, *shared, id, caller);
      all.service.workers.run([&all, shared, taken, reply] {
        try {
          start(all, *shared, *taken, reply);
        } catch (const Fault& fault) {
          reply.send(openai_error(fault));
        } catch (const std::exception& error) {
          reply.send(openai_error(bad_request("", error.what())));
        }
      });
    } catch (const Fault& fault) {
      reply.send(openai_error(fault));
    }
  });
}

}  // namespace dendrite::server
