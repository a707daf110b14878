#include "server/turn_log.h"

#include <chrono>
#include <utility>

#include "server/service.h"

namespace dendrite::server {
namespace {

using Clock = std::chrono::steady_clock;

class Accounted final : public TurnSink {
 public:
  Accounted(Reply reply, std::shared_ptr<TurnSink> sink)
      : reply_(std::move(reply)), sink_(std::move(sink)) {}

  void admitted(const TurnHead& head) override {
    reply_.account([](Account& account) { account.error.clear(); });  // of another way to ask
    sink_->admitted(head);
  }
  void begin(const TurnUsage& usage) override { sink_->begin(usage); }
  void prompt(std::vector<ChosenToken> logprobs) override { sink_->prompt(std::move(logprobs)); }
  void piece(std::size_t choice, const TurnPiece& piece) override {
    if (!std::exchange(has_begun_, true)) {
      reply_.account([now = Clock::now()](Account& account) {
        if (!account.first_token) account.first_token = now;
      });
    }
    sink_->piece(choice, piece);
  }
  void end(std::size_t choice, const TurnEnd& end) override {
    reply_.account([&](Account& account) { account.finish.emplace_back(end.openai()); });
    sink_->end(choice, end);
  }
  void done(const TurnUsage& usage) override {
    reply_.account([&](Account& account) {
      account.prompt_tokens += usage.prompt;
      account.cached_tokens += usage.cached;
      account.output_tokens += usage.output;
    });
    sink_->done(usage);
  }
  void fault(const Fault& fault) override {
    reply_.account([&](Account& account) { account.error = name_of_error(fault); });
    sink_->fault(fault);
  }
  void keep(std::size_t choice, Branch branch) override { sink_->keep(choice, std::move(branch)); }

 private:
  Reply reply_;
  std::shared_ptr<TurnSink> sink_;
  bool has_begun_ = false;
};

}  // namespace

std::shared_ptr<TurnSink> accounted(Reply reply, std::shared_ptr<TurnSink> sink) {
  return std::make_shared<Accounted>(std::move(reply), std::move(sink));
}

}  // namespace dendrite::server
