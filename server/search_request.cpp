#include "server/search_request.h"

#include <algorithm>
#include <utility>

#include "server/chat_request.h"
#include "server/read.h"

namespace dendrite::server {
namespace {

constexpr std::int64_t kTokens = std::int64_t{1}
                                 << 18;  // of a search that asks for no other budget
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr double kMostMilliseconds = 24 * 3600e3;
constexpr std::size_t kMostInput = std::size_t{32} << 20;

/// This is nobody else's API: what a field would have done is not left to a guess.
void refuse_others(const Fields& fields, const char* why) {
  Ignored others;
  fields.rest(others);
  if (!others.empty()) throw bad_request(others.paths().front(), why, "unsupported_parameter");
}

Budget read_budget(Fields& body) {
  Budget budget{.tokens = kTokens};
  const Json* given = body.object("budget");
  if (given == nullptr) return budget;
  Fields fields(*given, body.path("budget"));
  budget.tokens = fields.integer("tokens", 1, kMostTokens).value_or(kTokens);
  budget.milliseconds = fields.number("milliseconds", 1, kMostMilliseconds).value_or(0);
  refuse_others(fields, "a budget has tokens and milliseconds");
  return budget;
}

/// A text is a prompt as it is, messages are rendered.
void read_input(Fields& body, const Service& service, TurnRequest& turn, SearchBody& out) {
  const Json* input = body.find("input");
  if (input == nullptr) throw bad_request("input", "it is missing");
  if (input->is_string()) {
    out.prompt_text = body.text("input", kMostInput).value_or("");
    out.prompt = service.engine.encode(out.prompt_text);
  } else {
    // (Of a model that thinks, the template is told that the reply has a form, where it has.)
    const ChatRequest chat = service.model.request(dump(read_messages(*input, "input")), turn.chat);
    out.prompt = chat.prompt;
    out.prompt_text = service.engine.decode(out.prompt);
  }
  const std::int64_t most = service.context_length();
  if (out.prompt.empty()) throw bad_request("input", "it has no tokens; expected at least one");
  if (std::ssize(out.prompt) >= most) {
    throw bad_request("input",
                      "this model's maximum context length is " + std::to_string(most) +
                          " tokens, and the input has " + std::to_string(out.prompt.size()),
                      "context_length_exceeded");
  }
}

}  // namespace

SearchBody read_search(const Service& service, const Json& body, const std::stop_token& cancel) {
  SearchBody out;
  Fields fields(body, "");
  out.model = service.model_name(fields.text("model").value_or(""));
  TurnRequest turn;
  read_sampling(fields, service, turn);
  read_constraint(fields, service, turn);
  read_input(fields, service, turn, out);
  DecodeParams& decode = turn.chat.generate.decode;
  out.constraint = std::exchange(decode.constraint, std::nullopt);
  out.seed = turn.seed ? *turn.seed : draw_seed();
  out.cache_salt = turn.cache_salt;
  out.priority = turn.priority;
  out.stream = fields.boolean("stream").value_or(false);
  out.trace = fields.boolean("trace").value_or(false);
  out.budget = read_budget(fields);
  const std::int64_t room = service.context_length() - std::ssize(out.prompt);
  decode.max_tokens =
      std::min(fields.integer("max_tokens", 1, INT32_MAX).value_or(decode.max_tokens), room);
  for (const char* name : {"max_completion_tokens", "max_output_tokens"}) {
    fields.refuse(name, "please use max_tokens");
  }
  fields.refuse("n", "please use strategy.n");
  const Json* strategy = fields.object("strategy");
  if (strategy == nullptr) throw bad_request("strategy", "it is missing");
  out.asked = *strategy;
  Fields of_strategy(*strategy, "strategy");
  StrategyRead read = read_strategy(of_strategy, fields, service, decode, room, cancel);
  out.strategy = std::move(read.strategy);
  out.at_once = std::clamp(read.at_once, 1, std::max(1, service.options.max_running));
  refuse_others(of_strategy, "this strategy has no such field");
  refuse_others(fields, "a search has no such field");
  return out;
}

}  // namespace dendrite::server
