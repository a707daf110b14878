#include "server/responses_run.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "server/openai.h"

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
  turn.keep = true;
  if (plan_.question) {
    question_ = *plan_.question;
  } else if (plan_.store) {
    question_ = {turn.messages_json, turn.chat, turn.max_tokens};
  }
  Turn started = all_.service.turns.start(std::move(turn), {response_->key}, shared_from_this());
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
  emit(writer_->end(end));
}

void ResponseRun::keep(std::size_t /*choice*/, Branch branch) {
  if (plan_.store) {
    response_->branch = std::move(branch);
  } else {
    all_.recent.keep(std::move(branch));
  }
}

void ResponseRun::done(const TurnUsage& usage) {
  response_->end = ScriptEnd{end_, usage, static_cast<std::int64_t>(std::time(nullptr)), {}};
  response_->output = writer_->response()["output"];
  if (!plan_.store || !all_.journal) return finish(true);
  // Nobody is told that it is complete before it would survive.
  all_.journal->append(record(), [self = shared_from_this()](bool ok) {
    self->all_.service.http.post([self, ok] { self->finish(ok); });
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
  finish(true);
}

/// The end is known, and it is stored where it has to be.
void ResponseRun::finish(bool stored) {
  ScriptEnd& end = *response_->end;
  if (!stored) end.fault.emplace(500, "server_error", "", "", "the response could not be stored");
  if (end.fault) {
    emit(writer_->fail(*end.fault));
    response_->output = writer_->response()["output"];
  } else {
    emit(writer_->done(end.usage, end.time));
  }
  for (const Reply& each : streams_) each.end();
  for (const Reply& each : wholes_) {
    if (end.fault && !plan_.store) {
      each.send(openai_error(*end.fault));
    } else {
      each.send({.body = dump(writer_->response())});
    }
  }
  streams_.clear();
  wholes_.clear();
  all_.store.ended(response_->head.id);
  response_->run = nullptr;  // it ends here, unless it is still called
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
  reply.write(joined(events_of(writer, response_->script, std::nullopt), after));
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

std::string ResponseRun::record() const {
  return dump({{"put",
                {{"key", all_.key_name(response_->key)},
                 {"previous", response_->previous ? Json(response_->previous->head.id) : Json()},
                 {"head", json_of(response_->head)},
                 {"input", response_->input},
                 {"script", response_->script.text()},
                 {"end", json_of(*response_->end)}}}});
}

void replay(const StoredResponse& response, const Reply& reply, std::int64_t after) {
  ResponseWriter writer(response.head);
  reply.begin();
  reply.write(joined(events_of(writer, response.script, response.end), after));
  reply.end();
}

Responses::Responses(Service& of)
    : service(of), store({of.options.max_stored_responses, of.options.response_ttl}), recent(64) {}

std::string Responses::key_name(std::uint64_t key) const {
  if (key == 0) return "";
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : service.options.api_keys.at(key - 1)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return std::to_string(hash);
}

std::string journal_delete(const std::string& id) {
  return dump({{"delete", id}});
}

void Responses::restore() {
  if (service.options.response_store.empty()) return;
  journal = std::make_unique<Journal>(service.options.response_store);
  std::map<std::string, std::uint64_t> keys;
  keys[""] = 0;
  for (std::uint64_t i = 1; i <= service.options.api_keys.size(); ++i) keys[key_name(i)] = i;
  // A deleted one stays for those that went on from it.
  std::map<std::string, std::shared_ptr<StoredResponse>> known;
  std::map<std::string, std::string> lines;
  std::set<std::string> deleted;
  std::vector<std::string> order;
  for (std::string& line : journal->read()) {
    const Json json = Json::parse(line);
    if (json.contains("delete")) {
      deleted.insert(json["delete"].get<std::string>());
      continue;
    }
    const Json& put = json.at("put");
    auto response = std::make_shared<StoredResponse>();
    response->head = head_of(put.at("head"));
    response->head.logprob = [&of = service](const ChosenToken& token) {
      return chat_logprob(of, token);
    };
    const auto key = keys.find(put.at("key").get<std::string>());
    response->key = key == keys.end() ? ~std::uint64_t{0} : key->second;
    if (put.at("previous").is_string()) {
      const auto previous = known.find(put["previous"].get<std::string>());
      if (previous != known.end()) response->previous = previous->second;
    }
    response->input = put.at("input");
    response->script = Script(put.at("script").get<std::string>());
    response->end = end_of(put.at("end"));
    response->output = response->response()["output"];
    const std::string id = response->head.id;
    known[id] = std::move(response);
    lines[id] = std::move(line);
    order.push_back(id);
  }
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const std::string& id : order) {
    if (deleted.contains(id)) continue;
    const std::chrono::seconds age(std::max<std::int64_t>(0, now - known[id]->end->time));
    store.put(known[id], ResponseStore::Clock::now() - age);
  }
  store.sweep();
  // A smaller journal: of those that are there, and of those that they went on from.
  std::set<std::string> needed;
  std::set<std::string> live;
  for (const auto& each : store.all()) {
    live.insert(each->head.id);
    for (const StoredResponse* at = each.get(); at != nullptr; at = at->previous.get()) {
      if (!needed.insert(at->head.id).second) break;
    }
  }
  std::vector<std::string> kept;
  for (const std::string& id : order) {
    if (needed.contains(id)) kept.push_back(std::move(lines[id]));
    if (needed.contains(id) && !live.contains(id)) kept.push_back(journal_delete(id));
  }
  journal->replace(kept);
}

void Responses::forget(const std::string& id) {
  if (journal) journal->append(journal_delete(id));
}

void Responses::sweep() {
  for (const std::string& id : store.sweep()) forget(id);
  std::erase_if(runs, [](const auto& run) { return run.expired(); });
  for (const auto& each : runs) {
    if (const auto run = each.lock()) run->end_if_left(std::chrono::steady_clock::now());
  }
}

}  // namespace dendrite::server
