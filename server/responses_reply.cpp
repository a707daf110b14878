#include "server/responses_reply.h"

#include <algorithm>
#include <utility>

#include "server/openai.h"
#include "server/responses_items.h"

namespace dendrite::server {
namespace {

constexpr std::string_view kPrefix = "resp_";
constexpr std::size_t kDigits = 32;

Json usage_of(const TurnUsage& usage, const ResponseHead& head) {
  const std::int64_t known = std::min(head.known, usage.prompt) - 1;
  Json out = {{"input_tokens", usage.prompt},
              {"input_tokens_details",
               {{"cached_tokens", usage.cached}, {"cache_write_tokens", usage.computed}}},
              {"output_tokens", usage.output},
              {"output_tokens_details", {{"reasoning_tokens", usage.reasoning}}},
              {"total_tokens", usage.prompt + usage.output},
              {"dendrite",
               {{"shared", usage.cached},
                {"computed", usage.computed},
                {"recomputed", std::max<std::int64_t>(0, known - usage.cached)},
                {"forked_from", head.forked_from.empty() ? Json() : Json(head.forked_from)}}}};
  add_composed(out["dendrite"], usage);
  return out;
}

}  // namespace

ResponseWriter::ResponseWriter(ResponseHead head) : head_(std::move(head)) {
  response_ = {{"id", head_.id},
               {"object", "response"},
               {"created_at", head_.created},
               {"status", "in_progress"},
               {"completed_at", nullptr},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", head_.model}};
  for (const auto& [key, value] : head_.echo.items()) response_[key] = value;
  response_["output"] = Json::array();
  response_["usage"] = nullptr;
  response_["dendrite"]["seed"] = head_.seed;
  if (!head_.ignored.empty()) response_["dendrite"]["ignored"] = head_.ignored.paths();
  if (!head_.warnings.empty()) response_["dendrite"]["warnings"] = head_.warnings;
}

std::string ResponseWriter::write(const std::string& type, Json data) {
  Json event_data = {{"type", type}, {"sequence_number", sequence_++}};
  for (auto& [key, value] : data.items()) event_data[key] = std::move(value);
  return event(event_data, type);
}

std::string ResponseWriter::lifecycle(const std::string& type) {
  return write(type, {{"response", response_}});
}

std::string ResponseWriter::of_item(const std::string& type, Json data) {
  Json all = {{"item_id", item_["id"]}, {"output_index", response_["output"].size()}};
  for (auto& [key, value] : data.items()) all[key] = std::move(value);
  return write(type, std::move(all));
}

ResponseWriter::Events ResponseWriter::begin() {
  return {lifecycle("response.created"), lifecycle("response.in_progress")};
}

std::string ResponseWriter::item_id(const char* prefix) const {
  const std::size_t index = response_["output"].size();
  constexpr const char* kHex = "0123456789abcdef";
  std::string digits;
  for (int shift = 12; shift >= 0; shift -= 4) digits += kHex[(index >> shift) & 15];
  return prefix + head_.id.substr(kPrefix.size()) + digits;
}

void ResponseWriter::open(Json item, Events& events) {
  close("completed", events);
  item_ = std::move(item);
  events.push_back(write("response.output_item.added",
                         {{"output_index", response_["output"].size()}, {"item", item_}}));
}

/// Ends the item that is written, if there is one.
void ResponseWriter::close(const std::string& status, Events& events) {
  if (item_.is_null()) return;
  const auto type = item_["type"].get<std::string>();
  if (type == "function_call") {
    events.push_back(of_item("response.function_call_arguments.done",
                             {{"name", item_["name"]}, {"arguments", item_["arguments"]}}));
  } else {
    const Json& part = item_["content"][0];
    const bool is_text = type == "message";
    Json data = {{"content_index", 0}, {"text", part["text"]}};
    if (is_text) data["logprobs"] = part["logprobs"];
    events.push_back(of_item(is_text ? "response.output_text.done" : "response.reasoning_text.done",
                             std::move(data)));
    events.push_back(of_item("response.content_part.done", {{"content_index", 0}, {"part", part}}));
    if (!is_text && head_.packed_reasoning) {
      item_["encrypted_content"] = pack_reasoning(part["text"].get<std::string>());
    }
  }
  item_["status"] = status;
  const std::size_t index = response_["output"].size();
  response_["output"].push_back(std::exchange(item_, Json()));
  events.push_back(write("response.output_item.done",
                         {{"output_index", index}, {"item", response_["output"].back()}}));
}

Json ResponseWriter::take_logprobs() {
  return std::exchange(logprobs_, Json::array());
}

void ResponseWriter::text(const char* item, const char* part, const char* name,
                          const std::string& text, Events& events) {
  const bool is_text = std::string_view(item) == "message";
  if (item_.is_null() || item_["type"] != item) {
    Json opened = {
        {"id", item_id(is_text ? "msg_" : "rs_")}, {"type", item}, {"status", "in_progress"}};
    if (is_text) {
      opened["role"] = "assistant";
    } else {
      opened["summary"] = Json::array();
    }
    opened["content"] = Json::array();
    open(std::move(opened), events);
    Json empty = {{"type", part}, {"text", ""}};
    if (is_text) empty["annotations"] = empty["logprobs"] = Json::array();
    events.push_back(
        of_item("response.content_part.added", {{"content_index", 0}, {"part", empty}}));
    item_["content"].push_back(std::move(empty));
  }
  Json& content = item_["content"][0];
  content["text"].get_ref<std::string&>() += text;
  Json data = {{"content_index", 0}, {"delta", text}};
  if (is_text) {
    data["logprobs"] = take_logprobs();
    for (const Json& each : data["logprobs"]) content["logprobs"].push_back(each);
  }
  events.push_back(of_item(std::string("response.") + name + ".delta", std::move(data)));
}

void ResponseWriter::read(const ReplyEvent& event, Events& events) {
  switch (event.kind) {
    case ReplyEvent::Kind::kReasoning:
      text("reasoning", "reasoning_text", "reasoning_text", event.text, events);
      break;
    case ReplyEvent::Kind::kContent:
      text("message", "output_text", "output_text", event.text, events);
      break;
    case ReplyEvent::Kind::kCallBegin: {
      Json call = {{"id", item_id("fc_")}, {"type", "function_call"}, {"status", "in_progress"},
                   {"call_id", event.id},  {"name", event.name},      {"arguments", ""}};
      const auto space = head_.namespaces.find(event.name);
      if (space != head_.namespaces.end()) call["namespace"] = space->second;
      open(std::move(call), events);
      break;
    }
    case ReplyEvent::Kind::kCallArguments:
      item_["arguments"].get_ref<std::string&>() += event.text;
      events.push_back(of_item("response.function_call_arguments.delta", {{"delta", event.text}}));
      break;
    case ReplyEvent::Kind::kCallEnd:
      close(event.complete ? "completed" : "incomplete", events);
      break;
  }
}

ResponseWriter::Events ResponseWriter::piece(const TurnPiece& piece) {
  Events events;
  if (head_.logprob) {
    for (const ChosenToken& token : piece.logprobs) logprobs_.push_back(head_.logprob(token));
  }
  bool said = piece.events.empty();
  for (const ReplyEvent& event : piece.events) {
    said = said || event.kind == ReplyEvent::Kind::kContent;
    read(event, events);
  }
  if (!said) logprobs_.clear();  // of thoughts and calls, which have no place for them
  return events;
}

ResponseWriter::Events ResponseWriter::end(const TurnEnd& end) {
  Events events;
  const bool whole = std::string_view(end.openai()) != "length";
  close(whole ? "completed" : "incomplete", events);
  if (end.finish == Finish::kCancelled) {
    response_["status"] = "cancelled";
  } else if (whole) {
    response_["status"] = "completed";
  } else {
    response_["status"] = "incomplete";
    response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  response_["dendrite"]["finish"] = name_of(end.finish);
  return events;
}

ResponseWriter::Events ResponseWriter::done(const TurnUsage& usage, std::int64_t time) {
  response_["usage"] = usage_of(usage, head_);
  const bool completed = response_["status"] == "completed";
  if (completed) response_["completed_at"] = time;
  return {lifecycle(completed ? "response.completed" : "response.incomplete")};
}

ResponseWriter::Events ResponseWriter::fail(const Fault& fault) {
  Events events;
  close("incomplete", events);
  response_["status"] = "failed";
  response_["error"] = {{"code", fault.code.empty() ? fault.type : fault.code},
                        {"message", fault.message}};
  events.push_back(lifecycle("response.failed"));
  return events;
}

std::string response_of_item(const std::string& item_id) {
  const std::size_t prefix = item_id.find('_');
  if (prefix == std::string::npos || item_id.size() != prefix + 1 + kDigits + 4) return {};
  return std::string(kPrefix) + item_id.substr(prefix + 1, kDigits);
}

}  // namespace dendrite::server
