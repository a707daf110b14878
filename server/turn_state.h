#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "server/admission.h"
#include "server/prompt_scores.h"
#include "server/service.h"
#include "server/turn.h"

// A turn under way. Of turn*.cpp and turns.cpp alone.
namespace dendrite::server {

/// Prepared in a helper thread, admitted, then led from call to call in the I/O thread: what the
/// engine's thread has to say is a wake alone.
class TurnState final : public Admitted, public std::enable_shared_from_this<TurnState> {
 public:
  TurnState(Service& service, Admission& admission, Session& session, Caller caller,
            TurnRequest request, std::shared_ptr<TurnSink> sink);

  /// The prompt, checked; then in line. In a helper thread.
  void prepare();
  void run() override;
  void fail(const Fault& fault) override;
  void cancel();
  void stop();
  Branch fork(std::size_t choice, std::optional<std::int64_t> length);

  int choices() const override { return request_.n; }
  int priority() const override { return request_.priority; }
  Caller caller() const override { return caller_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    PendingDecode call;
    std::optional<ReplyParser> parser;  // none: all is content
    std::size_t text_bytes = 0;         // that came so far
    std::size_t begun = 0;  // bytes that are still to come of what the reply begins with
    std::int64_t tokens = 0, silent = 0;
    std::optional<Clock::time_point> last;  // when tokens came, to here
    bool said = false, thought = false;
    int calls_begun = 0, calls_whole = 0;
    bool ended = false;
  };

  void read_prompt();
  void check_prompt();
  void prefill();
  void compose();
  void computed();
  void prefilled();
  void scored();
  void fork_choices();
  void decode(std::vector<Branch> branches);
  void wake();
  void take();
  void take(std::size_t index);
  void note_time(Choice& choice, std::size_t tokens);
  void ended(std::size_t index);
  void conclude(std::size_t index);
  bool keeps() const { return request_.keep || request_.remember; }
  void give_back(std::size_t index);
  bool is_end(Token token) const;
  std::vector<ReplyEvent> read(Choice& choice, const StreamToken& token);
  void note(Choice& choice, std::vector<ReplyEvent>& events);
  void tell(std::size_t index, TurnPiece piece);
  void done();
  void let_go();
  void post(void (TurnState::*function)());
  bool is_over() const { return over_; }

  Service& service_;
  Admission& admission_;
  Session& session_;
  Caller caller_;
  TurnRequest request_;
  bool goes_on_;                    // from a branch, which is given back whatever happens
  std::shared_ptr<TurnSink> sink_;  // in the I/O thread
  TurnHead head_;
  DecodeParams decode_;
  std::optional<ReplyParser> parser_;
  std::size_t begun_ = 0;  // bytes of what the reply begins with that the parser holds back
  TurnUsage usage_;

  std::stop_source stop_;
  std::atomic<bool> over_ = false;    // the sink hears nothing more
  std::atomic<bool> waking_ = false;  // take() is on its way
  /// The calls, while others may fork, and the driver's thread makes them. (A call that has ended
  /// says so in the thread that asks to be told, which holds it.)
  std::recursive_mutex mutex_;
  bool entered_ = false;  // has a place that is to be given back
  PendingPrefill prefill_;
  bool composing_ = false;  // in a thread of those
  Composedness how_;        // the prompt's branch is
  std::string note_;        // of composing
  Branch root_;             // the prompt's, until the choices are forked
  std::unique_ptr<PromptScores> scores_;
  std::vector<Choice> choices_;
  std::size_t running_ = 0;
  Clock::time_point arrived_ = Clock::now(), began_, computed_;
};

}  // namespace dendrite::server
