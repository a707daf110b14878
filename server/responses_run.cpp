#include "server/responses_run.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/openai.h"
#include "server/turn_log.h"

namespace dendrite::server {
namespace {

constexpr auto kLeftFor = std::chrono::seconds(30);

std::string joined(const ResponseWriter::Events& events, std::int64_t after) {
  std::string text;
  for (std::size_t i = static_cast<std::size_t>(after + 1); i < events.size(); ++i) {
    text += events[i];
  }
  return text;
}

}  // namespace

ResponseRun::ResponseRun(Responses& all, std::shared_ptr<StoredResponse> response, Plan plan,
                         Reply reply)
    : all_(all), response_(std::move(response)), plan_(std::move(plan)), reply_(std::move(reply)) {}

void ResponseRun::start(TurnRequest turn) {
  turn.keep = plan_.store;
  turn.remember = true;
  if (plan_.question) {
    question_ = *plan_.question;
  } else if (plan_.store) {
    question_ = {turn.messages_json, turn.chat, turn.max_tokens};
  }
  Turn started = all_.service.turns.start(std::move(turn), {response_->key},
                                          accounted(reply_, shared_from_this()));
  all_.service.http.post([self = shared_from_this(), started] {
    self->turn_ = started;
    self->reply_.on_gone([weak = self->weak_from_this()] {
      if (const auto alive = weak.lock()) alive->left();
    });
  });
}

void ResponseRun::admitted(const TurnHead& head) {
  ResponseHead& mine = response_->head;
  mine.seed = head.seed;
  reply_.account([&](Account& account) { account.made = mine.id; });
  mine.warnings = head.warnings;
  if (response_->previous && response_->previous->branch.valid()) {
    const std::vector<Token> before = response_->previous->branch.tokens();
    const auto [ours, theirs] = std::ranges::mismatch(head.prompt, before);
    mine.known = ours - head.prompt.begin();
  }
  mine.logprob = [&service = all_.service](const ChosenToken& token) {
    return chat_logprob(service, token);
  };
  writer_.emplace(mine);
  if (plan_.store) {
    response_->run = shared_from_this();
    all_.store.put(response_);
    all_.runs.push_back(weak_from_this());
  }
  tell_ignored(reply_, mine.ignored);
  if (plan_.stream) {
    reply_.begin();
    streams_.push_back(reply_);
  } else if (plan_.background) {
    Json queued = writer_->response();
    queued["status"] = "queued";
    reply_.send({.body = dump(queued)});
  } else {
    wholes_.push_back(reply_);
  }
  emit(writer_->begin());
  if (!plan_.begun.empty()) piece(0, {std::exchange(plan_.begun, {}), {}, {}});
}

void ResponseRun::begin(const TurnUsage& /*usage*/) {}

void ResponseRun::piece(std::size_t /*choice*/, const TurnPiece& piece) {
  if (plan_.store) response_->script.add(piece);
  emit(writer_->piece(piece));
}

void ResponseRun::end(std::size_t /*choice*/, const TurnEnd& end) {
  end_ = end;
  emit(writer_->end(*end_));
}

void ResponseRun::keep(std::size_t /*choice*/, Branch branch) {
  response_->branch = std::move(branch);
}

void ResponseRun::done(const TurnUsage& usage) {
  response_->end = ScriptEnd{*end_, usage, static_cast<std::int64_t>(std::time(nullptr)), {}};
  response_->output = writer_->response()["output"];
  all_.store.ended(response_->head.id);
  if (!plan_.store || !all_.journal) return finish({});
  // Nobody is told that it is complete before it would survive.
  all_.journal->append(journal_put(*response_), [self = shared_from_this()](bool ok) {
    self->all_.service.http.post([self, ok] {
      if (ok) return self->finish({});
      self->all_.store.erase(self->response_->head.id, self->response_->key);
      self->finish(Fault(500, "server_error", "", "", "the response could not be stored"));
    });
  });
}

void ResponseRun::fault(const Fault& fault) {
  if (!writer_) {
    if (fault.status != 400 || !plan_.otherwise) return reply_.send(openai_error(fault));
    all_.service.workers.run(
        [self = shared_from_this(), other = std::exchange(plan_.otherwise, nullptr)] {
          try {
            self->start(other());
          } catch (const Fault& again) {
            self->reply_.send(openai_error(again));
          }
        });
    return;
  }
  response_->end = ScriptEnd{{}, {}, static_cast<std::int64_t>(std::time(nullptr)), fault};
  finish(fault);
  response_->output = writer_->response()["output"];
  all_.store.ended(response_->head.id);
}

/// The last event, which its end or this fault is.
void ResponseRun::finish(const std::optional<Fault>& fault) {
  const ScriptEnd& end = *response_->end;
  emit(fault ? writer_->fail(*fault) : writer_->done(end.usage, end.time));
  for (const Reply& each : streams_) each.end();
  for (const Reply& each : wholes_) {
    if (fault && !plan_.background) {
      each.send(openai_error(*fault));
    } else {
      each.send({.body = dump(writer_->response())});
    }
  }
  streams_.clear();
  wholes_.clear();
  response_->run = nullptr;
}

void ResponseRun::emit(const ResponseWriter::Events& events) {
  if (events.empty() || streams_.empty()) return;
  const std::string text = joined(events, -1);
  for (const Reply& each : streams_) each.write(text);
}

void ResponseRun::listen(const Reply& reply) {
  left_.reset();
  reply.on_gone([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->left();
  });
}

void ResponseRun::watch(const Reply& reply, std::int64_t after) {
  ResponseWriter writer(response_->head);
  reply.begin();
  ResponseWriter::Events events = events_of(writer, response_->script, std::nullopt);
  if (end_) {
    for (std::string& each : writer.end(*end_)) events.push_back(std::move(each));
  }
  reply.write(joined(events, after));
  streams_.push_back(reply);
  listen(reply);
}

void ResponseRun::answer_at_end(const Reply& reply) {
  wholes_.push_back(reply);
}

/// A client has gone.
void ResponseRun::left() {
  std::erase_if(streams_, [](const Reply& each) { return each.gone(); });
  std::erase_if(wholes_, [](const Reply& each) { return each.gone(); });
  if (plan_.background || !streams_.empty() || !wholes_.empty() || response_->end) return;
  if (!plan_.store || !writer_) return turn_.cancel();
  if (!plan_.stream) return turn_.stop();
  left_ = std::chrono::steady_clock::now();  // it may come back
}

void ResponseRun::end_if_left(std::chrono::steady_clock::time_point now) {
  if (left_ && now - *left_ > kLeftFor) turn_.stop();
}

void replay(const StoredResponse& response, const Reply& reply, std::int64_t after) {
  ResponseWriter writer(response.head);
  reply.begin();
  reply.write(joined(events_of(writer, response.script, response.end), after));
  reply.end();
}

Responses::Responses(Service& of)
    : service(of), store({of.options.max_stored_responses, of.options.response_ttl}) {}

void Responses::sweep() {
  for (const std::string& id : store.sweep()) {
    if (journal) journal->append(journal_delete(id));
  }
  compact();
  std::erase_if(runs, [](const auto& run) { return run.expired(); });
  for (const auto& each : runs) {
    if (const auto run = each.lock()) run->end_if_left(std::chrono::steady_clock::now());
  }
}

}  // namespace dendrite::server
