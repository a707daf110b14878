#pragma once

#include <map>
#include <mutex>

#include "server/admission.h"
#include "server/service.h"

namespace dendrite::server {

/// The one implementation of Turns.
class EngineTurns final : public Turns {
 public:
  EngineTurns(const ServerOptions& options, Metrics& metrics) : admission_(options, metrics) {}
  /// Before anything else; `service` must outlive it.
  void serve(Service& service);

  Turn start(TurnRequest request, Caller caller, std::shared_ptr<TurnSink> sink) override;
  Session& session(Caller caller) override;
  void adopt(Caller caller, Session session) override;
  std::vector<Token> count(const TurnRequest& request) const override;
  Admission& admission() { return admission_; }

 private:
  Service* service_ = nullptr;
  Admission admission_;
  std::mutex mutex_;
  std::map<std::uint64_t, Session> sessions_;
};

}  // namespace dendrite::server
