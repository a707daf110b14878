#include <algorithm>

#include "dendrite/error.h"
#include "server/admission.h"
#include "server/branches.h"
#include "server/chat_request.h"
#include "server/completion.h"
#include "server/openai.h"
#include "server/read.h"
#include "server/turn_log.h"
#include "server/turns.h"

// /v1/branches: branches that clients fork, rewind, append to, decode and score.
namespace dendrite::server {
namespace {

constexpr std::size_t kMostContinuations = 1000;
constexpr std::int64_t kMostHold = std::int64_t{24} * 3600 * 1000;
constexpr const char* kHasSalt = "a branch has that of its prompt";

Json branch_json(const BranchStore::Held& held) {
  Json out = {{"id", held.id},
              {"object", "branch"},
              {"parent", held.parent.empty() ? Json() : Json(held.parent)},
              {"status", held.busy ? "decoding" : "idle"},
              {"shared", held.shared}};
  if (!held.branch.valid()) return out;
  out["length"] = held.branch.length();
  out["prompt_length"] = held.branch.prompt_length();
  out["text"] = held.branch.text();
  out["logprob"] = held.branch.logprob();
  return out;
}

Json list_of(Branches& all, const std::vector<std::string>& ids, std::uint64_t key) {
  Json data = Json::array();
  for (const std::string& id : ids) {
    all.store.use(id, key,
                  [&](const BranchStore::Held& held) { data.push_back(branch_json(held)); });
  }
  return {{"object", "list"}, {"data", data}};
}

void send(const Reply& reply, const Json& value) {
  reply.send({.body = dump(value)});
}

/// What new branches are told: how long their pages are kept, who gives way, and whose effects they
/// go on from.
struct Standing {
  std::optional<std::int64_t> hold_ms;
  int priority = 0;
  std::string effects_of{};

  static Standing read(Fields& body) {
    Standing out;
    out.hold_ms = body.integer("hold_ms", 1, kMostHold);
    if (const auto priority = body.integer("priority", -1'000'000, 1'000'000)) {
      out.priority = static_cast<int>(-*priority);
    }
    return out;
  }
  void apply(Branch& branch) const {
    branch.set_priority(priority);
    if (hold_ms) branch.hold(std::chrono::milliseconds(*hold_ms));
  }
};

/// Makes them go on from the effects of the branch with this id; empty: from none.
void follow(Branches& all, const std::string& id, std::uint64_t key, std::span<const Branch> made) {
  if (id.empty()) return;
  KeyEffects& effects = all.effects.of(key, all.service.turns.session({key}));
  all.store.use(id, key, [&](const BranchStore::Held& from) {
    if (from.busy) throw branch_is_busy(id);
    for (const Branch& branch : made) effects.follow(branch, from.branch);
  });
}

/// New branches get ids, and are told of.
void answer_with(Branches& all, std::uint64_t key, const std::string& parent, std::int64_t shared,
                 std::vector<Branch> made, const Standing& standing, const Reply& reply) {
  for (Branch& branch : made) standing.apply(branch);
  follow(all, standing.effects_of, key, made);
  const Json list = list_of(all, all.store.add(key, parent, shared, std::move(made)), key);
  all.acknowledge(key, reply, {.body = dump(list)});
}

/// A prompt that becomes branches.
class NewBranches final : public TurnSink {
 public:
  NewBranches(std::shared_ptr<Branches> all, Caller caller, Standing standing, Reply reply)
      : all_(std::move(all)),
        caller_(caller),
        standing_(std::move(standing)),
        reply_(std::move(reply)) {}

  void admitted(const TurnHead&) override {}
  void begin(const TurnUsage&) override {}
  void piece(std::size_t, const TurnPiece&) override {}
  void end(std::size_t, const TurnEnd&) override {}
  void keep(std::size_t, Branch branch) override { branches_.push_back(std::move(branch)); }
  void done(const TurnUsage& usage) override {
    try {
      answer_with(*all_, caller_.key, "", usage.cached, std::move(branches_), standing_, reply_);
    } catch (const Fault& fault) {
      reply_.send(openai_error(fault));
    }
  }
  void fault(const Fault& fault) override { reply_.send(openai_error(fault)); }

 private:
  std::shared_ptr<Branches> all_;
  Caller caller_;
  Standing standing_;
  Reply reply_;
  std::vector<Branch> branches_;
};

/// Forks of one that is held, at its newest token or in its past; also while it is being decoded.
void fork(const std::shared_ptr<Branches>& all, const std::string& id, std::uint64_t key,
          Fields& fields, const Reply& reply) {
  const auto n = fields.integer("n", 1, all->service.options.max_n).value_or(1);
  const auto at = fields.integer("at", 1, INT32_MAX);
  const Standing standing = Standing::read(fields);
  tell_rest(reply, fields);
  std::vector<Branch> forks;
  all->store.use(id, key, [&](BranchStore::Held& held) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (!held.busy) {
        forks.push_back(at ? held.branch.at(*at) : held.branch.fork());
      } else if (Branch fork = held.turn.fork(0, at); fork.valid()) {
        forks.push_back(std::move(fork));
      } else {
        throw branch_is_busy(id);
      }
    }
  });
  const std::int64_t shared = forks.front().length();
  answer_with(*all, key, id, shared, std::move(forks), standing, reply);
}

/// Branches at a response's end or, while it is written, at its newest token.
void fork_response(const std::shared_ptr<Branches>& all, const std::string& id, Caller caller,
                   Fields& fields, Standing standing, const Reply& reply) {
  const auto n = fields.integer("n", 1, all->service.options.max_n).value_or(1);
  const auto at = fields.integer("at", 1, INT32_MAX);
  fields.refuse("cache_salt", kHasSalt);
  tell_rest(reply, fields);
  all->service.http.post([all, id, caller, n, at, standing = std::move(standing), reply] {
    try {
      Branch branch = all->service.response_branch(id, caller);
      const std::int64_t length = at.value_or(branch.length());
      if (length > branch.length()) {
        throw bad_request("at", "got " + std::to_string(length) + "; it has " +
                                    std::to_string(branch.length()) + " tokens by now");
      }
      std::vector<Branch> forks;
      for (std::int64_t i = 0; i < n; ++i) forks.push_back(branch.at(length));
      answer_with(*all, caller.key, id, length, std::move(forks), standing, reply);
    } catch (const Fault& fault) {
      reply.send(openai_error(fault));
    }
  });
}

void create(const std::shared_ptr<Branches>& all, const Request& request, const Json& body,
            const Reply& reply) {
  Service& service = all->service;
  const Caller caller = service.caller(request);
  Fields fields(body, "");
  service.model_name(fields.text("model").value_or(""));
  if (const auto id = fields.text("branch_id", 256)) {
    fields.refuse("effects_of", "a fork has the effects of its branch");
    fields.refuse("cache_salt", kHasSalt);
    return fork(all, *id, caller.key, fields, reply);
  }
  Standing standing = Standing::read(fields);
  standing.effects_of = fields.text("effects_of", 256).value_or("");
  follow(*all, standing.effects_of, caller.key, {});
  if (const auto id = fields.text("response_id", 256)) {
    return fork_response(all, *id, caller, fields, std::move(standing), reply);
  }
  TurnRequest turn;
  const Json* messages = fields.find("messages");
  const Json* prompt = fields.find("prompt");
  if ((messages == nullptr) == (prompt == nullptr)) {
    throw bad_request("prompt", "expected one of prompt, messages, response_id and branch_id");
  }
  if (messages != nullptr) {
    turn.messages_json = dump(read_messages(*messages, "messages"));
  } else if (prompt->is_string()) {
    turn.text = prompt->get<std::string>();
  } else {
    turn.ids = read_ids(*prompt, "prompt", service.engine.info().vocab);
  }
  turn.n = static_cast<int>(fields.integer("n", 1, service.options.max_n).value_or(1));
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) {
    turn.seed = static_cast<std::uint64_t>(*seed);
  }
  turn.cache_salt = read_cache_salt(fields);
  turn.max_tokens = 0;
  turn.keep = true;
  tell_rest(reply, fields);
  const Turn started = service.turns.start(
      std::move(turn), caller,
      accounted(reply, std::make_shared<NewBranches>(all, caller, std::move(standing), reply)));
  reply.on_gone([started] { started.cancel(); });
}

void append(const std::shared_ptr<Branches>& all, const Request& request, const Json& body,
            const Reply& reply) {
  Fields fields(body, "");
  const auto text = fields.text("text", std::size_t{32} << 20);
  const Json* tokens = fields.array("tokens", 1 << 20);
  if (text.has_value() == (tokens != nullptr)) {
    throw bad_request("text", "expected one of text and tokens");
  }
  tell_rest(reply, fields);
  const std::uint64_t key = all->service.caller(request).key;
  Json changed;
  all->store.use(request.ids[0], key, [&](BranchStore::Held& held) {
    if (held.busy) throw branch_is_busy(held.id);
    const std::vector<Token> added =
        text ? held.branch.encode(*text)
             : read_ids(*tokens, "tokens", all->service.engine.info().vocab);
    const std::int64_t length = held.branch.length() + std::ssize(added);
    if (length > all->service.context_length()) {
      throw bad_request(text ? "text" : "tokens",
                        "the branch would have " + std::to_string(length) +
                            " tokens; this model's maximum context length is " +
                            std::to_string(all->service.context_length()),
                        "context_length_exceeded");
    }
    held.branch.append(added);
    changed = branch_json(held);
  });
  all->acknowledge(key, reply, {.body = dump(changed)});
}

void hold(const std::shared_ptr<Branches>& all, const Request& request, const Json& body,
          const Reply& reply) {
  Fields fields(body, "");
  const auto time = fields.integer("hold_ms", 0, kMostHold);
  if (!time) throw bad_request("hold_ms", "it is missing");
  tell_rest(reply, fields);
  all->store.use(request.ids[0], all->service.caller(request).key, [&](BranchStore::Held& held) {
    if (held.busy) throw branch_is_busy(held.id);
    if (*time == 0) {
      held.branch.release();
    } else {
      held.branch.hold(std::chrono::milliseconds(*time));
    }
    send(reply, branch_json(held));
  });
}

/// Goes on with the branch itself, which has the new tokens afterwards; as /v1/completions answers.
void decode(const std::shared_ptr<Branches>& all, const Request& request, const Json& body,
            const Reply& reply) {
  Fields fields(body, "");
  CompletionBody out;
  TurnRequest turn;
  read_completion(fields, all->service, out, turn);
  fields.refuse("prompt", "please append it first");
  fields.refuse("cache_salt", kHasSalt);
  if (out.n != 1) throw bad_request("n", "a branch goes on once; please fork it first");
  if (out.echo) throw bad_request("echo", "it is not supported here", "unsupported_parameter");
  fields.rest(out.ignored);
  turn.keep = true;
  const std::string id = request.ids[0];
  const Caller caller = all->service.caller(request);
  all->store.use(id, caller.key, [&](BranchStore::Held& held) {
    if (held.busy) throw branch_is_busy(id);
    if (turn.priority == 0) turn.priority = held.branch.priority();
    held.busy = true;
    if (all->saves) held.before = held.branch.fork({.stream = held.branch.stream()});
    turn.branch = std::move(held.branch);
  });
  out.seed = turn.seed;
  out.turns.push_back(std::move(turn));
  std::function<void(BranchSaves::Told)> when_safe;
  if (all->saves) {
    when_safe = [all, caller](BranchSaves::Told told) {
      all->saves->after_save(caller.key, std::move(told));
    };
  }
  complete(all->service, caller, std::move(out), reply,
           {.kept = [all, id](Branch branch) { all->store.give_back(id, std::move(branch)); },
            .started =
                [all, id, caller](const Turn& started) {
                  try {
                    all->store.use(id, caller.key,
                                   [&](BranchStore::Held& held) { held.turn = started; });
                  } catch (const Fault&) {  // removed meanwhile
                    started.cancel();
                  }
                },
            .when_safe = std::move(when_safe)});
}

/// Log-probs of continuations, of which the branch keeps nothing.
class BranchScore final : public Admitted, public std::enable_shared_from_this<BranchScore> {
 public:
  BranchScore(Service& service, Caller caller, Reply reply, Branch branch,
              std::vector<std::vector<Token>> continuations)
      : service_(service),
        admission_(static_cast<EngineTurns&>(service.turns).admission()),
        caller_(caller),
        reply_(std::move(reply)),
        continuations_(std::move(continuations)),
        branch_(std::move(branch)) {}

  int choices() const override { return 1; }
  int priority() const override { return 0; }
  Caller caller() const override { return caller_; }
  void run() override {
    service_.http.post([self = shared_from_this()] {
      self->reply_.on_gone([self] { self->let_go(); });
      self->scores_ = self->service_.turns.session(self->caller_)
                          .submit_score_tokens(std::span(&self->branch_, 1), self->continuations_);
      self->scores_.on_done([self] { self->service_.http.post([self] { self->answer(); }); });
    });
  }
  void fail(const Fault& fault) override {
    reply_.send(openai_error(fault));
    service_.http.post([self = shared_from_this()] { self->let_go(); });
  }

 private:
  void answer() {
    if (!scores_.valid()) return;
    Json data = Json::array();
    try {
      const std::vector<Score> scores = scores_.get().front();
      for (std::size_t i = 0; i < scores.size(); ++i) {
        if (scores[i].tokens.empty()) {
          return fail(unavailable("server_overloaded", "there is no memory for the scores now"));
        }
        Json tokens = Json::array();
        for (const float logprob : scores[i].tokens) tokens.push_back(logprob_number(logprob));
        data.push_back({{"index", i},
                        {"logprob", std::isfinite(scores[i].logprob) ? scores[i].logprob : -9999.0},
                        {"token_logprobs", std::move(tokens)},
                        {"greedy", scores[i].greedy}});
      }
    } catch (const std::exception& error) {
      return fail({500, "server_error", "", "", error.what()});
    }
    send(reply_, {{"object", "list"}, {"data", std::move(data)}});
    let_go();
  }
  void let_go() {
    admission_.leave(shared_from_this());
    scores_ = {};
    branch_ = {};
  }

  Service& service_;
  Admission& admission_;
  Caller caller_;
  Reply reply_;
  std::vector<std::vector<Token>> continuations_;
  Branch branch_;
  PendingScore scores_;
};

void score(const std::shared_ptr<Branches>& all, const Request& request, const Json& body,
           const Reply& reply) {
  Fields fields(body, "");
  const Json* given = fields.array("continuations", kMostContinuations);
  if (given == nullptr || given->empty())
    throw bad_request("continuations", "expected one at least");
  tell_rest(reply, fields);
  const Caller caller = all->service.caller(request);
  Branch branch;
  std::vector<std::vector<Token>> continuations;
  all->store.use(request.ids[0], caller.key, [&](BranchStore::Held& held) {
    if (held.busy) throw branch_is_busy(held.id);
    for (std::size_t i = 0; i < given->size(); ++i) {
      const Json& each = (*given)[i];
      const std::string path = at_index("continuations", i);
      if (!each.is_string() && !each.is_array()) {
        throw wrong_type(path, each, "a text or an array of tokens");
      }
      continuations.push_back(each.is_string()
                                  ? held.branch.encode(each.get<std::string>())
                                  : read_ids(each, path, all->service.engine.info().vocab));
      if (continuations.back().empty()) throw bad_request(path, "it has no tokens");
    }
    // (By a stream of its own: what the branch's forks draw does not depend on it.)
    branch = held.branch.fork({.stream = held.branch.stream()});
  });
  auto run = std::make_shared<BranchScore>(all->service, caller, reply, std::move(branch),
                                           std::move(continuations));
  if (static_cast<EngineTurns&>(all->service.turns).admission().enter(run)) run->run();
}

}  // namespace

Branches::Branches(Service& of)
    : service(of), effects(of.http, !of.options.response_store.empty()) {
  if (!of.options.response_store.empty()) {
    saves = std::make_unique<BranchSaves>(*this, of.options.response_store);
  }
}

void Branches::acknowledge(std::uint64_t key, const Reply& reply, Answer answer,
                           bool changed) const {
  if (!saves) return reply.send(std::move(answer));
  saves->after_save(
      key,
      [reply, answer = std::move(answer)](const std::optional<Fault>& fault) {
        reply.send(fault ? openai_error(*fault) : answer);
      },
      changed);
}

std::function<void()> add_branch_routes(Service& service) {
  const auto all = std::make_shared<Branches>(service);
  service.http.every(std::chrono::minutes(1), [all] { all->store.sweep(); });
  service.holders.push_back([all](const std::string& id, Caller caller) {
    return all->store.has(id, caller.key) || all->effects.has(id, caller.key);
  });
  add_effect_routes(all);
  const auto post = [&service, all](const char* path, auto act) {
    service.route("POST", path, [&service, all, act](Request request, const Reply& reply) {
      with_body(service, std::move(request), reply, openai_form,
                [all, act](const Request& head, const Json& body, const Reply& out) {
                  act(all, head, body, out);
                });
    });
  };
  post("/v1/branches", create);
  post("/v1/branches/{}/append", append);
  post("/v1/branches/{}/hold", hold);
  post("/v1/branches/{}/decode", decode);
  post("/v1/branches/{}/score", score);
  post("/v1/branches/{}/fork", [](const std::shared_ptr<Branches>& held, const Request& request,
                                  const Json& body, const Reply& reply) {
    Fields fields(body, "");
    fork(held, request.ids[0], held->service.caller(request).key, fields, reply);
  });
  const auto answer = [all](const Reply& reply, const auto& act) {
    try {
      act();
    } catch (const Fault& fault) {
      reply.send(openai_error(fault));
    }
  };
  service.route(
      "GET", "/v1/branches/{}", [all, answer](const Request& request, const Reply& reply) {
        answer(reply, [&] {
          all->store.use(request.ids[0], all->service.caller(request).key,
                         [&](const BranchStore::Held& held) { send(reply, branch_json(held)); });
        });
      });
  service.route(
      "DELETE", "/v1/branches/{}", [all, answer](const Request& request, const Reply& reply) {
        answer(reply, [&] {
          const std::uint64_t key = all->service.caller(request).key;
          all->store.remove(request.ids[0], key);
          const Json gone = {{"id", request.ids[0]}, {"object", "branch"}, {"deleted", true}};
          all->acknowledge(key, reply, {.body = dump(gone)});
        });
      });
  return [all] {
    if (all->saves) all->saves->finish();
  };
}

}  // namespace dendrite::server
