// Any request to a whole server of a shipped model: the first line is a method and a path, the rest
// a body, where {response} and {branch} stand for one of each that is there. It is refused with a
// status of 4xx or answered, whole answers are JSON, events of streams too, and nothing is "the
// server failed".
#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dendrite/engine.h"
#include "fuzz.h"
#include "server/http_client.h"
#include "server/serve.h"

namespace {

using namespace dendrite::server;

/// For a whole answer; who has none by then goes, which ends the work.
constexpr milliseconds kWait{300};

class Served {
 public:
  std::uint16_t port() const { return server_.port(); }
  ~Served() {
    server_.stop();
    thread_.join();
  }

 private:
  static dendrite::Engine engine() {
    dendrite::EngineOptions options;
    options.threads = 1;
    options.kv_tokens = 16384;
    return dendrite::Engine::load(DENDRITE_MODELS_DIR "/dendrite-tools", options);
  }
  static ServerOptions options() {
    ServerOptions out;
    out.port = 0;
    out.max_model_len = 400;
    out.max_n = 4;
    out.max_running = 16;
    out.max_stored_responses = 32;
    out.shutdown_timeout = milliseconds(0);
    return out;
  }
  Server server_{std::vector<ServedModel>{{engine()}}, options()};
  std::thread thread_{[this] { server_.run(); }};
};

Got ask(std::uint16_t port, const std::string& method, const std::string& path,
        const std::string& body) {
  Client client(port);
  client.send(request_text(method, path, body));
  return client.answer();
}

void put(std::string& text, std::string_view what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
}

/// Makes what the text names, anew each time: requests before may have removed or changed it.
std::string whole(std::uint16_t port, std::string text) {
  const auto make = [&](std::string_view what, const std::string& path, const std::string& body) {
    if (text.find(what) == std::string::npos) return;
    const Json got = ask(port, "POST", path, body).json();
    fuzz_check(got.is_object(), "what is named can be made, or the server has many");
    const Json& made = got.contains("data") ? got["data"][0] : got;
    put(text, what, made.value("id", "none"));
  };
  make("{response}", "/v1/responses", R"({"input":"Timer 5 min","max_output_tokens":2})");
  make("{running}", "/v1/responses", R"({"input":"Timer","background":true,"ignore_eos":true})");
  make("{branch}", "/v1/branches", R"({"prompt":"Timer","hold_ms":100})");
  return text;
}

void check_answer(const std::string& answer) {
  static const std::set<std::string> kStatus = {"200", "204", "400", "401", "403",
                                                "404", "405", "409", "413", "415",
                                                "422", "429", "431", "503", "529"};
  const std::size_t end = answer.find("\r\n\r\n");
  if (end == std::string::npos) return;  // it was too slow, or the request was none
  fuzz_check(kStatus.contains(answer.substr(9, 3)), "the status is one of those that are told");
  fuzz_check(answer.find("the server failed") == std::string::npos, "nothing fails");
  const std::string head = answer.substr(0, end);
  const std::string body = answer.substr(end + 4);
  const std::size_t length = head.find("Content-Length: ");
  if (length != std::string::npos && head.find("application/json") != std::string::npos &&
      body.size() >= std::stoul(head.substr(length + 16))) {
    fuzz_check(Json::accept(body), "a whole answer is JSON");
  }
}

using Random = std::mt19937_64;

void collect(Json& value, std::vector<Json*>& out) {
  out.push_back(&value);
  if (!value.is_structured()) return;
  for (Json& each : value) collect(each, out);
}

/// One value of it by another, or gone.
void vary(Json& body, Random& random) {
  static const Json kValues = Json::parse(
      R"([null, true, false, 0, -1, 1, 2, 0.5, -1.5, 1e9, 9223372036854775807, 18446744073709551615,
          1e300, "", "x", "auto", "none", "{branch}", "{response}", "\u0000", [], {}, [[]], [0], ["x"],
          {"type": "text"}, {"type": "object", "properties": {"a": {"type": "string"}}}])");
  std::vector<Json*> all;
  collect(body, all);
  Json& value = *all[random() % all.size()];
  switch (random() % 4) {
    case 0:
      if (!value.empty() && value.is_structured()) {
        value.erase(std::next(value.begin(), static_cast<long>(random() % value.size())));
      }
      break;
    case 1: {
      Json other = *all[random() % all.size()];
      value = std::move(other);
      break;
    }
    default:
      value = kValues[random() % kValues.size()];
  }
}

void send(std::uint16_t port, const std::string& method, const std::string& path,
          const std::string& body) {
  Client client(port);
  client.send(request_text(method, path, body, "Connection: close\r\n"));
  const auto until = std::chrono::steady_clock::now() + kWait;
  std::string answer;
  for (std::string more = client.some(kWait); !more.empty(); more = client.some(kWait)) {
    answer += more;
    if (std::chrono::steady_clock::now() > until) break;
  }
  client.close();
  check_answer(answer);
  fuzz_check(ask(port, "GET", "/version", "").status == 200, "others are served");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Served server;
  const std::string input =
      whole(server.port(), std::string(reinterpret_cast<const char*>(data), size));
  const std::size_t line = std::min(input.find('\n'), input.size());
  std::string path = input.substr(0, line);
  const std::string body = input.substr(std::min(line + 1, input.size()));
  std::string method = "POST";
  for (const std::string other : {"GET", "DELETE", "POST"}) {
    if (!path.starts_with(other + " ")) continue;
    method = other;
    path.erase(0, other.size() + 1);
  }
  std::erase_if(path, [](char c) { return c <= ' ' || c >= 127; });
  send(server.port(), method, path, body);

  Json value = Json::parse(body, nullptr, false);
  if (!value.is_object()) return 0;
  Random random(std::hash<std::string_view>()({reinterpret_cast<const char*>(data), size}));
  for (int i = 0; i < 3; ++i) {
    vary(value, random);
    send(server.port(), method, path, whole(server.port(), dump(value)));
  }
  return 0;
}
