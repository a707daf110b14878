#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/json.h"
#include "server/turn.h"

// Replies of OpenAI's Responses API: events of a stream, and the object that they make.
namespace dendrite::server {

/// What a response has beside what the model says.
struct ResponseHead {
  std::string id;  ///< "resp_" and 32 hex digits; its items have the same digits
  std::string model;
  std::int64_t created = 0;  ///< Unix time
  std::uint64_t seed = 0;
  Json echo = Json::object();                       ///< fields of the request that are said again
  std::map<std::string, std::string> namespaces{};  ///< of functions that stand in one
  bool packed_reasoning = false;
  Ignored ignored{};
  std::vector<std::string> warnings{};  ///< of tools' schemas
  std::string forked_from{};            ///< the response that it goes on from, or was forked from
  /// The tokens, of the prompt, that the response which it goes on from has: what of these is not
  /// read from there was made again.
  std::int64_t known = 0;
  /// A token of `logprobs`, for people.
  std::function<Json(const ChosenToken&)> logprob{};
};

/// Writes one response. Each function returns the events that it adds, in their order: the n-th of
/// all has the sequence number n. The object is what a client puts together of them.
class ResponseWriter {
 public:
  using Events = std::vector<std::string>;

  explicit ResponseWriter(ResponseHead head);

  Events begin();
  Events piece(const TurnPiece& piece);
  Events end(const TurnEnd& end);
  /// The last one, as the object stands. `time`: Unix.
  Events done(const TurnUsage& usage, std::int64_t time);
  Events fail(const Fault& fault);

  const Json& response() const { return response_; }

 private:
  std::string write(const std::string& type, Json data);
  std::string lifecycle(const std::string& type);
  std::string of_item(const std::string& type, Json data);
  void open(Json item, Events& events);
  void close(const std::string& status, Events& events);
  void text(const char* item, const char* part, const char* name, const std::string& text,
            Events& events);
  void read(const ReplyEvent& event, Events& events);
  std::string item_id(const char* prefix) const;
  Json take_logprobs();

  ResponseHead head_;
  Json response_;
  Json item_;  // that is written; null: none
  Json logprobs_ = Json::array();
  std::int64_t sequence_ = 0;
};

/// The response that an item belongs to, by its id; empty for what is none of ours.
std::string response_of_item(const std::string& item_id);

}  // namespace dendrite::server
