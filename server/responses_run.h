#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/service.h"
#include "server/store.h"
#include "server/store_journal.h"

// Responses under way.
namespace dendrite::server {

/// What the endpoints of responses share.
struct Responses {
  Service& service;
  ResponseStore store;
  std::unique_ptr<Journal> journal;              ///< none: what is stored ends with the process
  std::vector<std::weak_ptr<ResponseRun>> runs;  ///< in the I/O thread

  explicit Responses(Service& service);
  /// Those of a former process.
  void restore();
  /// Makes the journal smaller where most of it is of none that is there.
  void compact();
  /// Now and then, in the I/O thread: lets go what is too old, and what nobody waits for.
  void sweep();
};

/// Hears of a turn, and tells who watches. In the I/O thread, but for start().
class ResponseRun : public TurnSink, public std::enable_shared_from_this<ResponseRun> {
 public:
  /// What it was asked, for forks.
  struct Question {
    std::string messages_json;
    ChatParams chat;
    std::optional<std::int64_t> max_tokens;
  };
  struct Plan {
    bool store = true, stream = false, background = false;
    /// The same turn in another way, for when its messages are refused.
    std::function<TurnRequest()> otherwise{};
    /// What the reply has already when it begins.
    std::vector<ReplyEvent> begun{};
    /// What is asked by a turn that has a branch.
    std::optional<Question> question{};
  };
  ResponseRun(Responses& all, std::shared_ptr<StoredResponse> response, Plan plan, Reply reply);

  /// From any thread.
  void start(TurnRequest turn);

  /// Writes all events behind `after`, those that are there and those that come.
  void watch(const Reply& reply, std::int64_t after);
  /// `reply` gets the response when it has ended.
  void answer_at_end(const Reply& reply);
  void stop() { turn_.stop(); }
  /// Ends it where nobody has watched for a while.
  void end_if_left(std::chrono::steady_clock::time_point now);
  const Json& response() const { return writer_->response(); }

  const Question& question() const { return question_; }
  /// See Turn::fork.
  Branch fork(std::optional<std::int64_t> length) const { return turn_.fork(0, length); }

  void admitted(const TurnHead& head) override;
  void begin(const TurnUsage& usage) override;
  void piece(std::size_t choice, const TurnPiece& piece) override;
  void end(std::size_t choice, const TurnEnd& end) override;
  void done(const TurnUsage& usage) override;
  void fault(const Fault& fault) override;
  void keep(std::size_t choice, Branch branch) override;

 private:
  void listen(const Reply& reply);
  void emit(const ResponseWriter::Events& events);
  void finish(const std::optional<Fault>& fault);
  void left();

  Responses& all_;
  std::shared_ptr<StoredResponse> response_;
  Plan plan_;
  Reply reply_;  // who asked for it
  Turn turn_;
  Question question_;
  std::optional<ResponseWriter> writer_;  // from admitted() on
  std::optional<TurnEnd> end_;
  std::vector<Reply> streams_, wholes_;
  std::optional<std::chrono::steady_clock::time_point> left_;
};

/// The events of one that has ended behind `after`, as a stream.
void replay(const StoredResponse& response, const Reply& reply, std::int64_t after);

// Lines of the journal: a response that has ended; and that the one with this id was deleted.
std::string journal_put(const StoredResponse& response);
std::string journal_delete(const std::string& id);

}  // namespace dendrite::server
