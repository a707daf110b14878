#include "server/turn.h"

#include <algorithm>

#include "dendrite/error.h"
#include "server/turn_state.h"

namespace dendrite::server {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool is_text(const ReplyEvent& event) {
  return event.kind != ReplyEvent::Kind::kCallBegin && event.kind != ReplyEvent::Kind::kCallEnd;
}

/// Neighbours that say the same are one.
void add(std::vector<ReplyEvent>& to, std::vector<ReplyEvent> events) {
  for (ReplyEvent& event : events) {
    if (is_text(event) && event.text.empty()) continue;
    if (is_text(event) && !to.empty() && to.back().kind == event.kind &&
        to.back().call == event.call) {
      to.back().text += event.text;
    } else {
      to.push_back(std::move(event));
    }
  }
}

std::vector<ReplyEvent> content(std::string text) {
  if (text.empty()) return {};
  return {{.kind = ReplyEvent::Kind::kContent, .text = std::move(text)}};
}

/// The request's own stop text that ended it; one of the model's is none that it knows of.
std::string stop_of(const Generation& generation, const std::vector<std::string>& stops) {
  return std::ranges::find(stops, generation.stop) != stops.end() ? generation.stop : "";
}

}  // namespace

const char* TurnEnd::openai() const {
  switch (finish) {
    case Finish::kEos:
    case Finish::kStop:
    case Finish::kStopInside:
      return has_calls ? "tool_calls" : "stop";
    default:
      return "length";
  }
}

void TurnSink::keep(std::size_t, Branch) {}
void TurnSink::prompt(std::vector<ChosenToken>) {}

void Turn::cancel() const {
  if (state_) state_->cancel();
}
void Turn::stop() const {
  if (state_) state_->stop();
}
Branch Turn::fork(std::size_t choice, std::optional<std::int64_t> length) const {
  return state_ ? state_->fork(choice, length) : Branch();
}

TurnState::TurnState(Service& service, Admission& admission, Session& session, Caller caller,
                     TurnRequest request, std::shared_ptr<TurnSink> sink)
    : service_(service),
      admission_(admission),
      session_(session),
      caller_(caller),
      request_(std::move(request)),
      goes_on_(request_.branch.has_value()),
      sink_(std::move(sink)) {}

void TurnState::post(void (TurnState::*function)()) {
  service_.http.post([self = shared_from_this(), function] { ((*self).*function)(); });
}

void TurnState::read_prompt() {
  decode_ = request_.chat.generate.decode;
  if (request_.branch) {
    head_.prompt = request_.branch->tokens();
    parser_ = std::move(request_.parser);
    how_ = composedness_of(*request_.branch);
  } else if (request_.ids) {
    head_.prompt = *request_.ids;
    parser_ = std::move(request_.parser);
  } else if (request_.text) {
    head_.prompt = service_.engine.encode(*request_.text);
  } else {
    ChatRequest chat = service_.model.request(request_.messages_json, request_.chat);
    head_.prompt = std::move(chat.prompt);
    head_.warnings = std::move(chat.warnings);
    decode_ = std::move(chat.decode);
    parser_ = std::move(chat.parser);
    if (!request_.reply_begins.empty()) {
      const std::vector<Token> begun =
          service_.engine.encode_after(head_.prompt, request_.reply_begins);
      head_.prompt.insert(head_.prompt.end(), begun.begin(), begun.end());
      parser_->feed(request_.reply_begins);
      for (const ReplyEvent& held : ReplyParser(*parser_).finish(Finish::kLength)) {
        begun_ += held.text.size();
      }
    }
  }
}

void TurnState::check_prompt() {
  const std::int64_t vocab = service_.engine.info().vocab;
  for (const Token id : head_.prompt) {
    if (id < 0 || id >= vocab) {
      throw bad_request("prompt", "token " + std::to_string(id) + " is none; expected 0 to " +
                                      std::to_string(vocab - 1));
    }
  }
  const std::int64_t length = std::ssize(head_.prompt);
  const std::int64_t most = service_.context_length();
  if (length == 0) throw bad_request("prompt", "it has no tokens; expected at least one");
  const bool only_reads = request_.max_tokens == 0;
  if (length > most || (length == most && !only_reads)) {
    throw bad_request(request_.messages_json.empty() ? "prompt" : "messages",
                      "this model's maximum context length is " + std::to_string(most) +
                          " tokens, and the prompt has " + std::to_string(length) +
                          "; please shorten it",
                      "context_length_exceeded");
  }
  decode_.max_tokens = std::min(request_.max_tokens.value_or(most), most - length);
  if (decode_.constraint) service_.engine.check(*decode_.constraint);
}

void TurnState::prepare() {
  if (is_over()) return post(&TurnState::let_go);
  try {
    read_prompt();
    check_prompt();
    if (request_.seed) {
      head_.seed = *request_.seed;
    } else if (!request_.branch) {
      head_.seed = draw_seed();
    }
    if (request_.seed || !request_.branch) decode_.seed = head_.seed;
    const bool may_run = admission_.enter(shared_from_this());
    service_.http.post([self = shared_from_this()] {
      if (!self->is_over()) self->sink_->admitted(self->head_);
    });
    if (may_run) run();
  } catch (const Fault& fault) {
    fail(fault);
  } catch (const ConstraintError& error) {
    fail(bad_request("", error.what(), "invalid_schema"));
  } catch (const Error& error) {
    fail(bad_request(request_.messages_json.empty() ? "prompt" : "messages", error.what()));
  } catch (const std::exception&) {
    fail({500, "server_error", "", "", "the server failed to read the request"});
  }
}

void TurnState::run() {
  began_ = computed_ = Clock::now();
  if (is_over()) return post(&TurnState::let_go);
  if (request_.branch) return post(&TurnState::prefilled);
  if (!request_.reuse_composed) return prefill();
  {
    const std::lock_guard lock(mutex_);
    composing_ = true;
  }
  service_.composers.run([self = shared_from_this()] { self->compose(); });
}

void TurnState::prefill() {
  try {
    const std::lock_guard lock(mutex_);
    prefill_ = session_.submit_prefill(std::span<const Token>(head_.prompt),
                                       {.stream = 0,
                                        .salt = service_.salt_of(caller_, request_.cache_salt),
                                        .cancel = stop_.get_token()});
    prefill_.on_done([self = shared_from_this()] { self->computed(); });
  } catch (const Error& error) {
    fail(bad_request("prompt", error.what()));
  }
}

/// In a thread that may wait for the engine.
void TurnState::compose() {
  ComposedPrompt made;
  try {
    made = compose_prompt(session_, service_.recent, {caller_.key, request_.cache_salt},
                          head_.prompt, *request_.reuse_composed, stop_.get_token());
  } catch (const std::exception& error) {
    made.note = error.what();
  }
  const bool is_made = made.branch.valid();
  {
    const std::lock_guard lock(mutex_);
    composing_ = false;
    computed_ = Clock::now();
    root_ = std::move(made.branch);
    how_ = std::move(made.how);
    usage_.cached = made.cached;
    note_ = std::move(made.note);
  }
  if (!is_made && !is_over()) return prefill();
  post(&TurnState::prefilled);
}

/// The prompt's branch is there. Between two turns, in the thread that makes them: what is asked
/// for here is in the next one; who hears of it in another thread comes behind a whole step of
/// others.
void TurnState::computed() {
  const std::lock_guard lock(mutex_);
  computed_ = Clock::now();
  post(&TurnState::prefilled);  // before all that the choices may say
  if (is_over()) return;
  try {
    root_ = prefill_.get();
    if (root_.finish() != Finish::kBudget) {
      // (What others have, and was evicted, counts as shared there.)
      const BranchStats stats = root_.stats();
      usage_.cached = std::max<std::int64_t>(0, stats.prompt_shared - stats.tokens_regenerated);
      if (!request_.prompt_logprobs) fork_choices();
    }
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

/// The same, in the I/O thread.
void TurnState::prefilled() {
  admission_.progress();
  if (is_over()) return let_go();
  try {
    const bool decodes = [&] {
      const std::lock_guard lock(mutex_);  // until computed() has asked for its calls
      prefill_ = {};
      if (goes_on_) root_ = std::move(*request_.branch);
      return !choices_.empty();
    }();
    if (!decodes && !goes_on_ && root_.finish() == Finish::kBudget) {
      return fail(unavailable("server_overloaded", "there is no memory for the prompt now"));
    }
    usage_.prompt = std::ssize(head_.prompt);
    if (goes_on_) usage_.cached = usage_.prompt - request_.uncached;
    usage_.computed = usage_.prompt - usage_.cached;
    if (request_.reuse_composed || !how_.parts.empty()) {
      usage_.composed = {how_.moved(), how_.repaired(), how_.error, note_};
    }
    sink_->begin(usage_);
    if (decodes) return;
    if (!request_.prompt_logprobs) return fork_choices();
    scores_ = std::make_unique<PromptScores>(
        session_, root_, *request_.prompt_logprobs,
        [self = shared_from_this()] { self->post(&TurnState::scored); });
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

/// The prompt's log-probs are there.
void TurnState::scored() {
  admission_.progress();
  if (is_over()) return let_go();
  try {
    std::vector<ChosenToken> logprobs = scores_->get();
    scores_.reset();
    if (logprobs.size() + 1 != head_.prompt.size()) {
      return fail(unavailable("server_overloaded", "there is no memory for log-probs now"));
    }
    sink_->prompt(std::move(logprobs));
    fork_choices();
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

void TurnState::fork_choices() {
  std::vector<Branch> branches;
  for (int i = 1; i < request_.n; ++i) {
    branches.push_back(goes_on_ ? root_.fork()
                                : root_.fork({.stream = static_cast<std::uint64_t>(i)}));
  }
  branches.insert(branches.begin(), std::move(root_));
  for (Branch& branch : branches) branch.set_priority(request_.priority);
  decode(std::move(branches));
}

void TurnState::decode(std::vector<Branch> branches) {
  const std::lock_guard lock(mutex_);
  choices_.resize(branches.size());
  running_ = branches.size();
  decode_.cancel = stop_.get_token();
  decode_.on_step = [self = weak_from_this()](std::span<const TokenEvent>) {
    if (const auto alive = self.lock()) alive->wake();
    return true;
  };
  for (std::size_t i = 0; i < branches.size(); ++i) {
    choices_[i].parser = parser_;
    choices_[i].begun = begun_;
    choices_[i].call = session_.submit_decode(std::move(branches[i]), decode_);
    choices_[i].call.on_done([self = shared_from_this(), i] {
      self->service_.http.post([self, i] { self->ended(i); });
    });
  }
}

void TurnState::wake() {
  if (!waking_.exchange(true)) post(&TurnState::take);
}

void TurnState::take() {
  waking_ = false;
  admission_.progress();
  for (std::size_t i = 0; i < choices_.size() && !is_over(); ++i) {
    if (!choices_[i].ended) take(i);
  }
}

void TurnState::take(std::size_t index) {
  Choice& choice = choices_[index];
  std::vector<StreamToken> tokens = choice.call.take();
  if (tokens.empty()) return;
  note_time(choice, tokens.size());
  TurnPiece piece;
  for (StreamToken& token : tokens) {
    add(piece.events, read(choice, token));
    if (request_.tokens) piece.tokens.push_back(token.token);
    if (!token.chosen) continue;
    if (!is_end(token.token)) piece.logprobs.push_back(std::move(*token.chosen));
    tell(index, std::exchange(piece, {}));  // a token each: who reads them sees which are whose
  }
  tell(index, std::move(piece));
}

/// Whether the token ends a choice, and is no part of what it says.
bool TurnState::is_end(Token token) const {
  const auto is_one_of = [&](const std::vector<Token>& tokens) {
    return std::ranges::find(tokens, token) != tokens.end();
  };
  return is_one_of(decode_.stop_tokens) ||
         (!decode_.ignore_eos && is_one_of(service_.engine.info().eos));
}

/// Tokens that came together have the time since the ones before in equal parts.
void TurnState::note_time(Choice& choice, std::size_t tokens) {
  const Clock::time_point now = Clock::now();
  Metrics& metrics = admission_.metrics();
  if (!choice.last) {
    metrics.first_token.add(seconds_between(arrived_, now));
    choice.last = now;
    --tokens;
  }
  const double each =
      seconds_between(*choice.last, now) / static_cast<double>(std::max<std::size_t>(1, tokens));
  for (std::size_t i = 0; i < tokens; ++i) metrics.between_tokens.add(each);
  choice.last = now;
}

std::vector<ReplyEvent> TurnState::read(Choice& choice, const StreamToken& token) {
  ++choice.tokens;
  choice.text_bytes += token.text.size();
  std::vector<ReplyEvent> events =
      choice.parser ? choice.parser->feed(token.token, token.text) : content(token.text);
  note(choice, events);
  if (!choice.said) ++choice.silent;
  return events;
}

/// What it says of the choice; without what the reply was begun with.
void TurnState::note(Choice& choice, std::vector<ReplyEvent>& events) {
  for (ReplyEvent& event : events) {
    if (event.kind == ReplyEvent::Kind::kCallBegin) choice.begun = 0;
    const std::size_t cut = std::min(choice.begun, event.text.size());
    event.text.erase(0, cut);
    choice.begun -= cut;
  }
  std::erase_if(events,
                [](const ReplyEvent& event) { return is_text(event) && event.text.empty(); });
  for (const ReplyEvent& event : events) {
    choice.thought = choice.thought || event.kind == ReplyEvent::Kind::kReasoning;
    choice.said = choice.said || event.kind == ReplyEvent::Kind::kContent ||
                  event.kind == ReplyEvent::Kind::kCallBegin;
    if (event.kind == ReplyEvent::Kind::kCallBegin) ++choice.calls_begun;
    if (event.kind == ReplyEvent::Kind::kCallEnd && event.complete) ++choice.calls_whole;
  }
}

void TurnState::tell(std::size_t index, TurnPiece piece) {
  if (piece.events.empty() && piece.tokens.empty() && piece.logprobs.empty()) return;
  if (!is_over()) sink_->piece(index, piece);
}

/// A choice's call is over.
void TurnState::ended(std::size_t index) {
  if (!is_over()) take(index);
  choices_[index].ended = true;
  --running_;
  try {
    if (!is_over()) {
      conclude(index);
    } else if (goes_on_ && request_.keep) {
      give_back(index);
    }
  } catch (const std::exception& error) {
    return fail({500, "server_error", "", "", error.what()});
  }
  if (running_ == 0) done();
}

/// What it comes to, told.
void TurnState::conclude(std::size_t index) {
  Choice& choice = choices_[index];
  Generation generation = std::move(choice.call.get().front());
  if (generation.finish == Finish::kBudget && generation.ids.empty()) {
    if (request_.keep && goes_on_) give_back(index);
    return fail(unavailable("server_overloaded", "there is no memory for an answer now"));
  }
  TurnPiece rest;
  if (generation.text.size() > choice.text_bytes) {
    const std::string text = generation.text.substr(choice.text_bytes);
    add(rest.events, choice.parser ? choice.parser->feed(text) : content(text));
  }
  if (choice.parser) add(rest.events, choice.parser->finish(generation.finish));
  note(choice, rest.events);
  tell(index, std::move(rest));
  if (keeps()) give_back(index);
  const TurnEnd end{.finish = generation.finish,
                    .stop = stop_of(generation, decode_.stop),
                    .has_calls = choice.calls_begun > 0 && choice.calls_begun == choice.calls_whole,
                    .output = choice.tokens,
                    .reasoning = choice.thought ? choice.silent : 0};
  usage_.output += end.output;
  usage_.reasoning += end.reasoning;
  ++admission_.metrics().ended[end.openai()];
  sink_->end(index, end);
}

void TurnState::give_back(std::size_t index) {
  std::vector<Branch> branches;
  {
    const std::lock_guard lock(mutex_);
    branches = choices_[index].call.release();
  }
  if (branches.empty() || !branches.front().valid()) return;
  Branch& branch = branches.front();
  if (request_.hold) branch.hold(*request_.hold);
  if (request_.remember) {
    Branch other = request_.keep ? branch.fork({.stream = branch.stream()}) : std::move(branch);
    service_.recent.keep({caller_.key, request_.cache_salt}, std::move(other), how_);
  }
  if (request_.keep) sink_->keep(index, std::move(branch));
}

void TurnState::done() {
  if (!over_.exchange(true)) {
    const Clock::time_point now = Clock::now();
    Metrics& metrics = admission_.metrics();
    metrics.whole.add(seconds_between(arrived_, now));
    metrics.queued.add(seconds_between(arrived_, began_));
    metrics.prefill.add(seconds_between(began_, computed_));
    metrics.decode.add(seconds_between(computed_, now));
    if (usage_.output > 0) {
      metrics.token.add(seconds_between(computed_, now) * request_.n /
                        static_cast<double>(usage_.output));
    }
    metrics.prompt_lengths.add(static_cast<double>(usage_.prompt));
    metrics.output_lengths.add(static_cast<double>(usage_.output));
    metrics.prompt_tokens += usage_.prompt;
    metrics.cached_tokens += usage_.cached;
    metrics.generated_tokens += usage_.output;
    sink_->done(usage_);
  }
  let_go();
}

/// Everything that it holds, and its place: once its calls, which have been told to end, have. In
/// the I/O thread.
void TurnState::let_go() {
  {
    const std::lock_guard lock(mutex_);
    if (composing_) return;                            // it comes back when that has ended
    if (prefill_.valid() && !prefill_.done()) return;  // the same
    prefill_ = {};
    scores_.reset();
    if (goes_on_ && request_.keep && sink_) {  // it never got as far as to decode
      if (root_.valid()) sink_->keep(0, std::move(root_));
      if (request_.branch && request_.branch->valid()) {
        sink_->keep(0, std::move(*request_.branch));
      }
    }
    root_ = {};
    if (running_ > 0) return;
    choices_.clear();
    request_.branch.reset();
    sink_.reset();
  }
  admission_.leave(shared_from_this());
}

void TurnState::fail(const Fault& fault) {
  std::shared_ptr<TurnSink> sink;
  {
    const std::lock_guard lock(mutex_);
    sink = sink_;
  }
  if (over_.exchange(true)) return post(&TurnState::let_go);
  stop_.request_stop();
  service_.http.post([self = shared_from_this(), sink, fault] {
    if (!fault.code.empty()) ++self->admission_.metrics().rejected[fault.code];
    sink->fault(fault);
    self->let_go();
  });
}

void TurnState::cancel() {
  if (over_.exchange(true)) return;
  stop_.request_stop();
  post(&TurnState::let_go);
}

void TurnState::stop() {
  stop_.request_stop();
}

Branch TurnState::fork(std::size_t choice, std::optional<std::int64_t> length) {
  const std::lock_guard lock(mutex_);
  if (is_over() || choice >= choices_.size() || choices_[choice].ended) return {};
  const std::span<Branch> branches = choices_[choice].call.branches();
  if (branches.empty() || !branches.front().valid()) return {};
  return length ? branches.front().at(*length) : branches.front().fork();
}

}  // namespace dendrite::server
