#include "server/gate.h"

#include <algorithm>
#include <array>

namespace dendrite::server {
namespace {

constexpr std::size_t kMostKeyBytes = 256;
using KeyBytes = std::array<unsigned char, kMostKeyBytes>;

KeyBytes padded(std::string_view key) {
  KeyBytes out{};
  std::copy_n(key.begin(), std::min(key.size(), kMostKeyBytes), out.begin());
  return out;
}

/// In a time that does not depend on where they differ.
bool is_same(std::string_view a, std::string_view b) {
  const KeyBytes left = padded(a);
  const KeyBytes right = padded(b);
  unsigned different = a.size() > kMostKeyBytes || b.size() > kMostKeyBytes ? 1 : 0;
  for (std::size_t i = 0; i < kMostKeyBytes; ++i) {
    different |= static_cast<unsigned>(left[i] ^ right[i]);
  }
  return different == 0 && a.size() == b.size();
}

std::string_view key_of(const Request& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view authorization = request.header("authorization");
  if (authorization.starts_with(kBearer)) return authorization.substr(kBearer.size());
  return request.header("x-api-key");
}

/// Which of the keys, from 1; 0: none. All are looked at.
std::uint64_t find_key(const std::vector<std::string>& keys, std::string_view key) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (is_same(keys[i], key)) found = i + 1;
  }
  return found;
}

/// Without a key: how the server is, what it takes, and the page, which asks for one.
bool is_open(const std::string& path) {
  return path == "/" || path == "/health" || path == "/ready" || path == "/ping" ||
         path == "/version" || path == "/openapi.json";
}

/// Of a Host header.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.find(']') + 1, host.size()));
  return host.substr(0, std::min(host.find(':'), host.size()));
}

void allow_origin(const Request& request, std::vector<Header>& extra) {
  extra.push_back({"Access-Control-Allow-Origin", std::string(request.header("origin"))});
  extra.push_back({"Access-Control-Expose-Headers", "x-request-id, x-dendrite-ignored"});
  extra.push_back({"Vary", "Origin"});
}

Answer preflight(const Request& request) {
  const std::string_view headers = request.header("access-control-request-headers");
  return {.status = 204,
          .headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                      {"Access-Control-Allow-Headers", std::string(headers)},
                      {"Access-Control-Max-Age", "600"}}};
}

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

Answer error_for(const Service& service, const Request& request, const Fault& fault) {
  for (const auto& [prefix, form] : service.error_forms) {
    if (request.path.starts_with(prefix)) return form(fault, request);
  }
  return openai_error(fault);
}

Caller Service::caller(const Request& request) const {
  return {find_key(options.api_keys, key_of(request))};
}

Gate make_gate(Service& service) {
  return [&service](const Request& request, std::vector<Header>& extra) -> std::optional<Answer> {
    const ServerOptions& options = service.options;
    const auto refused = [&](int status, std::string type, std::string code, std::string message) {
      return error_for(service, request,
                       {status, std::move(type), std::move(code), "", std::move(message)});
    };
    const std::string_view origin = request.header("origin");
    const bool is_known_origin =
        !origin.empty() &&
        std::ranges::find(options.allowed_origins, origin) != options.allowed_origins.end();
    if (is_known_origin) allow_origin(request, extra);
    if (options.api_keys.empty() && !options.allow_no_auth) {
      const std::string_view host = without_port(request.header("host"));
      const auto& allowed = options.allowed_hosts;
      if (!is_loopback(host) && std::ranges::find(allowed, host) == allowed.end()) {
        return refused(403, "invalid_request_error", "",
                       "the Host header is " + echoed(host) +
                           "; expected this machine, or one of --allowed-host");
      }
    }
    if (request.method == "OPTIONS") {
      if (is_known_origin) return preflight(request);
      return refused(403, "invalid_request_error", "",
                     "this origin is not one of --allowed-origin");
    }
    if (is_open(request.path)) return std::nullopt;
    if (!options.api_keys.empty() && service.caller(request).key == 0) {
      return refused(401, "invalid_request_error", "invalid_api_key",
                     "there is no key, or not one of this server's; expected one in the "
                     "Authorization header, behind Bearer");
    }
    if (service.draining) {
      return error_for(service, request,
                       unavailable("shutting_down", "the server is shutting down"));
    }
    return std::nullopt;
  };
}

}  // namespace dendrite::server
