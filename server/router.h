#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http.h"
#include "server/json.h"
#include "server/workers.h"

namespace dendrite::server {

/// A model as its requests know it.
struct RoutedModel {
  std::vector<std::string> names;  ///< the first is its own
  /// Whether what has this id is the model's, and of who asks.
  std::function<bool(const std::string& id, const Request& request)> has;
};

/// Which model's handlers a request goes to, where several are served: that of what it names by an
/// id, a branch or a response; else the one that its `model` names; else the first.
class Router {
 public:
  Router(HttpServer& http, Workers& workers) : http_(http), workers_(workers) {}

  /// Before the server runs. `form`: an error's, of the API that a path is of.
  void serve(std::vector<RoutedModel> models,
             std::function<Answer(const Request&, const Fault&)> form) {
    models_ = std::move(models);
    form_ = std::move(form);
  }
  /// As HttpServer::route, for the model at this place. Each model adds the same routes.
  void route(std::size_t model, const std::string& method, const std::string& pattern,
             Handler handler);
  /// 404 model_not_found.
  Fault not_served(const std::string& asked) const;

 private:
  struct Route {
    std::string method, pattern;
    std::vector<Handler> handlers;  // of the models, in their order
  };
  struct Asked;
  void dispatch(const Route& route, Request request, const Reply& reply);
  std::size_t model_of(const Asked& asked, const Request& request) const;

  HttpServer& http_;
  Workers& workers_;
  std::vector<RoutedModel> models_;
  std::function<Answer(const Request&, const Fault&)> form_;
  std::vector<std::shared_ptr<Route>> routes_;
};

}  // namespace dendrite::server
