#include "server/effects.h"

#include <algorithm>
#include <utility>

#include "server/ids.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostEvents = 4096;
constexpr std::size_t kMostOfPath = 1024;

Fault conflict(std::string code, std::string param, std::string message) {
  return {409, "invalid_request_error", std::move(code), std::move(param), std::move(message)};
}

Fault still_open(const Effect& effect, const std::string& name) {
  return conflict("effect_open", "key",
                  "the effect " + echoed(effect.key) + " (" + name + ") was begun at token " +
                      std::to_string(effect.length) +
                      " and has not ended: somebody is at it, or nobody knows what came of it; "
                      "expected its value at /v1/effects/" +
                      name + ", or DELETE where it was never done");
}

}  // namespace

void EffectLog::add(const char* type, Json effect) {
  {
    const std::lock_guard lock(mutex_);
    effect.erase("value");
    events_.push_back(
        {{"type", type}, {"sequence_number", ++last_}, {"effect", std::move(effect)}});
    if (events_.size() > kMostEvents) events_.pop_front();
    if (saved_) return;
    shown_ = last_;
  }
  wake();
}

void EffectLog::show(std::int64_t last) {
  {
    const std::lock_guard lock(mutex_);
    shown_ = std::max(shown_, last);
  }
  wake();
}

void EffectLog::wake() {
  http_.post([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->tell();
  });
}

bool EffectLog::holds_back() const {
  const std::lock_guard lock(mutex_);
  return shown_ < last_;
}

Json EffectLog::save(std::int64_t& last) const {
  const std::lock_guard lock(mutex_);
  last = last_;
  return {{"last", last_}, {"events", events_}};
}

void EffectLog::restore(const Json& saved) {
  const std::lock_guard lock(mutex_);
  last_ = shown_ = saved.at("last");
  for (const Json& each : saved.at("events")) events_.push_back(each);
}

std::vector<Json> EffectLog::behind(std::int64_t after) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t gone = last_ - std::ssize(events_);
  if (after < gone) {
    throw Fault(410, "invalid_request_error", "events_gone", "after",
                "the events up to " + std::to_string(gone) + " are no longer kept; got " +
                    std::to_string(after));
  }
  const std::int64_t shown = std::max<std::int64_t>(0, shown_ - gone);
  return {events_.begin() + std::min(after - gone, shown), events_.begin() + shown};
}

Json EffectLog::list(std::int64_t after) const {
  return {{"object", "list"}, {"data", behind(after)}};
}

void EffectLog::watch(const Reply& reply, std::int64_t after) {
  behind(after);  // what it throws is an answer
  reply.begin();
  watchers_.push_back({reply, after});
  tell();
}

void EffectLog::tell() {
  std::erase_if(watchers_, [](const Watcher& watcher) { return watcher.reply.gone(); });
  for (Watcher& watcher : watchers_) {
    std::string text;
    std::int64_t told = watcher.after;
    try {
      for (const Json& each : behind(watcher.after)) {
        text += event(each, each["type"].get<std::string>());
        told = each["sequence_number"];
      }
    } catch (const Fault& fault) {  // more at a time than are kept
      watcher.reply.write(event(Json::parse(error_json(fault)), "error"));
      watcher.reply.end();
      continue;
    }
    watcher.after = told;
    if (!text.empty()) watcher.reply.write(std::move(text));
  }
}

void EffectLog::end() {
  for (const Watcher& watcher : watchers_) watcher.reply.end();
  watchers_.clear();
}

KeyEffects::KeyEffects(HttpServer& http, const Session& session, bool saved)
    : prefix_("eff_" + random_hex(8) + "_"),
      log_(std::make_shared<EffectLog>(http, saved)),
      ledger_(session, hooks()) {}

KeyEffects::KeyEffects(HttpServer& http, const Session& session, const Json& saved,
                       ConstBranches branches)
    : prefix_(saved.at("prefix")),
      log_(std::make_shared<EffectLog>(http, true)),
      ledger_(session, saved.at("ledger").get<std::string>(), branches, hooks()),
      last_(saved.at("last")) {
  log_->restore(saved.at("log"));
  for (const Branch& branch : branches) {
    for (const Effect& effect : ledger_.path(branch)) {
      if (!effect.value) open_[effect.id] = effect;
    }
  }
}

Json KeyEffects::save(std::int64_t& last_event) {
  std::uint64_t last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  return {{"prefix", prefix_},
          {"last", last},
          {"log", log_->save(last_event)},
          {"ledger", ledger_.save()}};
}

LedgerHooks KeyEffects::hooks() {
  const auto add = [this, log = log_](const char* type) {
    return [this, log, type](const Effect& effect) { log->add(type, json_of(effect)); };
  };
  return {.on_commit = add("effect.committed"), .on_abort = add("effect.aborted")};
}

std::string KeyEffects::name(EffectId id) const {
  return prefix_ + std::to_string(static_cast<std::uint64_t>(id));
}

Json KeyEffects::json_of(const Effect& effect) const {
  const char* status = effect.committed ? "committed" : effect.value ? "ended" : "begun";
  return {{"id", name(effect.id)},
          {"object", "branch.effect"},
          {"parent", effect.parent == EffectId::kNone ? Json() : Json(name(effect.parent))},
          {"length", effect.length},
          {"key", effect.key},
          {"status", status},
          {"value", effect.value ? Json(*effect.value) : Json()}};
}

Json KeyEffects::begin(const Branch& branch, const std::string& key,
                       const std::optional<std::string>& value) {
  if (const auto known = ledger_.find(branch, key)) {
    if (!known->value) throw still_open(*known, name(known->id));
    Json out = json_of(*known);
    out["new"] = false;
    return out;
  }
  if (ledger_.path(branch).size() >= kMostOfPath) {
    throw Fault(429, "rate_limit_error", "rate_limit_exceeded", "key",
                "the branch has " + std::to_string(kMostOfPath) + " effects; no more are kept");
  }
  const EffectId id = ledger_.begin(branch, key);
  {
    const std::lock_guard lock(mutex_);
    last_ = std::max(last_, static_cast<std::uint64_t>(id));
    open_[id] = *ledger_.find(branch, key);
  }
  if (value) end(name(id), *value);
  Json out = json_of(*ledger_.find(branch, key));
  out["new"] = true;
  return out;
}

Json KeyEffects::path(const Branch& branch, const std::optional<std::string>& key) const {
  Json data = Json::array();
  for (const Effect& effect : ledger_.path(branch)) {
    if (!key || effect.key == *key) data.push_back(json_of(effect));
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

Json KeyEffects::commit(const Branch& branch) {
  for (const Effect& effect : ledger_.path(branch)) {
    if (!effect.value) throw still_open(effect, name(effect.id));
  }
  ledger_.commit(branch);
  return path(branch, std::nullopt);
}

/// One that was begun and has not ended; with the mutex.
EffectId KeyEffects::open(const std::string& id, const char* what) const {
  std::uint64_t number = 0;
  const std::string digits = id.starts_with(prefix_) ? id.substr(prefix_.size()) : "";
  if (!digits.empty() && digits.size() < 19 &&
      digits.find_first_not_of("0123456789") == std::string::npos) {
    number = std::stoull(digits);
  }
  if (number == 0 || number > last_) {
    throw not_found("there is no effect " + echoed(id), "effect_id");
  }
  const auto effect = static_cast<EffectId>(number);
  if (!open_.contains(effect)) {
    throw conflict("effect_ended", "effect_id",
                   "the effect " + echoed(id) + " has ended, and can't be " + what);
  }
  return effect;
}

Json KeyEffects::end(const std::string& id, const std::string& value) {
  Effect effect;
  {
    const std::lock_guard lock(mutex_);
    const EffectId number = open(id, "given another value");
    effect = std::move(open_.extract(number).mapped());
  }
  effect.value = value;
  ledger_.end(effect.id, value);
  return json_of(effect);
}

Json KeyEffects::forget(const std::string& id) {
  EffectId effect;
  {
    const std::lock_guard lock(mutex_);
    effect = open(id, "forgotten");
    open_.erase(effect);
  }
  ledger_.forget(effect);
  return {{"id", id}, {"object", "branch.effect"}, {"deleted", true}};
}

KeyEffects& Effects::of(std::uint64_t key, const Session& session) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<KeyEffects>& found = of_key_[key];
  if (!found) found = std::make_unique<KeyEffects>(http_, session, saved_);
  return *found;
}

KeyEffects* Effects::find(std::uint64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = of_key_.find(key);
  return found == of_key_.end() ? nullptr : found->second.get();
}

bool Effects::has(const std::string& id, std::uint64_t key) const {
  const KeyEffects* const effects = find(key);
  return effects != nullptr && effects->has(id);
}

void Effects::restore(std::uint64_t key, const Session& session, const Json& saved,
                      ConstBranches branches) {
  const std::lock_guard lock(mutex_);
  of_key_[key] = std::make_unique<KeyEffects>(http_, session, saved, branches);
}

std::map<std::uint64_t, KeyEffects*> Effects::all() const {
  const std::lock_guard lock(mutex_);
  std::map<std::uint64_t, KeyEffects*> out;
  for (const auto& [key, effects] : of_key_) out[key] = effects.get();
  return out;
}

std::vector<std::uint64_t> Effects::settle() {
  std::vector<std::uint64_t> held_back;
  for (const auto& [key, effects] : all()) {
    effects->settle();
    if (effects->log().holds_back()) held_back.push_back(key);
  }
  return held_back;
}

void Effects::end_streams() {
  for (const auto& [key, effects] : all()) effects->log().end();
}

}  // namespace dendrite::server
