#include <atomic>
#include <cmath>
#include <mutex>
#include <sstream>

#include "dendrite/error.h"
#include "server/openai.h"
#include "server/search_request.h"
#include "server/turns.h"

// /v1/searches: strategies of the library, each in a thread of its own, which waits for its calls;
// these share their steps with all others. What is told of a search while it runs comes from that
// thread, in the order of its SearchEvents.
namespace dendrite::server {
namespace {

constexpr int kAtATime = 16;  // searches, those that wait for a place included

/// Where searches run, for the life of the server.
struct SearchThreads {
  Workers workers{kAtATime};
  std::atomic<int> taken = 0;
};

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json joined_json(const ThoughtRecord& thought) {
  Json out = Json::array();
  for (const NodeId node : thought.joined) out.push_back(static_cast<std::int64_t>(node));
  return out;
}

/// A thought when it is new.
Json new_node(const ThoughtRecord& thought) {
  Json out = {{"node", static_cast<std::int64_t>(thought.node)},
              {"parent", static_cast<std::int64_t>(thought.parent)},
              {"depth", thought.depth},
              {"text", thought.text},
              {"tokens", thought.tokens},
              {"logprob", number(thought.logprob)}};
  if (!thought.joined.empty()) out["joined"] = joined_json(thought);
  return out;
}

/// A thought in the end.
Json whole_node(const ThoughtRecord& thought) {
  Json out = new_node(thought);
  out["value"] = number(thought.value);
  out["visits"] = thought.visits;
  out["kept"] = thought.kept;
  return out;
}

/// The event's name, and what it says.
std::pair<const char*, Json> event_of(const SearchEvent& told) {
  const Thought& thought = *told.thought;
  Json node = {{"node", static_cast<std::int64_t>(thought.node)}};
  switch (told.kind) {
    case SearchEvent::Kind::kProposed:
      return {"search.node.added", new_node(thought)};
    case SearchEvent::Kind::kJudged:
      node["value"] = number(thought.value);
      return {"search.node.scored", std::move(node)};
    case SearchEvent::Kind::kVisited:
      node["value"] = number(thought.value);
      node["visits"] = thought.visits;
      return {"search.node.visited", std::move(node)};
    case SearchEvent::Kind::kKept:
      return {"search.node.kept", std::move(node)};
    case SearchEvent::Kind::kPruned:
      return {"search.node.pruned", std::move(node)};
    case SearchEvent::Kind::kSolved:
      break;
  }
  return {"search.node.solved", std::move(node)};
}

/// The strategies whose thoughts are whole answers; of others the text is all of a branch's.
template <typename Strategy>
constexpr bool kWholeAnswers =
    std::is_same_v<Strategy, BestOfN> || std::is_same_v<Strategy, SelfConsistency> ||
    std::is_same_v<Strategy, SelfRefinement>;

/// What a search came to.
struct Outcome {
  Json result;  ///< members of the search's object
  std::int64_t cached = 0, output = 0;
  std::string finish;
};

class Search final : public Admitted, public std::enable_shared_from_this<Search> {
 public:
  Search(Service& service, SearchThreads& threads, Caller caller, Reply reply)
      : service_(service),
        admission_(static_cast<EngineTurns&>(service.turns).admission()),
        threads_(threads),
        caller_(caller),
        reply_(std::move(reply)) {}

  /// In a helper thread. Throws Fault.
  void start(const Json& body);

  int choices() const override { return body_.at_once; }
  int priority() const override { return body_.priority; }
  Caller caller() const override { return caller_; }
  void run() override;
  void fail(const Fault& fault) override;

 private:
  void work();
  template <typename Strategy>
  Outcome search(Strategy strategy);
  Json object(const char* status) const;
  void begin();
  /// One event of a stream.
  void tell(const char* type, Json data);
  void finish(Outcome outcome);
  void let_go();

  Service& service_;
  Admission& admission_;
  SearchThreads& threads_;
  Caller caller_;
  Reply reply_;
  std::string id_ = new_id("search_");
  std::stop_source cancel_;
  SearchBody body_;
  std::atomic<bool> started_ = false;
  std::atomic<bool> has_place_ = false;
  std::mutex mutex_;  // of what follows: what is told, and in which order
  bool begun_ = false, over_ = false;
  std::int64_t sequence_ = 0;
};

void Search::start(const Json& body) {
  body_ = read_search(service_, body, cancel_.get_token());
  if (++threads_.taken > kAtATime) {
    --threads_.taken;
    throw unavailable(
        "server_overloaded",
        std::to_string(kAtATime) + " searches are under way, and no more run at a time");
  }
  has_place_ = true;
  try {
    const bool now = admission_.enter(shared_from_this());
    reply_.on_gone([self = shared_from_this()] {
      {
        const std::lock_guard lock(self->mutex_);
        self->over_ = true;
      }
      self->cancel_.request_stop();
      if (!self->started_) self->let_go();
    });
    if (now) run();
  } catch (...) {
    let_go();
    throw;
  }
}

void Search::run() {
  started_ = true;
  threads_.workers.run([self = shared_from_this()] { self->work(); });
}

Fault failed(const std::exception& error) {
  return {500, "server_error", "", "", error.what()};
}

/// Whether the engine does what any request may ask: an Error is not the caller's where it doesn't.
bool still_computes(const Engine& engine, std::span<const Token> prompt) {
  try {
    Session session(engine);
    Branch branch = session.prefill(prompt.first(1));
    session.decode(branch, {.max_tokens = 1});
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Search::work() {
  try {
    begin();
    finish(std::visit([&](auto& strategy) { return search(std::move(strategy)); }, body_.strategy));
  } catch (const Error& error) {  // its texts do not fit this model, or the device failed
    fail(still_computes(service_.engine, body_.prompt) ? bad_request("strategy", error.what())
                                                       : failed(error));
  } catch (const std::exception& error) {
    fail(failed(error));
  }
  let_go();
}

template <typename Strategy>
Outcome Search::search(Strategy strategy) {
  // (All searches draw from the same stream: what one finds depends on its request alone.)
  Session session(service_.engine, {.seed = body_.seed, .budget = body_.budget});
  std::ostringstream trace_text;
  std::optional<SearchTrace> trace;
  if (body_.trace) {
    TraceHeader header =
        trace_header(service_.engine, describe(strategy), body_.seed, body_.prompt_text);
    trace.emplace(trace_text, header.with("request", dump(body_.asked)));
  }
  strategy.on_event = [&](const SearchEvent& told) {
    if (trace) trace->on(told);
    if (!body_.stream) return;
    auto [type, data] = event_of(told);
    tell(type, std::move(data));
  };
  Branch root = session.prefill(
      std::span<const Token>(body_.prompt),
      {.salt = service_.salt_of(caller_, body_.cache_salt), .cancel = cancel_.get_token()});
  Outcome out;
  out.cached = root.stats().prompt_shared;
  root.set_priority(body_.priority);
  if (body_.constraint) root.constrain(*body_.constraint);
  const SearchResult found = dendrite::run(session, std::move(root), strategy);
  if (trace) trace->finish(found);

  const auto text_of = [](const Branch& branch, const std::string& thought) {
    return kWholeAnswers<Strategy> ? thought : branch.text();
  };
  Json& result = out.result;
  out.finish = name_of(found.finish);
  result["solved"] = found.solved;
  result["finish"] = out.finish;
  result["text"] = found.branch.valid() && !found.path.empty()
                       ? Json(text_of(found.branch, found.path.back().text))
                       : Json();
  result["path"] = Json::array();
  for (const ThoughtRecord& step : found.path) {
    result["path"].push_back(static_cast<std::int64_t>(step.node));
  }
  result["nodes"] = Json::array();
  for (const ThoughtRecord& thought : found.tree) {
    result["nodes"].push_back(whole_node(thought));
    out.output += thought.tokens;
  }
  result["others"] = Json::array();
  for (const Thought& other : found.others) {
    result["others"].push_back({{"node", static_cast<std::int64_t>(other.node)},
                                {"text", text_of(other.branch, other.text)},
                                {"value", number(other.value)}});
  }
  result["votes"] = Json::array();
  for (const Vote& vote : found.votes) {
    result["votes"].push_back({{"answer", vote.answer}, {"count", vote.count}});
  }
  if (trace) result["trace"] = trace_text.str();
  const std::int64_t prompt = std::ssize(body_.prompt);
  result["usage"] = {{"input_tokens", prompt},
                     {"input_tokens_details", {{"cached_tokens", out.cached}}},
                     {"output_tokens", out.output},
                     {"total_tokens", prompt + out.output},
                     {"dendrite", {{"computed", session.stats().tokens_computed}}}};
  return out;
}

Json Search::object(const char* status) const {
  return {{"id", id_},
          {"object", "search"},
          {"status", status},
          {"model", body_.model},
          {"system_fingerprint", service_.fingerprint},
          {"strategy", body_.asked},
          {"seed", body_.seed}};
}

void Search::begin() {
  if (!body_.stream) return;
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    begun_ = true;
    reply_.begin();
  }
  tell("search.created", {{"search", object("in_progress")}});
}

void Search::tell(const char* type, Json data) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  Json out = {{"type", type}, {"sequence_number", sequence_++}};
  out.update(data);
  reply_.write(event(out, type));
}

void Search::finish(Outcome outcome) {
  Json whole = object(outcome.finish == "stop" ? "completed" : "incomplete");
  whole.update(outcome.result);
  reply_.account([&](Account& account) {
    account.made = id_;
    account.prompt_tokens = std::ssize(body_.prompt);
    account.cached_tokens = outcome.cached;
    account.output_tokens = outcome.output;
    account.finish = {outcome.finish};
  });
  if (body_.stream) tell("search.completed", {{"search", whole}});
  service_.http.post([self = shared_from_this(), cached = outcome.cached, output = outcome.output,
                      finish = outcome.finish] {
    Metrics& metrics = self->service_.metrics;
    metrics.prompt_tokens += std::ssize(self->body_.prompt);
    metrics.cached_tokens += cached;
    metrics.generated_tokens += output;
    ++metrics.ended[finish];
  });
  const std::lock_guard lock(mutex_);
  if (std::exchange(over_, true)) return;
  if (body_.stream) {
    reply_.end();
  } else {
    reply_.send({.body = dump(whole)});
  }
}

/// Ends the search, too, where it runs.
void Search::fail(const Fault& fault) {
  cancel_.request_stop();
  {
    const std::lock_guard lock(mutex_);
    reply_.account([&](Account& account) { account.error = name_of_error(fault); });
    if (!over_ && begun_) {
      reply_.write(event({{"type", "search.failed"},
                          {"sequence_number", sequence_++},
                          {"error", Json::parse(error_json(fault))["error"]}},
                         "search.failed"));
      reply_.end();
    } else if (!over_) {
      reply_.send(openai_error(fault));
    }
    over_ = true;
  }
  if (!started_) {
    service_.http.post([self = shared_from_this()] { self->let_go(); });
  }
}

void Search::let_go() {
  if (has_place_.exchange(false)) --threads_.taken;
  admission_.leave(shared_from_this());
}

}  // namespace

std::shared_ptr<void> add_search_routes(Service& service) {
  auto threads = std::make_shared<SearchThreads>();
  service.route(
      "POST", "/v1/searches", [&service, &all = *threads](Request request, const Reply& reply) {
        with_body(service, std::move(request), reply, openai_form,
                  [&service, &all](const Request& head, const Json& body, const Reply& out) {
                    std::make_shared<Search>(service, all, service.caller(head), out)->start(body);
                  });
      });
  return threads;
}

}  // namespace dendrite::server
