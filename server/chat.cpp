#include "server/chat_request.h"
#include "server/openai.h"
#include "server/turn_log.h"

// /v1/chat/completions: a turn's events to a whole answer or to chunks.
namespace dendrite::server {
namespace {

Json call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

/// What both forms have.
class ChatSink : public TurnSink {
 public:
  ChatSink(const Service& service, ChatBody body, Reply reply)
      : service_(service),
        body_(std::move(body)),
        reply_(std::move(reply)),
        id_(new_id("chatcmpl-")),
        created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())) {
    reply_.account([&](Account& account) { account.made = id_; });
  }

 protected:
  Json object(const char* kind) const {
    return {{"id", id_},
            {"object", kind},
            {"created", created_},
            {"model", body_.model},
            {"system_fingerprint", service_.fingerprint}};
  }
  const char* finish_of(const TurnEnd& end) const {
    const std::string_view reason = end.openai();
    return body_.names_tool && reason == "tool_calls" ? "stop" : end.openai();
  }
  /// Our own object of a reply.
  Json extension() const {
    Json out = {{"seed", head_.seed}};
    if (!body_.ignored.empty()) out["ignored"] = body_.ignored.paths();
    if (!head_.warnings.empty()) out["warnings"] = head_.warnings;
    return out;
  }
  std::size_t choices() const { return static_cast<std::size_t>(body_.turn.n); }
  const char* reasoning_field() const { return service_.options.reasoning_field.c_str(); }

  const Service& service_;
  ChatBody body_;
  Reply reply_;
  std::string id_;
  std::int64_t created_;
  TurnHead head_;
};

class WholeChat final : public ChatSink {
 public:
  WholeChat(const Service& service, ChatBody body, Reply reply)
      : ChatSink(service, std::move(body), std::move(reply)), said_(choices()) {}

  void admitted(const TurnHead& head) override { head_ = head; }
  void begin(const TurnUsage&) override {}
  void piece(std::size_t choice, const TurnPiece& piece) override {
    Said& said = said_[choice];
    said.reply.add(piece.events);
    for (const ChosenToken& token : piece.logprobs) {
      said.logprobs.push_back(chat_logprob(service_, token));
    }
    said.tokens.insert(said.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }
  void end(std::size_t choice, const TurnEnd& end) override { said_[choice].end = end; }
  void done(const TurnUsage& usage) override {
    Json out = object("chat.completion");
    out["choices"] = Json::array();
    Json finishes = Json::array();
    bool is_unusual = false;
    for (std::size_t i = 0; i < said_.size(); ++i) {
      out["choices"].push_back(choice_json(i));
      finishes.push_back(unusual_finish(said_[i].end));
      is_unusual = is_unusual || !finishes.back().is_null();
    }
    out["usage"] = openai_usage(usage);
    out["dendrite"] = extension();
    if (is_unusual) out["dendrite"]["finish"] = std::move(finishes);
    if (body_.token_ids) out["prompt_token_ids"] = head_.prompt;
    reply_.send({.body = dump(out)});
  }
  void fault(const Fault& fault) override { reply_.send(openai_error(fault)); }

 private:
  struct Said {
    ParsedReply reply;
    Json logprobs = Json::array();
    std::vector<Token> tokens;
    TurnEnd end;
  };

  Json choice_json(std::size_t index) {
    Said& said = said_[index];
    const ParsedReply& reply = said.reply;
    Json message = {{"role", "assistant"}, {"content", reply.content}, {"refusal", nullptr}};
    if (reply.content.empty() && !reply.calls.empty()) message["content"] = nullptr;
    if (!reply.reasoning.empty()) message[reasoning_field()] = reply.reasoning;
    for (const ToolCall& call : reply.calls) {
      message["tool_calls"].push_back(call_json(call.id, call.name, call.arguments));
    }
    Json out = {{"index", index},
                {"message", std::move(message)},
                {"logprobs", nullptr},
                {"finish_reason", finish_of(said.end)}};
    if (body_.turn.chat.generate.decode.top_logprobs >= 0) {
      out["logprobs"] = {{"content", std::move(said.logprobs)}, {"refusal", nullptr}};
    }
    if (!said.end.stop.empty()) out["stop_reason"] = said.end.stop;
    if (body_.token_ids) out["token_ids"] = said.tokens;
    return out;
  }

  std::vector<Said> said_;
};

class StreamedChat final : public ChatSink {
 public:
  StreamedChat(const Service& service, ChatBody body, Reply reply)
      : ChatSink(service, std::move(body), std::move(reply)),
        chunk_head_(dump(object("chat.completion.chunk"))),
        logprobs_(choices()) {}

  void admitted(const TurnHead& head) override {
    head_ = head;
    reply_.begin();
    has_begun_ = true;
  }
  void begin(const TurnUsage& usage) override {
    usage_ = usage;
    for (std::size_t i = 0; i < choices(); ++i) {
      Json out = chunk(i, {{"role", "assistant"}, {"content", ""}});
      if (i == 0) {
        out["dendrite"] = extension();
        if (body_.token_ids) out["prompt_token_ids"] = head_.prompt;
      }
      write(out);
    }
  }
  void piece(std::size_t choice, const TurnPiece& piece) override {
    for (const ChosenToken& token : piece.logprobs) {
      logprobs_[choice].push_back(chat_logprob(service_, token));
    }
    usage_.output += static_cast<std::int64_t>(piece.tokens.size());
    std::vector<Token> tokens = piece.tokens;
    for (const ReplyEvent& event : piece.events) {
      Json delta = delta_of(event);
      if (delta.is_null()) continue;
      Json out = chunk(choice, std::move(delta));
      if (body_.token_ids) out["choices"][0]["token_ids"] = std::exchange(tokens, {});
      write(out);
    }
    if (body_.token_ids && !tokens.empty()) {
      Json out = chunk(choice, Json::object());
      out["choices"][0]["token_ids"] = tokens;
      write(out);
    }
  }
  void end(std::size_t choice, const TurnEnd& end) override {
    Json out = chunk(choice, Json::object());
    out["choices"][0]["finish_reason"] = finish_of(end);
    if (!end.stop.empty()) out["choices"][0]["stop_reason"] = end.stop;
    if (const Json unusual = unusual_finish(end); !unusual.is_null()) {
      out["dendrite"] = {{"finish", unusual}};
    }
    write(out);
  }
  void done(const TurnUsage& usage) override {
    if (body_.include_usage) {
      const Json out = {{"choices", Json::array()}, {"usage", openai_usage(usage)}};
      reply_.write(chunk_event(chunk_head_, out));
    }
    reply_.write("data: [DONE]\n\n");
    reply_.end();
  }
  void fault(const Fault& fault) override {
    if (!has_begun_) return reply_.send(openai_error(fault));
    reply_.write("data: " + error_json(fault) + "\n\n");
    reply_.end();
  }

 private:
  static Json delta_of(const ReplyEvent& event, const char* reasoning) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning:
        return {{reasoning, event.text}};
      case ReplyEvent::Kind::kContent:
        return {{"content", event.text}};
      case ReplyEvent::Kind::kCallBegin: {
        Json call = call_json(event.id, event.name, "");
        call["index"] = event.call;
        return {{"tool_calls", Json::array({std::move(call)})}};
      }
      case ReplyEvent::Kind::kCallArguments: {
        Json call = {{"index", event.call}, {"function", {{"arguments", event.text}}}};
        return {{"tool_calls", Json::array({std::move(call)})}};
      }
      case ReplyEvent::Kind::kCallEnd:
        break;
    }
    return nullptr;
  }
  Json delta_of(const ReplyEvent& event) const { return delta_of(event, reasoning_field()); }

  Json chunk(std::size_t choice, Json delta) {
    Json one = {{"index", choice},
                {"delta", std::move(delta)},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}};
    if (Json& logprobs = logprobs_[choice]; !logprobs.empty()) {
      one["logprobs"] = {{"content", std::exchange(logprobs, Json::array())}, {"refusal", nullptr}};
    }
    return {{"choices", Json::array({std::move(one)})}};
  }
  void write(Json& chunk) {
    if (body_.include_usage) {
      chunk["usage"] = body_.continuous_usage ? openai_usage(usage_) : Json();
    }
    reply_.write(chunk_event(chunk_head_, chunk));
  }

  std::string chunk_head_;
  std::vector<Json> logprobs_;  // of each choice: not yet told
  TurnUsage usage_;
  bool has_begun_ = false;
};

void chat(Service& service, const Request& request, const Json& body, const Reply& reply) {
  ChatBody read = read_chat(service, body);
  tell_ignored(reply, read.ignored);
  TurnRequest turn = std::move(read.turn);
  read.turn = {};
  read.turn.n = turn.n;
  read.turn.chat.generate.decode.top_logprobs = turn.chat.generate.decode.top_logprobs;
  if (read.continuous_usage) turn.tokens = true;
  turn.remember = turn.n == 1;  // of several nobody knows which one is gone on with
  std::shared_ptr<TurnSink> sink;
  if (read.stream) {
    sink = std::make_shared<StreamedChat>(service, std::move(read), reply);
  } else {
    sink = std::make_shared<WholeChat>(service, std::move(read), reply);
  }
  const Turn started = service.turns.start(std::move(turn), service.caller(request),
                                           accounted(reply, std::move(sink)));
  reply.on_gone([started] { started.cancel(); });
}

}  // namespace

void add_chat_routes(Service& service) {
  service.route("POST", "/v1/chat/completions", [&service](Request request, const Reply& reply) {
    with_body(service, std::move(request), reply, openai_form,
              [&service](const Request& head, const Json& body, const Reply& out) {
                chat(service, head, body, out);
              });
  });
}

}  // namespace dendrite::server
