#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// JSON from outside: bounded, checked before anything is built of it, read with paths that errors
// name.
namespace dendrite::server {

using Json = nlohmann::ordered_json;

/// Why a request gets no answer, in OpenAI's words; other APIs translate it.
struct Fault : std::exception {
  /// `message` is cut at 1 KiB. Of what came from outside put echoed() in.
  Fault(int status, std::string type, std::string code, std::string param, std::string message);

  int status;           ///< of HTTP
  std::string type;     ///< invalid_request_error, rate_limit_error, server_error
  std::string code;     ///< empty: null
  std::string param;    ///< the field, such as messages[3].content; empty: null
  std::string message;  ///< for people
  bool retry = true;    ///< false: a repeat can't help, which a 500 tells by x-should-retry

  const char* what() const noexcept override { return message.c_str(); }
};

/// 400, invalid_request_error. `code`: unsupported_parameter, unsupported_value, invalid_schema,
/// context_length_exceeded, ...; or empty.
Fault bad_request(std::string param, std::string message, std::string code = {});
/// 404 for an id that is not there (or is somebody else's), or a path.
Fault not_found(std::string message, std::string param = {}, std::string code = {});
/// 503 with code server_overloaded or shutting_down.
Fault unavailable(std::string code, std::string message);

/// In quotes, at most 200 characters of it, control characters escaped.
std::string echoed(std::string_view text);

/// {"error": {"message", "type", "param", "code"}}
std::string error_json(const Fault& fault);

struct JsonLimits {
  int depth = 64;
  std::size_t values = 1'000'000;
};
/// Throws Fault 400 (code invalid_json) for what is no JSON or no UTF-8, goes deeper or has more
/// values, or has a key twice in one object: before any of it is built.
Json parse_json(std::string_view text, const JsonLimits& limits = {});
/// The same of a request's body, which has to be an object.
Json parse_body(std::string_view text);

/// On one line, valid UTF-8 whatever is in it; U+0085, U+2028 and U+2029 are escaped, at which some
/// clients break lines.
std::string dump(const Json& value);
/// One event of a stream: "data: ...\n\n", with "event: name\n" before where there is a name.
std::string event(const Json& data, std::string_view name = {});

/// Which fields of a request nothing was done with, by path; for x-dendrite-ignored.
class Ignored {
 public:
  void add(std::string path);
  bool empty() const { return paths_.empty(); }
  /// Separated by ", ", at most 1 KiB, printable ASCII; names that are not are left out.
  std::string header() const;
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

/// Reads the members of an object. A member that is null counts as one that is not there. All throw
/// Fault 400 naming the path, what was got and what was expected. `object` must outlive it.
class Fields {
 public:
  /// `path`: empty for the body, else that of this object.
  Fields(const Json& object, std::string path);

  /// Unset: absent. Each marks the member as known.
  const Json* find(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most);
  /// Finite.
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<std::string> text(std::string_view name, std::size_t most_bytes = 1 << 20);
  const Json* array(std::string_view name, std::size_t most);
  const Json* object(std::string_view name);
  /// One of these words.
  std::optional<std::string> word(std::string_view name,
                                  const std::vector<std::string_view>& words);

  /// Known, and without effect.
  void accept(std::string_view name) { find(name); }
  /// 400 unsupported_parameter, where it is there and neither null, false, nor an empty array or
  /// object or text.
  void refuse(std::string_view name, std::string_view why);
  /// What was not asked for goes into `ignored`.
  void rest(Ignored& ignored) const;

  std::string path(std::string_view name) const;

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

/// `path` of element i: "messages[3]".
std::string at_index(std::string_view path, std::size_t i);
/// 400: "stop[2]: got 5; expected a text".
Fault wrong_type(std::string_view path, const Json& got, std::string_view expected);

}  // namespace dendrite::server
