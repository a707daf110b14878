#include "server/service.h"

#include <algorithm>

#include "dendrite/error.h"
#include "server/ids.h"

namespace dendrite::server {
namespace {

bool is_json(std::string_view type) {
  constexpr std::string_view kJson = "application/json";
  if (type.size() < kJson.size()) return false;
  const bool same = std::equal(kJson.begin(), kJson.end(), type.begin(), [](char a, char b) {
    return a == (b >= 'A' && b <= 'Z' ? b + 32 : b);
  });
  return same &&
         (type.size() == kJson.size() || type[kJson.size()] == ';' || type[kJson.size()] == ' ');
}

Answer answer_for(const std::exception_ptr& error, const ErrorForm& form, const Request& request) {
  try {
    std::rethrow_exception(error);
  } catch (const Fault& fault) {
    return form(fault, request);
  } catch (const ConstraintError& refused) {
    return form(bad_request("", refused.what(), "invalid_schema"), request);
  } catch (const Error& refused) {
    return form(bad_request("", refused.what()), request);
  } catch (const std::exception&) {
    return form({500, "server_error", "", "", "the server failed to answer"}, request);
  }
}

}  // namespace

std::string Service::model_name(const std::string& asked) const {
  if (asked.empty()) return names().front();
  if (std::ranges::find(names(), asked) != names().end()) return asked;
  throw router.not_served(asked);
}

bool Service::has(const std::string& id, Caller caller) const {
  return std::ranges::any_of(holders, [&](const auto& has_it) { return has_it(id, caller); });
}

std::int64_t Service::context_length() const {
  const EngineInfo& info = engine.info();
  const std::int64_t fits =
      options.beyond_positions ? info.kv_tokens : std::min(info.max_positions, info.kv_tokens);
  return options.max_model_len > 0 ? std::min(options.max_model_len, fits) : fits;
}

std::string Service::key_name(std::uint64_t key) const {
  return key == 0 ? "" : std::to_string(hash_of(options.api_keys.at(key - 1)));
}

std::string Service::salt_of(Caller caller, const std::string& cache_salt) const {
  if (caller.key == 0 || options.share_prefixes) return cache_salt;
  return key_name(caller.key) + ":" + cache_salt;
}

void with_body(Service& service, Request request, Reply reply, ErrorForm form,
               std::function<void(const Request&, const Json& body, const Reply&)> read) {
  if (!is_json(request.header("content-type"))) {
    const Fault fault(415, "invalid_request_error", "", "",
                      "the body is of type " + echoed(request.header("content-type")) +
                          "; expected application/json");
    return reply.send(form(fault, request));
  }
  auto shared = std::make_shared<Request>(std::move(request));
  service.workers.run([shared, reply, form = std::move(form), read = std::move(read)] {
    try {
      read(*shared, parse_body(shared->body), reply);
    } catch (...) {
      reply.send(answer_for(std::current_exception(), form, *shared));
    }
  });
}

std::string name_of_error(const Fault& fault) {
  return fault.code.empty() ? fault.type : fault.code;
}

Answer openai_error(const Fault& fault) {
  Answer answer{.status = fault.status, .body = error_json(fault), .error = name_of_error(fault)};
  if (fault.status == 401) answer.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (fault.status == 429 || fault.status == 503) answer.headers.push_back({"Retry-After", "2"});
  if (!fault.retry) answer.headers.push_back({"x-should-retry", "false"});
  return answer;
}

std::uint64_t draw_seed() {
  return random_bits() >> 11;
}

std::string new_id(const std::string& prefix) {
  return prefix + random_hex(16);
}

}  // namespace dendrite::server
