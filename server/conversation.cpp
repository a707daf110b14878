#include "server/conversation.h"

#include <utility>

namespace dendrite::server {
namespace {

constexpr std::int64_t kMostHoldMs = std::int64_t{24} * 3600 * 1000;
constexpr double kMostError = 1e6;

}  // namespace

void append_line(std::string& text, bool& first, const std::string& more) {
  if (!first) text += '\n';
  text += more;
  first = false;
}

std::optional<Json> with_one_system_message(const Json& messages) {
  std::string system;
  bool first = true;
  bool moved = false;
  Json others = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i]["role"] != "system") {
      others.push_back(messages[i]);
      continue;
    }
    moved = moved || i > 0;
    append_line(system, first, messages[i]["content"].get<std::string>());
  }
  if (!moved) return std::nullopt;
  Json made = Json::array({{{"role", "system"}, {"content", std::move(system)}}});
  for (Json& each : others) made.push_back(std::move(each));
  return made;
}

void read_extension(Fields& body, TurnRequest& turn, Ignored& ignored, bool* as_generated) {
  const Json* given = body.object("dendrite");
  if (given == nullptr) return;
  Fields fields(*given, "dendrite");
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    turn.seed = static_cast<std::uint64_t>(*seed);
  }
  if (const auto time = fields.integer("hold_ms", 1, kMostHoldMs)) {
    turn.hold = std::chrono::milliseconds(*time);
  }
  const bool composed = fields.word("reuse", {"exact", "composed"}) == "composed";
  if (composed) turn.reuse_composed.emplace();
  if (const auto error = fields.number("max_error", 0, kMostError)) {
    if (!composed) {
      throw bad_request("dendrite.max_error", "all is exact; expected reuse \"composed\" beside it",
                        "unsupported_value");
    }
    turn.reuse_composed->max_error = *error;
  }
  if (as_generated != nullptr) {
    *as_generated = fields.word("history", {"as_rendered", "as_generated"}) == "as_generated";
  }
  fields.rest(ignored);
}

}  // namespace dendrite::server
