// POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
#include <memory>
#include <utility>

#include "server/anthropic_reply.h"
#include "server/anthropic_request.h"
#include "server/conversation.h"
#include "server/openai.h"
#include "server/read.h"
#include "server/service.h"
#include "server/turn_log.h"

namespace dendrite::server {
namespace {

/// A checked body, and the turn that it asks for.
struct Asked {
  AnthropicRequest request;
  TurnRequest turn;
};

Asked read(const Service& service, const Json& json, bool counting) {
  Fields body(json, "");
  Asked asked{read_anthropic(body, counting), {}};
  AnthropicRequest& request = asked.request;
  TurnRequest& turn = asked.turn;
  if (request.model.starts_with("claude-")) {
    // Programs ask for several of these, for what is small and what is large.
    request.ignored.add("model");
    request.model.clear();
  }
  request.model = service.model_name(request.model);
  read_sampling(body, service, turn);
  read_extension(body, turn, request.ignored);
  body.rest(request.ignored);
  turn.messages_json = dump(request.messages);
  turn.reply_begins = request.reply_begins;
  turn.chat.tools_json = request.tools.empty() ? "" : dump(request.tools);
  turn.chat.tool_choice = request.tool_choice;
  turn.chat.parallel_calls = request.parallel_calls;
  turn.chat.template_json = dump(request.variables);
  auto& decode = turn.chat.generate.decode;
  decode.stop.insert(decode.stop.end(), request.stop.begin(), request.stop.end());
  if (request.schema) {
    decode.constraint = checked_schema(service, *request.schema, "output_config.format.schema");
  }
  if (!counting) turn.max_tokens = request.max_tokens;
  return asked;
}

/// Whether the turn is one for whose template all system messages have to be at the front; it is
/// asked when the template refused it as it stood.
bool move_system_messages(AnthropicRequest& request, TurnRequest& turn) {
  std::optional<Json> moved = with_one_system_message(request.messages);
  if (!moved) return false;
  request.messages = *std::move(moved);
  request.ignored.add("messages(system-position)");
  turn.messages_json = dump(request.messages);
  return true;
}

class MessageSink : public TurnSink, public std::enable_shared_from_this<MessageSink> {
 public:
  MessageSink(Service& service, const Request& request, Reply reply, const Json& body,
              AnthropicRequest asked)
      : service_(service),
        caller_(service.caller(request)),
        request_id_(request.id),
        reply_(std::move(reply)),
        asked_(std::move(asked)) {
    if (with_one_system_message(asked_.messages)) body_ = body;
  }

  void start(TurnRequest turn) {
    turn.remember = true;
    const Turn started =
        service_.turns.start(std::move(turn), caller_, accounted(reply_, shared_from_this()));
    reply_.on_gone([started] { started.cancel(); });
  }

  void admitted(const TurnHead& head) override {
    tell_ignored(reply_, asked_.ignored);
    reply_.header("request-id", request_id_);
    const std::string id = new_id("msg_");
    reply_.account([&](Account& account) { account.made = id; });
    writer_ = std::make_unique<MessageWriter>(
        MessageHead{id, asked_.model, head.seed, asked_.stop, asked_.ignored, head.warnings});
    if (asked_.stream) reply_.begin();
  }
  void begin(const TurnUsage& usage) override { write(writer_->begin(usage)); }
  void piece(std::size_t /*choice*/, const TurnPiece& piece) override {
    write(writer_->piece(piece));
  }
  void end(std::size_t /*choice*/, const TurnEnd& end) override { write(writer_->end(end)); }
  void done(const TurnUsage& usage) override {
    const std::string events = writer_->done(usage);
    if (asked_.stream) {
      reply_.write(events);
      reply_.end();
    } else {
      reply_.send({.body = dump(writer_->message())});
    }
  }
  void fault(const Fault& fault) override {
    if (writer_ == nullptr && fault.status == 400 && !body_.is_null()) {
      return service_.workers.run([self = shared_from_this()] { self->start_again(); });
    }
    if (writer_ != nullptr && asked_.stream) {
      reply_.write(anthropic_error_event(fault, request_id_));
      reply_.end();
    } else {
      reply_.send(anthropic_error(fault, request_id_));
    }
  }

 private:
  /// Once more with all system messages at the front.
  void start_again() {
    try {
      Asked asked = read(service_, std::exchange(body_, Json()), false);
      move_system_messages(asked.request, asked.turn);
      asked_ = std::move(asked.request);
      start(std::move(asked.turn));
    } catch (const Fault& fault) {
      reply_.send(anthropic_error(fault, request_id_));
    }
  }
  void write(std::string events) {
    if (asked_.stream && !events.empty()) reply_.write(std::move(events));
  }

  Service& service_;
  Caller caller_;
  std::string request_id_;
  Reply reply_;
  Json body_;  // null: it can't be tried in another way
  AnthropicRequest asked_;
  std::unique_ptr<MessageWriter> writer_;
};

Answer form(const Fault& fault, const Request& request) {
  return anthropic_error(fault, request.id);
}

void count(Service& service, const Request& request, const Json& body, const Reply& reply) {
  Asked asked = read(service, body, true);
  std::size_t tokens = 0;
  try {
    tokens = service.turns.count(asked.turn).size();
  } catch (const std::exception&) {
    if (!move_system_messages(asked.request, asked.turn)) throw;
    tokens = service.turns.count(asked.turn).size();
  }
  tell_ignored(reply, asked.request.ignored);
  reply.header("request-id", request.id);
  reply.send({.body = dump({{"input_tokens", tokens}})});
}

}  // namespace

void add_anthropic_routes(Service& service) {
  service.error_forms.emplace_back("/v1/messages", form);
  service.route("POST", "/v1/messages", [&service](Request request, Reply reply) {
    with_body(service, std::move(request), std::move(reply), form,
              [&service](const Request& asker, const Json& body, const Reply& to) {
                Asked asked = read(service, body, false);
                std::make_shared<MessageSink>(service, asker, to, body, std::move(asked.request))
                    ->start(std::move(asked.turn));
              });
  });
  service.route("POST", "/v1/messages/count_tokens", [&service](Request request, Reply reply) {
    with_body(service, std::move(request), std::move(reply), form,
              [&service](const Request& asker, const Json& body, const Reply& to) {
                count(service, asker, body, to);
              });
  });
}

}  // namespace dendrite::server
