#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/branches/session_core.h"
#include "engine/loop/step_loop.h"

namespace dendrite {

/// Texts as what follows each branch. Throws Error without a tokenizer.
inline std::vector<std::vector<std::vector<Token>>> encode_all(
    ConstBranches branches, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::vector<Token>>> tokens;
  for (const Branch& branch : branches) {
    auto& of_branch = tokens.emplace_back();
    for (const std::string& text : texts) of_branch.push_back(branch.encode(text));
  }
  return tokens;
}

/// A call whose caller waits for it.
template <typename C, typename... Arguments>
std::shared_ptr<C> run_call(SessionCore& session, const char* what, Arguments&&... arguments) {
  StepLoop& loop = *session.engine->loop;
  session.engine->callbacks.refuse_wait(what);
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
