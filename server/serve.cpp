#include "server/serve.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "dendrite/build.h"
#include "dendrite/error.h"
#include "dendrite/model_files.h"
#include "server/gate.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/turns.h"

namespace dendrite::server {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kHelpers = 2;
constexpr int kComposers = 4;
constexpr milliseconds kWatchTime{5000};
constexpr milliseconds kEndTime{2000};        // for what is on its way when all has to end
constexpr std::size_t kToldBytes = 64 << 10;  // of each body, where the log has them
/// Of a file of weights so much is read at its beginning and end, and of a smaller one all.
constexpr std::uint64_t kRead = std::uint64_t{8} << 20;

/// 64-bit FNV-1a, eight bytes at a time.
class Hash {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty()) {
      std::uint64_t word = 0;
      const std::size_t count = std::min<std::size_t>(8, bytes.size());
      std::memcpy(&word, bytes.data(), count);
      hash_ = (hash_ ^ word) * 0x100000001b3;
      hash_ ^= hash_ >> 32;
      bytes.remove_prefix(count);
    }
  }
  std::string hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[(hash_ >> shift) & 15];
    return out;
  }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

void add_file(Hash& hash, const fs::path& path) {
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return;
  hash.add(path.filename().string());
  hash.add(std::to_string(size));
  std::ifstream file(path, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(std::min(size, kRead)), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  hash.add(bytes);
  if (size <= kRead) return;
  file.seekg(static_cast<std::streamoff>(size - std::min(kRead, size - kRead)));
  bytes.assign(static_cast<std::size_t>(std::min(kRead, size - kRead)), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  hash.add(bytes);
}

/// Those of a model, in order: a folder's, or a GGUF file with the others that it was split into.
std::vector<fs::path> files_of(const fs::path& model) {
  std::error_code error;
  const bool is_folder = fs::is_directory(model, error);
  const std::string name = model.filename().string();
  const std::size_t number = name.find("-00001-of-");
  if (!is_folder && number == name.npos) return {model};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(is_folder ? model : model.parent_path(), error)) {
    if (!entry.is_regular_file()) continue;
    const std::string extension = entry.path().extension().string();
    const bool is_part = entry.path().filename().string().starts_with(name.substr(0, number + 1));
    if (is_folder ? extension == ".safetensors" || extension == ".json" || extension == ".jinja"
                  : extension == ".gguf" && is_part) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

/// Of what decides about a reply's bits: this library, the model's files, and the numerics.
std::string fingerprint_of(const EngineInfo& info) {
  Hash hash;
  hash.add(build_id());
  hash.add(info.numerics_key);
  hash.add(info.compute_dtype + info.kv_dtype + std::to_string(info.dummy_weights));
  for (const fs::path& path : files_of(info.model_path)) add_file(hash, path);
  return "fp_" + hash.hex();
}

bool says_sampling(const EngineInfo& info) {
  const std::string text = model_text(info.model_path, "generation_config.json").value_or("");
  const Json config = Json::parse(text, nullptr, false);
  return config.is_object() && (config.contains("do_sample") || config.contains("temperature"));
}

ServerOptions checked(ServerOptions options, const EngineInfo& info) {
  if (options.uds.empty() && options.api_keys.empty() && !options.allow_no_auth &&
      !is_loopback(options.host)) {
    throw Error("serve: --host is " + options.host +
                ", which others reach, and there is no key; expected --api-key-file, or "
                "--allow-no-auth to let everybody in");
  }
  if (options.model_names.empty()) {
    const fs::path folder(info.model_path);
    options.model_names.push_back(
        (folder.has_filename() ? folder : folder.parent_path()).filename().string());
  }
  return options;
}

HttpLimits limits_of(const ServerOptions& options) {
  HttpLimits out = options.http;
  if (options.log_content) out.told_bytes = kToldBytes;
  return out;
}

}  // namespace

class Server::Impl {
 public:
  Impl(const Engine& engine, ServerOptions options)
      : http_(limits_of(options),
              [this](const Request& request, int status, std::string_view code,
                     std::string_view message) {
                const char* type = status >= 500 ? "server_error" : "invalid_request_error";
                return error_for(service_, request,
                                 {status, type, std::string(code), "", std::string(message)});
              }),
        turns_(service_.options, metrics_),
        service_{.options = checked(std::move(options), engine.info()),
                 .engine = engine,
                 .model = ChatModel(engine),
                 .http = http_,
                 .workers = workers_,
                 .composers = composers_,
                 .turns = turns_,
                 .metrics = metrics_} {
    service_.model_says_sampling = says_sampling(engine.info());
    service_.fingerprint = fingerprint_of(engine.info());
    service_.created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    steps_told_ = service_.engine.on_event(
        mask_of(EventKind::kStep), [this](const Event& step) { metrics_.add_step(step.rows); });
    turns_.serve(service_);
    http_.gate(make_gate(service_));
    add_page_routes(service_);
    add_model_routes(service_);
    add_chat_routes(service_);
    add_completion_routes(service_);
    add_decision_routes(service_);
    searches_ = add_search_routes(service_);
    add_anthropic_routes(service_);
    add_responses_routes(service_);  // has the folder that branches are saved in
    save_branches_ = add_branch_routes(service_);
    if (service_.options.request_log >= 0) {
      log_ = std::make_unique<RequestLog>(service_.options.request_log);
      http_.on_exchanged(
          [this](const Exchanged& exchanged) { log_->add(log_line(service_, exchanged)); });
    }
    if (service_.options.uds.empty()) {
      http_.listen(service_.options.host, service_.options.port);
    } else {
      http_.listen_at(service_.options.uds);
    }
  }

  void run() {
    const EngineThread driver = service_.engine.start();
    http_.every(kWatchTime, [this] { watch(); });
    http_.every(milliseconds(20), [this] { drain(); });
    http_.run();
    save_branches_();
  }

  /// What runs may end; what waits hears at once that the server ends, and the rest at the end of
  /// its time.
  void stop() {
    http_.post([this] {
      if (service_.draining.exchange(true)) return;
      cut_at_ = std::chrono::steady_clock::now() + service_.options.shutdown_timeout;
      turns_.admission().refuse();
    });
  }

  std::uint16_t port() const { return http_.port(); }
  std::string url() const {
    if (!service_.options.uds.empty()) return "unix:" + service_.options.uds;
    const std::string& host = service_.options.host;
    return "http://" + (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" +
           std::to_string(port());
  }
  HttpServer& http() { return http_; }

 private:
  /// Connections end when no turn is left: what the engine has to say of one would find nobody.
  void drain() {
    if (!service_.draining || http_.stopping()) return;
    Admission& admission = turns_.admission();
    const auto now = std::chrono::steady_clock::now();
    if (now > cut_at_) admission.close();
    if (!admission.empty() && now < cut_at_ + kEndTime) return;
    admission.close();
    http_.stop(kEndTime);
  }

  /// Steps, also those of prompts alone, show that the engine is not stuck.
  void watch() {
    workers_.run([this] {
      const std::int64_t steps = service_.engine.stats().steps;
      if (steps != steps_.exchange(steps)) turns_.admission().progress();
    });
  }

  Metrics metrics_;
  EventSubscription steps_told_;
  std::unique_ptr<RequestLog> log_;
  HttpServer http_;
  EngineTurns turns_;
  Service service_;
  std::shared_ptr<void> searches_;
  std::function<void()> save_branches_;
  Workers workers_{kHelpers}, composers_{kComposers};
  std::atomic<std::int64_t> steps_ = 0;
  std::chrono::steady_clock::time_point cut_at_;
};

Server::Server(const Engine& engine, ServerOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {}
Server::~Server() = default;
std::uint16_t Server::port() const {
  return impl_->port();
}
std::string Server::url() const {
  return impl_->url();
}
void Server::run() {
  impl_->run();
}
void Server::stop() {
  impl_->stop();
}

void Server::on_signals(const std::vector<int>& signals) {
  impl_->http().on_signals(signals, [this] { impl_->stop(); });
}

void serve(const Engine& engine, ServerOptions options,
           const std::function<void(const std::string& url)>& listening) {
  Server server(engine, std::move(options));
  server.on_signals({SIGTERM, SIGINT});
  listening(server.url());
  server.run();
}

}  // namespace dendrite::server
