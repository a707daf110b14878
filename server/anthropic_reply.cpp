#include "server/anthropic_reply.h"

#include <algorithm>
#include <utility>

#include "server/ids.h"
#include "server/openai.h"
#include "server/service.h"

namespace dendrite::server {
namespace {

std::string named(Json data) {
  const auto name = data["type"].get<std::string>();
  return event(data, name);
}

Json usage_of(const TurnUsage& usage) {
  Json out = {{"input_tokens", usage.prompt - usage.cached},
              {"cache_creation_input_tokens", 0},
              {"cache_read_input_tokens", usage.cached},
              {"output_tokens", usage.output},
              {"output_tokens_details", {{"thinking_tokens", usage.reasoning}}}};
  if (usage.composed) add_composed(out["dendrite"], usage);
  return out;
}

/// Clients keep it with the thoughts and send it back; nobody checks it.
std::string signature_of(const std::string& thoughts) {
  return hash_hex(thoughts);
}

std::string type_of(const Fault& fault) {
  switch (fault.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return fault.status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json error_of(const Fault& fault, const std::string& request_id) {
  std::string message = fault.message;
  // What programs look for, which then make their conversation shorter.
  if (fault.code == "context_length_exceeded") message = "prompt is too long: " + message;
  return {{"type", "error"},
          {"error", {{"type", type_of(fault)}, {"message", message}}},
          {"request_id", request_id}};
}

}  // namespace

MessageWriter::MessageWriter(MessageHead head) : head_(std::move(head)) {
  message_ = {{"id", head_.id},           {"type", "message"},        {"role", "assistant"},
              {"model", head_.model},     {"content", Json::array()}, {"stop_reason", nullptr},
              {"stop_sequence", nullptr}, {"usage", nullptr}};
  message_["dendrite"]["seed"] = head_.seed;
  if (!head_.ignored.empty()) message_["dendrite"]["ignored"] = head_.ignored.paths();
  if (!head_.warnings.empty()) message_["dendrite"]["warnings"] = head_.warnings;
}

std::string MessageWriter::begin(const TurnUsage& usage) {
  message_["usage"] = usage_of(usage);
  return named({{"type", "message_start"}, {"message", message_}}) + named({{"type", "ping"}});
}

std::string MessageWriter::open(Json block) {
  std::string events = close();
  Json& content = message_["content"];
  events +=
      named({{"type", "content_block_start"}, {"index", content.size()}, {"content_block", block}});
  content.push_back(std::move(block));
  open_ = true;
  arguments_.clear();
  return events;
}

std::string MessageWriter::delta(Json delta) {
  return named({{"type", "content_block_delta"},
                {"index", message_["content"].size() - 1},
                {"delta", std::move(delta)}});
}

std::string MessageWriter::close() {
  if (!std::exchange(open_, false)) return {};
  Json& block = message_["content"].back();
  std::string events;
  if (block["type"] == "thinking") {
    block["signature"] = signature_of(block["thinking"].get<std::string>());
    events = delta({{"type", "signature_delta"}, {"signature", block["signature"]}});
  } else if (block["type"] == "tool_use") {
    block["input"] = whole_members(arguments_);
  }
  return events +
         named({{"type", "content_block_stop"}, {"index", message_["content"].size() - 1}});
}

std::string MessageWriter::text(const char* type, const char* name, const std::string& text) {
  std::string events;
  if (!open_ || message_["content"].back()["type"] != type) {
    Json block = {{"type", type}, {name, ""}};
    if (block["type"] == "thinking") block["signature"] = "";
    events = open(std::move(block));
  }
  message_["content"].back()[name].get_ref<std::string&>() += text;
  return events + delta({{"type", std::string(name) + "_delta"}, {name, text}});
}

std::string MessageWriter::read(const ReplyEvent& event) {
  switch (event.kind) {
    case ReplyEvent::Kind::kReasoning:
      return text("thinking", "thinking", event.text);
    case ReplyEvent::Kind::kContent:
      return text("text", "text", event.text);
    case ReplyEvent::Kind::kCallBegin: {
      std::string_view id = event.id;
      if (id.starts_with("call_")) id.remove_prefix(5);
      return open({{"type", "tool_use"},
                   {"id", "toolu_" + std::string(id)},
                   {"name", event.name},
                   {"input", Json::object()}});
    }
    case ReplyEvent::Kind::kCallArguments:
      arguments_ += event.text;
      return delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
    case ReplyEvent::Kind::kCallEnd:
      return close();
  }
  return {};
}

std::string MessageWriter::piece(const TurnPiece& piece) {
  std::string events;
  for (const ReplyEvent& event : piece.events) events += read(event);
  return events;
}

std::string MessageWriter::end(const TurnEnd& end) {
  const std::string_view reason = end.openai();
  const bool stopped = std::ranges::find(head_.stop, end.stop) != head_.stop.end();
  message_["stop_reason"] = reason == "length" ? "max_tokens"
                            : end.has_calls    ? "tool_use"
                            : stopped          ? "stop_sequence"
                                               : "end_turn";
  if (message_["stop_reason"] == "stop_sequence") message_["stop_sequence"] = end.stop;
  return close();
}

std::string MessageWriter::done(const TurnUsage& usage) {
  message_["usage"] = usage_of(usage);
  return named({{"type", "message_delta"},
                {"delta",
                 {{"stop_reason", message_["stop_reason"]},
                  {"stop_sequence", message_["stop_sequence"]}}},
                {"usage", message_["usage"]}}) +
         named({{"type", "message_stop"}});
}

Json whole_members(std::string_view json) {
  Json whole = Json::parse(json, nullptr, false);
  if (whole.is_object()) return whole;
  // Cut behind the last value that is whole, with the brackets closed that are open there.
  std::string open;
  std::string closers;
  std::size_t end = std::string_view::npos;
  bool in_string = false;
  const auto remember = [&](std::size_t at) {
    end = at;
    closers.assign(open.rbegin(), open.rend());
  };
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      remember(i + 1);
    } else if (c == '}' || c == ']') {
      if (open.empty()) break;
      open.pop_back();
      remember(i + 1);
    } else if (c == ',') {
      remember(i);  // what stands before it is whole
    }
  }
  if (end == std::string_view::npos) return Json::object();
  whole = Json::parse(std::string(json.substr(0, end)) + closers, nullptr, false);
  return whole.is_object() ? whole : Json::object();
}

Answer anthropic_error(const Fault& fault, const std::string& request_id) {
  Answer answer = openai_error(fault);
  answer.body = dump(error_of(fault, request_id));
  answer.headers.push_back({"request-id", request_id});
  return answer;
}

std::string anthropic_error_event(const Fault& fault, const std::string& request_id) {
  return event(error_of(fault, request_id), "error");
}

}  // namespace dendrite::server
