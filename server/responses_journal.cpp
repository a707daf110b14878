// Stored responses in the journal, and back.
#include <ctime>
#include <map>
#include <set>

#include "server/ids.h"
#include "server/openai.h"
#include "server/responses_run.h"

namespace dendrite::server {
namespace {

/// So many lines may be of responses that have gone, beside as many as there are others.
constexpr std::size_t kSpareLines = 1000;

/// What these and those that they went on from come to: the latter first, for they have to be
/// known.
std::vector<std::string> lines_of(const std::vector<ResponseStore::Pointer>& all) {
  std::set<std::string> live;
  for (const auto& each : all) live.insert(each->head.id);
  std::set<std::string> written;
  std::vector<std::string> lines;
  for (const auto& each : all) {
    std::vector<const StoredResponse*> chain;
    for (const StoredResponse* at = each.get(); at != nullptr; at = at->previous.get()) {
      if (!written.insert(at->head.id).second) break;
      chain.push_back(at);
    }
    for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
      lines.push_back(journal_put(**at));
      if (!live.contains((*at)->head.id)) lines.push_back(journal_delete((*at)->head.id));
    }
  }
  return lines;
}

}  // namespace

std::string journal_put(const StoredResponse& response) {
  return dump({{"put",
                {{"key", response.key_name},
                 {"previous", response.previous ? Json(response.previous->head.id) : Json()},
                 {"head", json_of(response.head)},
                 {"input", response.input},
                 {"script", response.script.text()},
                 {"end", json_of(*response.end)}}}});
}

std::string journal_delete(const std::string& id) {
  return dump({{"delete", id}});
}

void Responses::restore() {
  if (service.options.response_store.empty()) return;
  journal = std::make_unique<Journal>(service.options.response_store);
  std::map<std::string, std::uint64_t> keys;
  keys[""] = 0;
  for (std::uint64_t i = 1; i <= service.options.api_keys.size(); ++i)
    keys[service.key_name(i)] = i;
  // One that was deleted stays for those that went on from it.
  std::map<std::string, std::shared_ptr<StoredResponse>> known;
  std::set<std::string> deleted;
  std::vector<std::string> order;
  for (const std::string& line : journal->read()) {
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
    response->key_name = put.at("key").get<std::string>();
    const auto key = keys.find(response->key_name);
    response->key = key == keys.end() ? ~std::uint64_t{0} : key->second;  // nobody's
    if (put.at("previous").is_string()) {
      const auto previous = known.find(put["previous"].get<std::string>());
      if (previous == known.end()) continue;  // it could not be stored
      response->previous = previous->second;
    }
    response->input = put.at("input");
    response->script = Script(put.at("script").get<std::string>());
    response->end = end_of(put.at("end"));
    response->output = response->response()["output"];
    order.push_back(response->head.id);
    known[order.back()] = std::move(response);
  }
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const std::string& id : order) {
    if (deleted.contains(id)) continue;
    const std::chrono::seconds age(std::max<std::int64_t>(0, now - known[id]->end->time));
    store.put(known[id], ResponseStore::Clock::now() - age);
  }
  store.sweep();
  compact();
}

void Responses::compact() {
  if (!journal || journal->lines() < 2 * store.size() + kSpareLines || !journal->mark()) return;
  // None of these changes any more. What ends from here on is behind the mark.
  service.workers.run([this, all = store.all_ended()] { journal->replace(lines_of(all)); });
}

}  // namespace dendrite::server
