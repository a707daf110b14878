#include "server/serve.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

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

constexpr int kLeastHelpers = 2;
constexpr int kMostHelpers = 8;
constexpr int kComposers = 4;
constexpr milliseconds kWatchTime{5000};
constexpr milliseconds kEndTime{2000};        // for what is on its way when all has to end
constexpr std::size_t kToldBytes = 64 << 10;  // of each body, where the log has them
/// Of a file of weights so much is read at its beginning and end, and of a smaller one all.
constexpr std::uint64_t kRead = std::uint64_t{8} << 20;

/// A quarter of the cores, on which the engine computes, too.
int helpers() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 4, kLeastHelpers, kMostHelpers);
}

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

void check(const ServerOptions& options) {
  if (options.uds.empty() && options.api_keys.empty() && !options.allow_no_auth &&
      !is_loopback(options.host)) {
    throw Error("serve: --host is " + options.host +
                ", which others reach, and there is no key; expected --api-key-file, or "
                "--allow-no-auth to let everybody in");
  }
}

/// Each gets a name, which no other one has.
std::vector<ServedModel> named(std::vector<ServedModel> models) {
  if (models.empty()) throw Error("serve: there is no model; expected one at least");
  std::set<std::string> names;
  for (ServedModel& model : models) {
    if (model.names.empty()) {
      const fs::path folder(model.engine.info().model_path);
      model.names.push_back(
          (folder.has_filename() ? folder : folder.parent_path()).filename().string());
    }
    for (const std::string& name : model.names) {
      if (!names.insert(name).second) {
        throw Error("serve: two models are called " + name +
                    "; expected each to have a name of its own (--model NAME=MODEL)");
      }
    }
  }
  return models;
}

/// A name as that of a file: letters, digits, "_", "-" and "." within stay, others become %XX.
std::string file_name(const std::string& name) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '_' || c == '-' ||
                          (c == '.' && !out.empty());
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

HttpLimits limits_of(const ServerOptions& options) {
  HttpLimits out = options.http;
  if (options.log_content) out.told_bytes = kToldBytes;
  return out;
}

/// A model, and what serves it.
class ServedByName {
 public:
  ServedByName(ServedModel model, std::size_t place, const ServerOptions& options, HttpServer& http,
               Router& router, Workers& workers, Workers& composers)
      : turns_(service_.options, metrics_),
        service_{.options = options,
                 .model_names = std::move(model.names),
                 .engine = model.engine,
                 .model = ChatModel(model.engine),
                 .http = http,
                 .router = router,
                 .place = place,
                 .workers = workers,
                 .composers = composers,
                 .turns = turns_,
                 .metrics = metrics_} {
    service_.model_says_sampling = says_sampling(model.engine.info());
    service_.fingerprint = fingerprint_of(model.engine.info());
    service_.created = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    steps_told_ = service_.engine.on_event(
        mask_of(EventKind::kStep), [this](const Event& step) { metrics_.add_step(step.rows); });
    turns_.serve(service_);
  }

  void add_routes() {
    add_token_routes(service_);
    add_chat_routes(service_);
    add_completion_routes(service_);
    add_decision_routes(service_);
    searches_ = add_search_routes(service_);
    add_anthropic_routes(service_);
    add_responses_routes(service_);  // has the folder that branches are saved in
    save_branches_ = add_branch_routes(service_);
  }

  Service& service() { return service_; }
  Admission& admission() { return turns_.admission(); }
  void start() { driver_ = service_.engine.start(); }
  void end() {
    save_branches_();
    driver_.stop();
  }
  /// Steps, also those of prompts alone, show that the engine is not stuck. In a helper.
  void watch() {
    const std::int64_t steps = service_.engine.stats().steps;
    if (steps != steps_.exchange(steps)) turns_.admission().progress();
  }

 private:
  Metrics metrics_;
  EventSubscription steps_told_;
  EngineTurns turns_;
  Service service_;
  std::shared_ptr<void> searches_;
  std::function<void()> save_branches_;
  std::atomic<std::int64_t> steps_ = 0;
  EngineThread driver_;
};

}  // namespace

class Server::Impl {
 public:
  Impl(std::vector<ServedModel> models, const ServerOptions& options)
      : options_(options),
        http_(limits_of(options),
              [this](const Request& request, int status, std::string_view code,
                     std::string_view message) {
                const char* type = status >= 500 ? "server_error" : "invalid_request_error";
                return error_for(first(), request,
                                 {status, type, std::string(code), "", std::string(message)});
              }),
        router_(http_, workers_) {
    check(options);
    models = named(std::move(models));
    const bool several = models.size() > 1;
    for (ServedModel& model : models) {
      ServerOptions its = options;
      if (several && !its.response_store.empty()) {
        const fs::path folder = fs::path(its.response_store) / file_name(model.names.front());
        fs::create_directories(folder);
        its.response_store = folder.string();
      }
      models_.push_back(std::make_unique<ServedByName>(std::move(model), models_.size(), its, http_,
                                                       router_, workers_, composers_));
      services_.push_back(&models_.back()->service());
    }
    std::vector<RoutedModel> routed;
    for (Service* service : services_) {
      routed.push_back({service->names(), [service](const std::string& id, const Request& request) {
                          return service->has(id, service->caller(request));
                        }});
    }
    router_.serve(std::move(routed), [this](const Request& request, const Fault& fault) {
      return error_for(first(), request, fault);
    });
    http_.gate(make_gate(first()));
    add_page_routes(http_);
    add_openapi_route(http_, options_);
    add_server_routes(services_);
    for (const auto& model : models_) model->add_routes();
    if (options_.request_log >= 0) {
      log_ = std::make_unique<RequestLog>(options_.request_log);
      http_.on_exchanged(
          [this](const Exchanged& exchanged) { log_->add(log_line(first(), exchanged)); });
    }
    if (options_.uds.empty()) {
      http_.listen(options_.host, options_.port);
    } else {
      http_.listen_at(options_.uds);
    }
  }

  void run() {
    for (const auto& model : models_) model->start();
    http_.every(kWatchTime, [this] {
      workers_.run([this] {
        for (const auto& model : models_) model->watch();
      });
    });
    http_.every(milliseconds(20), [this] { drain(); });
    http_.run();
    for (const auto& model : models_) model->end();
  }

  /// What runs may end; what waits hears at once that the server ends, and the rest at the end of
  /// its time.
  void stop() {
    http_.post([this] {
      if (std::exchange(draining_, true)) return;
      cut_at_ = std::chrono::steady_clock::now() + options_.shutdown_timeout;
      for (Service* service : services_) service->draining = true;
      for (const auto& model : models_) model->admission().refuse();
    });
  }

  std::uint16_t port() const { return http_.port(); }
  std::string url() const {
    if (!options_.uds.empty()) return "unix:" + options_.uds;
    const std::string& host = options_.host;
    return "http://" + (host.find(':') != std::string::npos ? "[" + host + "]" : host) + ":" +
           std::to_string(port());
  }
  HttpServer& http() { return http_; }

 private:
  Service& first() { return *services_.front(); }

  /// Connections end when no turn is left: what the engines have to say of one would find nobody.
  void drain() {
    if (!draining_ || http_.stopping()) return;
    const auto now = std::chrono::steady_clock::now();
    const auto close = [this] {
      for (const auto& model : models_) model->admission().close();
    };
    if (now > cut_at_) close();
    const bool is_empty =
        std::ranges::all_of(models_, [](const auto& model) { return model->admission().empty(); });
    if (!is_empty && now < cut_at_ + kEndTime) return;
    close();
    http_.stop(kEndTime);
  }

  const ServerOptions options_;
  std::unique_ptr<RequestLog> log_;
  HttpServer http_;
  Router router_;
  std::vector<std::unique_ptr<ServedByName>> models_;
  std::vector<Service*> services_;
  Workers workers_{helpers()}, composers_{kComposers};
  bool draining_ = false;  // in the I/O thread
  std::chrono::steady_clock::time_point cut_at_;
};

Server::Server(std::vector<ServedModel> models, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(models), options)) {}
Server::~Server() = default;
std::uint16_t Server::port() const {
  return impl_->port();
}
std::string Server::url() const {
  return impl_->url();
}
std::vector<std::pair<std::string, std::string>> Server::routes() const {
  return impl_->http().routes();
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

void serve(std::vector<ServedModel> models, const ServerOptions& options,
           const std::function<void(const std::string& url)>& listening) {
  Server server(std::move(models), options);
  server.on_signals({SIGTERM, SIGINT});
  listening(server.url());
  server.run();
}

}  // namespace dendrite::server
