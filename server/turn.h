#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dendrite/chat.h"
#include "server/composed_prompt.h"
#include "server/json.h"

// One turn of a conversation, or one prompt: what every API's request comes to. Whole answers and
// streams are made of the same events.
namespace dendrite::server {

/// What is to be answered, and how. Move-only.
struct TurnRequest {
  // The prompt, one of these four:
  std::string messages_json{};              ///< a conversation, as ChatModel::request takes it
  std::optional<std::vector<Token>> ids{};  ///< of a prompt, taken as they are
  std::optional<std::string> text{};        ///< of a prompt, encoded with the special tokens
  std::optional<Branch> branch{};           ///< one that goes on, in its own random stream
  /// Of a branch or tokens: reads what it writes from here on; without one all is content.
  std::optional<ReplyParser> parser{};
  std::int64_t uncached = 0;  ///< of a branch: tokens whose K and V were computed for this turn

  /// How: tools, template variables, and in generate.decode sampling, stops, constraint and
  /// log-probs (top_logprobs >= 0). Callbacks, cancel, seed, keep and max_tokens are the turn's.
  ChatParams chat{};
  std::optional<std::int64_t> max_tokens{};  ///< what does not fit is cut; unset: what fits
  int n = 1;
  std::optional<std::uint64_t> seed{};  ///< unset: drawn, and told by TurnHead
  int priority = 0;                     ///< higher: sooner
  /// Of a prompt or conversation: what it shares with others is with those of the same key that say
  /// the same.
  std::string cache_salt{};
  /// Of a conversation: the reply begins with it, which is in no event and no count of output.
  std::string reply_begins{};
  /// sink->keep() gets the branches. Of a request that goes on with one, also where it is cancelled
  /// or fails.
  bool keep = false;
  /// Its branch is kept among the recent ones, for turns that go on from it.
  bool remember = false;
  /// Of a conversation: K and V may be moved from a recent branch; unset: all is exact.
  std::optional<ReuseComposed> reuse_composed{};
  /// Of either: so long its pages are not evicted.
  std::optional<std::chrono::milliseconds> hold{};
  /// Each token as it is decoded goes with the events it came with.
  bool tokens = false;
  /// sink->prompt() gets log-probs of the prompt's own tokens, with so many likeliest ones.
  std::optional<int> prompt_logprobs{};
};

/// When it is known that there will be an answer, and before anything is computed.
struct TurnHead {
  std::vector<Token> prompt;  ///< all that the model reads
  std::uint64_t seed = 0;
  std::vector<std::string> warnings;  ///< of tools' schemas, see ChatRequest
};

/// Of the prompt's K and V what is not exact.
struct ComposedUsage {
  std::int64_t moved = 0;         ///< tokens, by this turn or by those that it goes on from
  std::int64_t repaired = 0;      ///< of what was moved with them, but computed
  std::optional<double> error{};  ///< the estimate, in nats a token; unset: there is none
  std::string note{};             ///< why nothing was moved, where there is something to say
};

/// Tokens, once a turn: the prompt's count once, whatever n is.
struct TurnUsage {
  std::int64_t prompt = 0;
  std::int64_t cached = 0;     ///< of the prompt: K and V were there
  std::int64_t computed = 0;   ///< rows of the prompt that were computed for it
  std::int64_t output = 0;     ///< all that was generated, an end-of-sequence token included
  std::int64_t reasoning = 0;  ///< of output: thought
  /// With TurnRequest::reuse_composed, and of a branch that was composed.
  std::optional<ComposedUsage> composed{};
};

/// What came since the last piece of a choice. Texts are whole UTF-8.
struct TurnPiece {
  std::vector<ReplyEvent> events;  ///< may be empty
  std::vector<Token> tokens;       ///< with TurnRequest::tokens
  /// Where log-probs were asked for: of tokens whose text is in these events or before them. An
  /// end-of-sequence token has none.
  std::vector<ChosenToken> logprobs;
};

/// How a choice ended.
struct TurnEnd {
  Finish finish = Finish::kRunning;
  std::string stop{};          ///< the request's stop text that ended it; empty: none did
  bool has_calls = false;      ///< it made calls, all of them whole
  std::int64_t output = 0;     ///< its tokens
  std::int64_t reasoning = 0;  ///< of them: thought
  /// "stop", "length" or "tool_calls", in OpenAI's words.
  const char* openai() const;
};

/// Hears of a turn, in the I/O thread: admitted; begin; pieces and ends of the choices, in any
/// order among these; done. A fault may come at any time instead, and is the last.
class TurnSink {
 public:
  virtual ~TurnSink() = default;
  /// Refusals that are known beforehand have been faults: a stream's headers can go out.
  virtual void admitted(const TurnHead& head) = 0;
  /// The prompt is computed. (output and reasoning are 0.)
  virtual void begin(const TurnUsage& usage) = 0;
  /// With TurnRequest::prompt_logprobs, behind begin(): one for each token of the prompt but the
  /// first, which nothing stands before.
  virtual void prompt(std::vector<ChosenToken> logprobs);
  virtual void piece(std::size_t choice, const TurnPiece& piece) = 0;
  virtual void end(std::size_t choice, const TurnEnd& end) = 0;
  virtual void done(const TurnUsage& usage) = 0;
  virtual void fault(const Fault& fault) = 0;
  /// With TurnRequest::keep: the branch, at its end, before end() of that choice. Any thread.
  virtual void keep(std::size_t choice, Branch branch);
};

class TurnState;

/// A turn under way; a shared handle. Dropping it cancels nothing.
class Turn {
 public:
  Turn() = default;
  explicit Turn(std::shared_ptr<TurnState> state) : state_(std::move(state)) {}
  /// Ends it after the step under way; from any thread. The sink hears nothing more.
  void cancel() const;
  /// Ends what is generated, as though max_tokens had been reached: choices end with kCancelled,
  /// and done() comes.
  void stop() const;
  /// Forks a choice at its newest token, or at `length` tokens (prompt included), while it runs. An
  /// empty branch: it has not begun, or has ended. Throws Error for a length that it has not.
  Branch fork(std::size_t choice, std::optional<std::int64_t> length = std::nullopt) const;

 private:
  std::shared_ptr<TurnState> state_;
};

}  // namespace dendrite::server
