#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/session_core.h"
#include "engine/step_loop.h"

namespace dendrite {

/// Texts as continuations: without special tokens. Throws Error without a tokenizer.
inline std::vector<std::vector<Token>> encode_all(const EngineCore& engine,
                                                  const std::vector<std::string>& texts) {
  const Tokenizer& tokenizer = engine.require_tokenizer();
  std::vector<std::vector<Token>> tokens;
  for (const std::string& text : texts) tokens.push_back(tokenizer.encode(text, false));
  return tokens;
}

/// A call whose caller waits for it.
template <typename C, typename... Arguments>
std::shared_ptr<C> run_call(SessionCore& session, const char* what, Arguments&&... arguments) {
  StepLoop& loop = *session.engine->loop;
  loop.refuse_in_callback(what);
  auto call = std::make_shared<C>(session, std::forward<Arguments>(arguments)...);
  loop.run(call);
  return call;
}

/// One whose caller does not.
template <typename C, typename... Arguments>
std::shared_ptr<C> submit_call(SessionCore& session, Arguments&&... arguments) {
  auto call = std::make_shared<C>(session, std::forward<Arguments>(arguments)...);
  session.engine->loop->join(call, true);
  return call;
}

}  // namespace dendrite
