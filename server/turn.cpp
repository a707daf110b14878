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
