#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/responses_reply.h"
#include "server/turn.h"

// What a response was made of, in text: enough to write its events and its object again, to the
// letter.
namespace dendrite::server {

/// How a response ended.
struct ScriptEnd {
  TurnEnd end;
  TurnUsage usage;
  std::int64_t time = 0;         ///< Unix
  std::optional<Fault> fault{};  ///< instead of all but the time
};

/// Pieces of a reply, one line each.
class Script {
 public:
  Script() = default;
  explicit Script(std::string text) : text_(std::move(text)) {}
  void add(const TurnPiece& piece);
  const std::string& text() const { return text_; }
  /// Has `write` say all pieces in their order. Throws Fault for a text that none of these wrote.
  void each(const std::function<void(const TurnPiece&)>& tell) const;

 private:
  std::string text_;
};

/// All events, from the first on.
ResponseWriter::Events events_of(ResponseWriter& writer, const Script& script,
                                 const std::optional<ScriptEnd>& end);

// Heads and ends as JSON, without ResponseHead::logprob.
Json json_of(const ResponseHead& head);
ResponseHead head_of(const Json& json);
Json json_of(const ScriptEnd& end);
ScriptEnd end_of(const Json& json);

}  // namespace dendrite::server
