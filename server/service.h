#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dendrite/chat.h"
#include "server/http.h"
#include "server/recent_branches.h"
#include "server/router.h"
#include "server/turn.h"
#include "server/workers.h"

// What all endpoints share.
namespace dendrite::server {

/// What `dendrite serve` was told.
struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;            ///< 0: any
  std::vector<std::string> api_keys{};  ///< none: no key is asked for
  bool allow_no_auth = false;           ///< without keys, also on other addresses than loopback
  bool share_prefixes = false;          ///< what was computed for one key, others find, too
  std::vector<std::string> allowed_hosts{};    ///< of the Host header, without keys
  std::vector<std::string> allowed_origins{};  ///< of browsers, exact
  std::int64_t max_model_len = 0;              ///< tokens of a conversation; 0: what fits
  bool beyond_positions = false;               ///< the engine's: the model's positions are no limit
  int max_running = 256;       ///< choices that are generated at a time; others wait
  int max_queued = 1024;       ///< requests that wait; beyond: 503
  int max_running_of_key = 0;  ///< choices of one key at a time, beyond: 429; 0: no limit
  int max_n = 128;
  int max_logprobs = 20;
  std::string reasoning_field = "reasoning_content";
  std::string metrics_prefix = "dendrite:";
  /// A folder; empty: stored responses end with the process. Of several models, each has one in it.
  std::string response_store{};
  std::size_t max_stored_responses = 10000;
  std::chrono::seconds response_ttl{24 * 3600};
  std::chrono::milliseconds shutdown_timeout{30'000};
  HttpLimits http{};
  int request_log = -1;      ///< a descriptor that gets a line for each request; -1: none
  bool log_content = false;  ///< with what was asked and answered
  std::string uds{};         ///< listens at this path instead of host and port
};

/// Who asks: a key, or everybody where there is none. Ids of one are not found by another.
struct Caller {
  std::uint64_t key = 0;  ///< which key, from 1; 0: there are none
};

class Turns;
struct Metrics;

/// The form of errors of one API.
using ErrorForm = std::function<Answer(const Fault&, const Request&)>;

/// One for each model and the life of the server; all of it may be used from any thread, unless
/// told otherwise.
struct Service {
  ServerOptions options;
  std::vector<std::string> model_names;
  Engine engine;
  ChatModel model;
  HttpServer& http;
  Router& router;
  std::size_t place;  ///< among the models, for the router
  Workers& workers;
  Workers& composers;  ///< for what waits for the engine: turns that compose
  Turns& turns;
  Metrics& metrics;  ///< in the I/O thread
  /// Of paths that begin so, for what is refused before their handlers: keys, limits. Others have
  /// OpenAI's. Before the server runs.
  std::vector<std::pair<std::string, ErrorForm>> error_forms{};
  /// generation_config.json says how to sample, where a request does not; else temperature is 1.
  bool model_says_sampling = false;
  std::string fingerprint{};  ///< system_fingerprint: of the version, the weights and the numerics
  std::int64_t created = 0;   ///< Unix time of the start
  std::atomic<bool> draining = false;
  /// A fork of a response's branch, at its newest token where it is being written; the responses'
  /// own. In the I/O thread. Throws Fault.
  std::function<Branch(const std::string& id, Caller caller)> response_branch{};
  /// Whether what has this id is the model's, and the caller's. Before the server runs each that
  /// gives ids adds its own.
  std::vector<std::function<bool(const std::string& id, Caller caller)>> holders{};
  RecentBranches recent{192};

  /// A route to this model's handler.
  void route(const std::string& method, const std::string& pattern, Handler handler) {
    router.route(place, method, pattern, std::move(handler));
  }
  bool has(const std::string& id, Caller caller) const;
  /// The names it is served by; the first is its own.
  const std::vector<std::string>& names() const { return model_names; }
  /// Throws Fault 404 model_not_found unless it is one of these; empty: the first.
  std::string model_name(const std::string& asked) const;
  /// Positions that a conversation may have, prompt and reply.
  std::int64_t context_length() const;
  /// Whose key a request has; that the gate has let it in is known.
  Caller caller(const Request& request) const;
  /// What a key is called in files, which outlive the order of keys; empty: of who has none.
  std::string key_name(std::uint64_t key) const;
  /// PrefillOptions::salt of a prompt: of whose it is, and of what its request says, which may be
  /// empty.
  std::string salt_of(Caller caller, const std::string& cache_salt) const;
};

/// Parses a body in a helper thread, calls `read` with it there, and turns what that throws, Faults
/// and others, into an answer by `form`. What is no application/json is refused: 415.
void with_body(Service& service, Request request, Reply reply, ErrorForm form,
               std::function<void(const Request&, const Json& body, const Reply&)> read);

/// Its code, or type where it has none: what a log may have, for messages echo what was asked.
std::string name_of_error(const Fault& fault);

/// OpenAI's form of an error.
Answer openai_error(const Fault& fault);

/// "chatcmpl-" and 32 hex digits, of 128 random bits.
std::string new_id(const std::string& prefix);

/// A seed for who gives none: whole in every client's JSON.
std::uint64_t draw_seed();

/// Starts turns and keeps to the limits.
class Turns {
 public:
  virtual ~Turns() = default;
  /// From any thread. Without a place among those that run it waits. All that is wrong with the
  /// request is a fault() of the sink.
  virtual Turn start(TurnRequest request, Caller caller, std::shared_ptr<TurnSink> sink) = 0;
  /// The session of a caller: for branches and scores. Lives as long as the server.
  virtual Session& session(Caller caller) = 0;
  /// Has it from a former process. Before the server runs.
  virtual void adopt(Caller caller, Session session) = 0;
  /// The tokens of a conversation as start() would compute them.
  virtual std::vector<Token> count(const TurnRequest& request) const = 0;
};

// Endpoint families add their routes.
void add_page_routes(HttpServer& http);
/// `options` outlive the server.
void add_openapi_route(HttpServer& http, const ServerOptions& options);
/// Of the server and all its models.
void add_server_routes(std::span<Service* const> models);
void add_chat_routes(Service& service);
void add_completion_routes(Service& service);
void add_decision_routes(Service& service);
/// Returns what is to be called when the server has ended, and `service` is still there.
[[nodiscard]] std::function<void()> add_branch_routes(Service& service);
/// Returns what has to go before `service` does, behind all that could start a search: its threads.
[[nodiscard]] std::shared_ptr<void> add_search_routes(Service& service);
void add_token_routes(Service& service);
void add_responses_routes(Service& service);
void add_anthropic_routes(Service& service);

}  // namespace dendrite::server
