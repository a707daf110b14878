#include "server/turns.h"

#include "dendrite/error.h"
#include "server/turn_state.h"

namespace dendrite::server {

void EngineTurns::serve(Service& service) {
  service_ = &service;
}

Session& EngineTurns::session(Caller caller) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(caller.key);
  if (found != sessions_.end()) return found->second;
  return sessions_.emplace(caller.key, Session(service_->engine, {.stream = caller.key}))
      .first->second;
}

void EngineTurns::adopt(Caller caller, Session session) {
  const std::lock_guard lock(mutex_);
  sessions_.insert_or_assign(caller.key, std::move(session));
}

Turn EngineTurns::start(TurnRequest request, Caller caller, std::shared_ptr<TurnSink> sink) {
  auto state = std::make_shared<TurnState>(*service_, admission_, session(caller), caller,
                                           std::move(request), std::move(sink));
  service_->workers.run([state] { state->prepare(); });
  return Turn(std::move(state));
}

std::vector<Token> EngineTurns::count(const TurnRequest& request) const {
  if (request.ids) return *request.ids;
  if (request.text) return service_->engine.encode(*request.text);
  try {
    return service_->model.request(request.messages_json, request.chat).prompt;
  } catch (const ConstraintError& error) {
    throw bad_request("", error.what(), "invalid_schema");
  } catch (const Error& error) {
    throw bad_request("messages", error.what());
  }
}

}  // namespace dendrite::server
