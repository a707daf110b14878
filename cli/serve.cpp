#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <sstream>

#include "common.h"
#include "server/serve.h"

namespace dendrite::cli {
namespace {

struct ServeFlags {
  CommonFlags common;
  server::ServerOptions options;
  std::vector<std::string> models;  // MODEL or NAME=MODEL
  std::vector<std::string> names;   // of the one model
  std::string api_key_file;
  std::int64_t shutdown_s = 30;
  int response_ttl_h = 24;
  std::int64_t keep_alive_s = 15;
  std::size_t body_mib = 32;
  bool log_requests = false;
};

/// A key a line; empty lines and those that begin with # are none.
void read_keys(const std::string& text, const std::string& where, std::vector<std::string>& keys) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    if (line.size() > 256) throw Error(where + ": a key is longer than 256 bytes");
    keys.push_back(line);
  }
  if (keys.empty()) throw Error(where + ": there is no key in it; expected one a line");
}

/// The model behind the name that it is to have, if it says one: what is there under all of it is
/// no name.
std::pair<std::string, std::string> name_and_model(const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == text.npos || at == 0 || std::filesystem::exists(text)) return {"", text};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::vector<server::ServedModel> load_models(ServeFlags& flags) {
  if (flags.models.size() > 1 && !flags.names.empty()) {
    throw Error("--served-model-name is one model's, and there are " +
                std::to_string(flags.models.size()) + "; expected --model NAME=MODEL");
  }
  std::vector<std::vector<std::string>> names;
  std::vector<std::string> models;
  for (const std::string& text : flags.models) {
    auto [name, model] = name_and_model(text);
    names.push_back(name.empty() ? flags.names : std::vector{name});
    models.push_back(std::move(model));
  }
  if (models.size() < 2) {
    if (!models.empty()) flags.common.model = models.front();
    return {{flags.common.load(), names.empty() ? flags.names : names.front()}};
  }
  std::vector<server::ServedModel> out;
  for (const Engine& engine : flags.common.load_all(models)) {
    out.push_back({engine, std::move(names[out.size()])});
  }
  return out;
}

int run(ServeFlags& flags) {
  server::ServerOptions& options = flags.options;
  if (!flags.api_key_file.empty()) {
    read_keys(read_file(flags.api_key_file), flags.api_key_file, options.api_keys);
  }
  if (const char* key = std::getenv("DENDRITE_API_KEY"); key != nullptr && *key != '\0') {
    read_keys(key, "DENDRITE_API_KEY", options.api_keys);
  }
  options.shutdown_timeout = std::chrono::seconds(flags.shutdown_s);
  options.response_ttl = std::chrono::hours(flags.response_ttl_h);
  options.http.keep_alive = std::chrono::seconds(flags.keep_alive_s);
  options.http.body_bytes = flags.body_mib << 20;
  options.beyond_positions = flags.common.engine.beyond_positions;
  if (flags.log_requests || options.log_content) options.request_log = STDERR_FILENO;
  server::serve(load_models(flags), options,
                [](const std::string& url) { std::cout << "listening on " << url << std::endl; });
  return 0;
}

void add_limits(CLI::App& command, ServeFlags& flags) {
  server::ServerOptions& options = flags.options;
  command
      .add_option("--max-model-len,--ctx-size", options.max_model_len,
                  "Tokens of a conversation, prompt and reply; 0: what fits")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  command
      .add_option("--max-num-seqs,--parallel", options.max_running,
                  "Answers that are made at a time; others wait")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      .add_option("--max-num-queued-reqs", options.max_queued,
                  "Requests that wait; more are refused")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--max-num-seqs-per-key", options.max_running_of_key,
                  "Answers of one key at a time; 0: no limit")
      ->check(CLI::Range(0, 65536));
  command.add_option("--max-n", options.max_n, "Choices of one request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--max-logprobs", options.max_logprobs, "Of one token")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_option("--max-body-mib", flags.body_mib, "Of a request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--sse-keep-alive-interval,--sse-ping-interval", flags.keep_alive_s,
                  "Seconds of a stream's silence, after which a comment is sent")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  command
      .add_option("--shutdown-timeout", flags.shutdown_s,
                  "Seconds that answers under way have after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& app, int& status) {
  auto flags = std::make_shared<ServeFlags>();
  server::ServerOptions& options = flags->options;
  CLI::App* command =
      app.add_subcommand("serve", "Serve the model over HTTP, to OpenAI's and Anthropic's clients");
  command
      ->add_option(
          "--model", flags->models,
          "Model folder, GGUF file, or an id in the local Hugging Face cache, perhaps with "
          "the name that requests use (repeatable; default: dendrite-24)")
      ->type_name("[NAME=]DIR_OR_ID");
  flags->common.add_engine_to(*command);
  CLI::Option* host =
      command->add_option("--host", options.host, "Address to listen on")->capture_default_str();
  CLI::Option* port = command->add_option("--port", options.port, "0: any")->capture_default_str();
  command
      ->add_option("--uds", options.uds,
                   "Listen at this path instead: a Unix socket, for this user alone")
      ->excludes(host)
      ->excludes(port);
  command->add_option("--served-model-name,--alias", flags->names,
                      "Names that requests may use (default: the folder's); of one model");
  command->add_option("--api-key-file", flags->api_key_file,
                      "A key a line, one of which a request needs; also DENDRITE_API_KEY");
  command->add_flag("--share-prefixes", options.share_prefixes,
                    "Keys find what was computed for others, which they may notice by time");
  command->add_flag("--allow-no-auth", options.allow_no_auth,
                    "Let everybody in who reaches the address");
  command->add_option("--allowed-host", options.allowed_hosts,
                      "Further names in the Host header, without keys (repeatable)");
  command->add_option("--allowed-origins", options.allowed_origins,
                      "Pages that browsers may ask from, such as https://example.org (repeatable)");
  command
      ->add_option("--reasoning-field", options.reasoning_field,
                   "What a chat's message calls thoughts")
      ->check(CLI::IsMember({"reasoning_content", "reasoning"}))
      ->capture_default_str();
  command->add_flag("--log-requests", flags->log_requests,
                    "A line of JSON on stderr for each request");
  command->add_flag("--log-content", options.log_content,
                    "The same, with what was asked and answered");
  command->add_option("--metrics-prefix", options.metrics_prefix, "Of the names at /metrics")
      ->capture_default_str();
  command->add_option("--response-store", options.response_store,
                      "A folder in which stored responses and branches survive the process");
  command
      ->add_option("--max-stored-responses", options.max_stored_responses,
                   "Beyond, the one goes that nobody asked for the longest")
      ->check(CLI::Range(std::size_t{1}, std::size_t{10'000'000}))
      ->capture_default_str();
  command
      ->add_option("--response-ttl", flags->response_ttl_h, "Hours that nobody asks for a response")
      ->check(CLI::Range(1, 24 * 365))
      ->capture_default_str();
  add_limits(*command, *flags);
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
