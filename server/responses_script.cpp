#include "server/responses_script.h"

#include <utility>

namespace dendrite::server {
namespace {

Json json_of(const ReplyEvent& event) {
  switch (event.kind) {
    case ReplyEvent::Kind::kReasoning:
      return {"r", event.text};
    case ReplyEvent::Kind::kContent:
      return {"c", event.text};
    case ReplyEvent::Kind::kCallBegin:
      return {"b", event.call, event.id, event.name};
    case ReplyEvent::Kind::kCallArguments:
      return {"a", event.call, event.text};
    case ReplyEvent::Kind::kCallEnd:
      return {"e", event.call, event.complete};
  }
  return nullptr;
}

ReplyEvent event_of(const Json& json) {
  const auto kind = json.at(0).get<std::string>();
  using Kind = ReplyEvent::Kind;
  if (kind == "r" || kind == "c") {
    return {.kind = kind == "r" ? Kind::kReasoning : Kind::kContent,
            .text = json.at(1).get<std::string>()};
  }
  ReplyEvent event{.kind = Kind::kCallEnd, .call = json.at(1).get<std::size_t>()};
  if (kind == "b") {
    event.kind = Kind::kCallBegin;
    event.id = json.at(2).get<std::string>();
    event.name = json.at(3).get<std::string>();
  } else if (kind == "a") {
    event.kind = Kind::kCallArguments;
    event.text = json.at(2).get<std::string>();
  } else {
    event.complete = json.at(2).get<bool>();
  }
  return event;
}

/// [id, log-prob], and of a token that was drawn the likeliest ones behind.
Json json_of(const ChosenToken& token) {
  Json json = {token.id, token.logprob};
  Json top = Json::array();
  for (const TokenLogprob& each : token.top) top.push_back(Json::array({each.id, each.logprob}));
  json.push_back(std::move(top));
  return json;
}

ChosenToken token_of(const Json& json) {
  ChosenToken token{json.at(0).get<Token>(), json.at(1).get<float>(), {}};
  for (const Json& each : json.at(2)) {
    token.top.push_back({each.at(0).get<Token>(), each.at(1).get<float>()});
  }
  return token;
}

}  // namespace

void Script::add(const TurnPiece& piece) {
  Json line = Json::array({Json::array()});
  for (const ReplyEvent& event : piece.events) line[0].push_back(json_of(event));
  if (!piece.logprobs.empty()) {
    line.push_back(Json::array());
    for (const ChosenToken& token : piece.logprobs) line[1].push_back(json_of(token));
  }
  text_ += dump(line);
  text_ += '\n';
}

void Script::each(const std::function<void(const TurnPiece&)>& tell) const {
  for (std::size_t from = 0; from < text_.size();) {
    const std::size_t to = text_.find('\n', from);
    const Json line = parse_json(std::string_view(text_).substr(from, to - from));
    from = to == std::string::npos ? text_.size() : to + 1;
    TurnPiece piece;
    for (const Json& each : line.at(0)) piece.events.push_back(event_of(each));
    if (line.size() > 1) {
      for (const Json& each : line.at(1)) piece.logprobs.push_back(token_of(each));
    }
    tell(piece);
  }
}

ResponseWriter::Events events_of(ResponseWriter& writer, const Script& script,
                                 const std::optional<ScriptEnd>& end) {
  ResponseWriter::Events events = writer.begin();
  const auto add = [&](ResponseWriter::Events more) {
    for (std::string& each : more) events.push_back(std::move(each));
  };
  script.each([&](const TurnPiece& piece) { add(writer.piece(piece)); });
  if (!end) return events;
  if (end->fault) {
    add(writer.fail(*end->fault));
  } else {
    add(writer.end(end->end));
    add(writer.done(end->usage, end->time));
  }
  return events;
}

Json json_of(const ResponseHead& head) {
  return {{"id", head.id},
          {"model", head.model},
          {"created", head.created},
          {"seed", head.seed},
          {"echo", head.echo},
          {"namespaces", head.namespaces},
          {"packed_reasoning", head.packed_reasoning},
          {"ignored", head.ignored.paths()},
          {"warnings", head.warnings},
          {"forked_from", head.forked_from},
          {"known", head.known}};
}

ResponseHead head_of(const Json& json) {
  ResponseHead head;
  head.id = json.at("id").get<std::string>();
  head.model = json.at("model").get<std::string>();
  head.created = json.at("created").get<std::int64_t>();
  head.seed = json.at("seed").get<std::uint64_t>();
  head.echo = json.at("echo");
  for (const auto& [name, space] : json.at("namespaces").items()) {
    head.namespaces[name] = space.get<std::string>();
  }
  head.packed_reasoning = json.at("packed_reasoning").get<bool>();
  for (const Json& path : json.at("ignored")) head.ignored.add(path.get<std::string>());
  head.warnings = json.at("warnings").get<std::vector<std::string>>();
  head.forked_from = json.at("forked_from").get<std::string>();
  head.known = json.at("known").get<std::int64_t>();
  return head;
}

Json json_of(const ScriptEnd& end) {
  if (end.fault) {
    return {{"time", end.time},
            {"fault",
             {end.fault->status, end.fault->type, end.fault->code, end.fault->param,
              end.fault->message}}};
  }
  Json out = {{"time", end.time},
              {"end",
               {static_cast<int>(end.end.finish), end.end.stop, end.end.has_calls, end.end.output,
                end.end.reasoning}},
              {"usage",
               {end.usage.prompt, end.usage.cached, end.usage.computed, end.usage.output,
                end.usage.reasoning}}};
  if (const auto& composed = end.usage.composed) {
    out["composed"] = {composed->moved, composed->repaired,
                       composed->error ? Json(*composed->error) : Json(), composed->note};
  }
  return out;
}

ScriptEnd end_of(const Json& json) {
  ScriptEnd made;
  made.time = json.at("time").get<std::int64_t>();
  if (json.contains("fault")) {
    const Json& fault = json["fault"];
    made.fault.emplace(fault.at(0).get<int>(), fault.at(1).get<std::string>(),
                       fault.at(2).get<std::string>(), fault.at(3).get<std::string>(),
                       fault.at(4).get<std::string>());
    return made;
  }
  const Json& end = json.at("end");
  const Json& usage = json.at("usage");
  made.end = {.finish = static_cast<Finish>(end.at(0).get<int>()),
              .stop = end.at(1).get<std::string>(),
              .has_calls = end.at(2).get<bool>(),
              .output = end.at(3).get<std::int64_t>(),
              .reasoning = end.at(4).get<std::int64_t>()};
  made.usage = {usage.at(0).get<std::int64_t>(), usage.at(1).get<std::int64_t>(),
                usage.at(2).get<std::int64_t>(), usage.at(3).get<std::int64_t>(),
                usage.at(4).get<std::int64_t>()};
  if (json.contains("composed")) {
    const Json& composed = json["composed"];
    made.usage.composed = {composed.at(0).get<std::int64_t>(),
                           composed.at(1).get<std::int64_t>(),
                           {},
                           composed.at(3).get<std::string>()};
    if (const Json& error = composed.at(2); !error.is_null()) {
      made.usage.composed->error = error.get<double>();
    }
  }
  return made;
}

}  // namespace dendrite::server
