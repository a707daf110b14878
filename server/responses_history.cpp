#include "server/responses_history.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite::server {
namespace {

constexpr const char* kField = "dendrite.history";

Fault untold(const std::string& why) {
  return bad_request(kField, "the model's template can't go on from what was generated: " + why,
                     "unsupported_value");
}

}  // namespace

std::vector<Token> tokens_behind(const Service& service, const std::string& messages_json,
                                 const std::string& word, const ChatParams& chat,
                                 std::span<const Token> before) {
  std::string text;
  try {
    text = service.engine.decode(service.model.request(messages_json, chat).prompt);
  } catch (const ConstraintError&) {
    throw;
  } catch (const Error& error) {
    throw untold(error.what());
  }
  const std::size_t at = text.find(word);
  if (at == std::string::npos || text.find(word, at + 1) != std::string::npos) {
    throw untold("a reply is not in the prompt as it is, once");
  }
  std::vector<Token> behind = service.engine.encode_after(before, text.substr(at + word.size()));
  // The reply has the token that ends its turn, unless it was cut.
  const std::vector<Token>& ends = service.engine.info().eos;
  const bool has_ended = !before.empty() && std::ranges::find(ends, before.back()) != ends.end();
  if (has_ended && !behind.empty() && behind.front() == before.back()) {
    behind.erase(behind.begin());
  }
  if (behind.empty()) throw untold("it writes nothing behind a reply");
  return behind;
}

}  // namespace dendrite::server
