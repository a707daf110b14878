#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/json.h"
#include "server/turn.h"

// Replies of Anthropic's Messages API: events of a stream, and the whole message that they make.
namespace dendrite::server {

/// What a message has beside what the model says.
struct MessageHead {
  std::string id;  ///< "msg_..."
  std::string model;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;  ///< texts of stop_sequences
  Ignored ignored;
  std::vector<std::string> warnings{};  ///< of tools' schemas
};

/// Writes one message. Each function returns the events, as a stream has them, that it adds; the
/// message is what a client puts together of all.
class MessageWriter {
 public:
  explicit MessageWriter(MessageHead head);

  std::string begin(const TurnUsage& usage);
  std::string piece(const TurnPiece& piece);
  std::string end(const TurnEnd& end);
  std::string done(const TurnUsage& usage);

  const Json& message() const { return message_; }

 private:
  std::string open(Json block);
  std::string delta(Json delta);
  std::string close();
  std::string text(const char* type, const char* name, const std::string& text);
  std::string read(const ReplyEvent& event);

  MessageHead head_;
  Json message_;
  bool open_ = false;
  std::string arguments_;  // of the call that is open
};

/// The members of a JSON object that are whole, of a text that may break off anywhere.
Json whole_members(std::string_view json);

/// The error's form, also for what is refused before a request is read.
Answer anthropic_error(const Fault& fault, const std::string& request_id);
/// As the last event of a stream.
std::string anthropic_error_event(const Fault& fault, const std::string& request_id);

}  // namespace dendrite::server
