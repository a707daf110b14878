#pragma once

#include <functional>
#include <vector>

#include "dendrite/session.h"

namespace dendrite::server {

/// Log-probs of a prompt's own tokens, and the likeliest instead of each. Used by one thread.
class PromptScores {
 public:
  /// `root`: the prompt's branch, which stays as it is. `top`: so many likeliest tokens; 0: none.
  /// `done`: called once, in any thread, when get() has something; nothing may be waited for in it.
  PromptScores(Session& session, Branch& root, int top, std::function<void()> done);

  /// One for each token of the prompt but the first. Empty: pages or cancellation forbade it.
  std::vector<ChosenToken> get();

 private:
  std::vector<Token> prompt_;
  Branch first_;  // the first token alone
  PendingScore scores_;
};

}  // namespace dendrite::server
