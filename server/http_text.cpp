#include "server/http_text.h"

#include <array>
#include <utility>

namespace dendrite::server {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view reason_of(int status) {
  static constexpr std::array<std::pair<int, std::string_view>, 17> kReasons{{
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {503, "Service Unavailable"},
      {529, "Overloaded"},
  }};
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "Status";
}

/// A header's value as it may stand on one line.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  return out;
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit_of(text[i + 1]);
    const int low = digit_of(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> parts;
  while (!pattern.empty()) {
    if (pattern.starts_with("{}")) {
      const std::size_t end = std::min(path.find('/'), path.size());
      if (end == 0) return std::nullopt;
      parts.emplace_back(path.substr(0, end));
      path.remove_prefix(end);
      pattern.remove_prefix(2);
    } else {
      if (path.empty() || path.front() != pattern.front()) return std::nullopt;
      path.remove_prefix(1);
      pattern.remove_prefix(1);
    }
  }
  if (!path.empty()) return std::nullopt;
  return parts;
}

std::string answer_head(int status, std::string_view type, const std::vector<Header>& headers,
                        std::optional<std::size_t> length, bool chunked, bool keep_alive) {
  std::string out = "HTTP/1.1 " + std::to_string(status) + " ";
  out.append(reason_of(status)).append("\r\n");
  const auto add = [&](std::string_view name, std::string_view value) {
    out.append(name).append(": ").append(one_line(value)).append("\r\n");
  };
  if (!type.empty()) add("Content-Type", type);
  if (length) {
    if (status != 204) add("Content-Length", std::to_string(*length));
  } else if (chunked) {
    add("Transfer-Encoding", "chunked");
  }
  for (const Header& header : headers) add(header.name, header.value);
  if (!keep_alive) add("Connection", "close");
  return out + "\r\n";
}

std::string_view Request::header(std::string_view name) const {
  for (const Header& each : headers) {
    if (each.name == name) return each.value;
  }
  return {};
}

std::optional<std::string> Request::query_value(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (percent_decoded(pair.substr(0, equals)) == name) {
      return percent_decoded(pair.substr(std::min(equals + 1, pair.size())));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::nullopt;
}

}  // namespace dendrite::server
