#include "server/router.h"

#include <algorithm>
#include <array>
#include <optional>

namespace dendrite::server {
namespace {

/// Longer bodies are looked through by a helper.
constexpr std::size_t kShortBody = std::size_t{64} << 10;

/// Members of a body that name what is a model's own.
constexpr std::array<std::string_view, 4> kIds = {"branch_id", "response_id", "effects_of",
                                                  "previous_response_id"};

/// Reads texts among the members of the outermost object, and builds nothing.
class Looker : public nlohmann::json_sax<Json> {
 public:
  explicit Looker(std::vector<std::pair<std::string, std::string>>& found) : found_(found) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t& text) override {
    if (depth_ == 1 && is_asked_) found_.emplace_back(key_, text);
    return true;
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    is_asked_ = name == "model" || std::ranges::find(kIds, name) != kIds.end();
    if (is_asked_) key_ = name;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;  // whoever reads it all says so
  }

 private:
  bool open() {
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  std::vector<std::pair<std::string, std::string>>& found_;
  int depth_ = 0;
  bool is_asked_ = false;
  std::string key_;
};

}  // namespace

/// What a request says of whose it is.
struct Router::Asked {
  std::string model;
  std::vector<std::pair<std::string, std::string>> ids;  // what they are called, and they

  explicit Asked(const Request& request) {
    for (const std::string& id : request.ids) ids.emplace_back("", id);
    model = request.query_value("model").value_or("");
    if (request.body.empty()) return;
    std::vector<std::pair<std::string, std::string>> found;
    Looker looker(found);
    Json::sax_parse(request.body, &looker);
    for (auto& [name, text] : found) {
      if (name == "model") {
        model = text;
      } else {
        ids.emplace_back(name, text);
      }
    }
  }
};

void Router::route(std::size_t model, const std::string& method, const std::string& pattern,
                   Handler handler) {
  if (model > 0) {
    const auto known = std::ranges::find_if(routes_, [&](const auto& route) {
      return route->method == method && route->pattern == pattern;
    });
    (*known)->handlers.push_back(std::move(handler));
    return;
  }
  auto route = std::make_shared<Route>(Route{method, pattern, {std::move(handler)}});
  routes_.push_back(route);
  http_.route(method, pattern, [this, route](Request request, const Reply& reply) {
    if (route->handlers.size() == 1) {
      return route->handlers.front()(std::move(request), reply);
    }
    dispatch(*route, std::move(request), reply);
  });
}

Fault Router::not_served(const std::string& asked) const {
  std::string expected;
  for (const RoutedModel& model : models_) {
    expected += (expected.empty() ? "" : ", ") + echoed(model.names.front());
  }
  return not_found("the model " + echoed(asked) + " is not served here; expected " + expected,
                   "model", "model_not_found");
}

void Router::dispatch(const Route& route, Request request, const Reply& reply) {
  const auto act = [this, &route](const Asked& asked, Request whose, const Reply& to) {
    std::size_t model = 0;
    try {
      model = model_of(asked, whose);
    } catch (const Fault& fault) {
      return to.send(form_(whose, fault));
    }
    route.handlers[model](std::move(whose), to);
  };
  if (request.body.size() <= kShortBody) {
    const Asked asked(request);
    return act(asked, std::move(request), reply);
  }
  auto shared = std::make_shared<Request>(std::move(request));
  workers_.run([this, shared, reply, act] {
    auto asked = std::make_shared<Asked>(*shared);
    http_.post([shared, reply, act, asked] { act(*asked, std::move(*shared), reply); });
  });
}

std::size_t Router::model_of(const Asked& asked, const Request& request) const {
  const auto place_of = [&](const auto& is_it) -> std::optional<std::size_t> {
    const auto found = std::ranges::find_if(models_, is_it);
    if (found == models_.end()) return std::nullopt;
    return static_cast<std::size_t>(found - models_.begin());
  };
  const auto name_of = [&](std::size_t model) { return echoed(models_[model].names.front()); };
  const std::optional<std::size_t> named = place_of([&](const RoutedModel& model) {
    return std::ranges::find(model.names, asked.model) != model.names.end();
  });
  std::optional<std::size_t> owner;
  const std::string* owned = nullptr;
  for (const auto& [field, id] : asked.ids) {
    const std::optional<std::size_t> its =
        place_of([&, &what = id](const RoutedModel& model) { return model.has(what, request); });
    if (!its) continue;
    if (named && *its != *named) {
      throw bad_request(field.empty() ? "model" : field,
                        echoed(id) + " is of the model " + name_of(*its) +
                            "; expected what is of " + echoed(asked.model) +
                            ", or that model's name in model");
    }
    if (owner && *owner != *its) {
      throw bad_request(field, echoed(id) + " is of the model " + name_of(*its) + ", and " +
                                   echoed(*owned) + " of " + name_of(*owner) +
                                   "; expected both of one");
    }
    owner = its;
    owned = &id;
  }
  if (owner) return *owner;
  if (named) return *named;
  // A body's is checked by whoever reads it: some APIs take others' names for the first.
  if (request.query_value("model")) throw not_served(asked.model);
  return 0;
}

}  // namespace dendrite::server
