#include "server/branches.h"
#include "server/openai.h"
#include "server/turns.h"

// What clients did outside, by HTTP: effects of branches, and what becomes of them.
namespace dendrite::server {
namespace {

constexpr std::size_t kMostKey = 4 << 10;
constexpr std::size_t kMostValue = 64 << 10;
constexpr std::chrono::milliseconds kSettleTime{250};

using All = std::shared_ptr<Branches>;

KeyEffects& effects_of(const All& all, Caller caller) {
  return all->effects.of(caller.key, all->service.turns.session(caller));
}

void send(const Reply& reply, const Json& value) {
  reply.send({.body = dump(value)});
}

/// What it returns for the effects of who asks, and the branch that the path names.
template <typename Act>
Json with_branch(const All& all, const Request& request, const Act& act) {
  const Caller caller = all->service.caller(request);
  KeyEffects& effects = effects_of(all, caller);
  Json out;
  all->store.use(request.ids[0], caller.key, [&](BranchStore::Held& held) {
    if (held.busy) throw branch_is_busy(held.id);
    out = act(effects, held.branch);
  });
  return out;
}

void begin(const All& all, const Request& request, const Json& body, const Reply& reply) {
  Fields fields(body, "");
  const auto key = fields.text("key", kMostKey);
  if (!key) throw bad_request("key", "it is missing");
  const auto value = fields.text("value", kMostValue);
  tell_rest(reply, fields);
  const Json effect = with_branch(all, request, [&](KeyEffects& effects, const Branch& branch) {
    return effects.begin(branch, *key, value);
  });
  const bool is_new = effect["new"] == true;
  all->acknowledge(all->service.caller(request).key, reply,
                   {.status = is_new ? 201 : 200, .body = dump(effect)}, is_new);
}

void commit(const All& all, const Request& request, const Json& body, const Reply& reply) {
  tell_rest(reply, Fields(body, ""));
  const Json path = with_branch(all, request, [&](KeyEffects& effects, const Branch& branch) {
    return effects.commit(branch);
  });
  all->acknowledge(all->service.caller(request).key, reply, {.body = dump(path)});
}

void end(const All& all, const Request& request, const Json& body, const Reply& reply) {
  Fields fields(body, "");
  const auto value = fields.text("value", kMostValue);
  if (!value) throw bad_request("value", "it is missing");
  tell_rest(reply, fields);
  const Caller caller = all->service.caller(request);
  const Json effect = effects_of(all, caller).end(request.ids[0], *value);
  all->acknowledge(caller.key, reply, {.body = dump(effect)});
}

void path(const All& all, const Request& request, const Reply& reply) {
  send(reply, with_branch(all, request, [&](const KeyEffects& effects, const Branch& branch) {
         return effects.path(branch, request.query_value("key"));
       }));
}

void forget(const All& all, const Request& request, const Reply& reply) {
  const Caller caller = all->service.caller(request);
  const Json gone = effects_of(all, caller).forget(request.ids[0]);
  all->acknowledge(caller.key, reply, {.body = dump(gone)});
}

void events(const All& all, const Request& request, const Reply& reply) {
  std::int64_t after = 0;
  if (const auto text = request.query_value("after")) {
    const bool is_number = !text->empty() && text->size() < 16 &&
                           text->find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) throw bad_request("after", "expected the number of an event, or 0");
    after = std::stoll(*text);
  }
  const auto stream = request.query_value("stream");
  EffectLog& log = effects_of(all, all->service.caller(request)).log();
  if (stream && *stream != "false" && *stream != "0") return log.watch(reply, after);
  send(reply, log.list(after));
}

}  // namespace

void add_effect_routes(const All& all) {
  Service& service = all->service;
  // Branches go in many ways, and hooks wait for a call of the ledger.
  service.http.every(kSettleTime, [all] {
    for (const std::uint64_t key : all->effects.settle()) {
      all->saves->after_save(key, [](const std::optional<Fault>&) {});
    }
    if (all->service.draining) all->effects.end_streams();
  });
  const auto post = [&](const char* pattern, auto act) {
    service.route("POST", pattern, [all, act](Request request, const Reply& reply) {
      with_body(all->service, std::move(request), reply, openai_form,
                [all, act](const Request& head, const Json& body, const Reply& out) {
                  act(all, head, body, out);
                });
    });
  };
  const auto route = [&](const char* method, const char* pattern, auto act) {
    service.route(method, pattern, [all, act](const Request& request, const Reply& reply) {
      try {
        act(all, request, reply);
      } catch (const Fault& fault) {
        reply.send(openai_error(fault));
      }
    });
  };
  post("/v1/branches/{}/effects", begin);
  post("/v1/branches/{}/commit", commit);
  post("/v1/effects/{}", end);
  route("GET", "/v1/branches/{}/effects", path);
  route("DELETE", "/v1/effects/{}", forget);
  route("GET", "/v1/effects/events", events);
}

}  // namespace dendrite::server
