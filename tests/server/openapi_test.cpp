// What the server says of itself is what it does: /openapi.json beside its routes and its readers.
#include <algorithm>
#include <set>

#include "server_support.h"

namespace dendrite::server {
namespace {

/// The document, and how its schemas are read.
class Document {
 public:
  explicit Document(Json whole) : whole_(std::move(whole)) {}

  const Json& whole() const { return whole_; }
  const Json& paths() const { return whole_["paths"]; }
  const Json& resolved(const Json& schema) const {
    const auto ref = schema.find("$ref");
    if (ref == schema.end()) return schema;
    return resolved(whole_.at(Json::json_pointer(ref->get<std::string>().substr(1))));
  }
  /// The properties of an object's schema, those that allOf puts together.
  Json properties(const Json& schema) const {
    const Json& own = resolved(schema);
    Json out = own.value("properties", Json::object());
    for (const Json& part : own.value("allOf", Json::array())) out.update(properties(part));
    return out;
  }
  bool requires_some(const Json& schema) const {
    const Json& own = resolved(schema);
    if (!own.value("required", Json::array()).empty()) return true;
    const Json parts = own.value("allOf", Json::array());
    return std::ranges::any_of(parts, [&](const Json& part) { return requires_some(part); });
  }
  /// All properties null, which is as though they were absent, and known or not by their names.
  Json nulls(const Json& fields) const {
    Json out = Json::object();
    for (const auto& [name, property] : fields.items()) {
      const bool is_object = !properties(property).empty() && !requires_some(property) &&
                             !resolved(property).contains("minProperties");
      out[name] = is_object ? nulls(properties(property)) : Json();
    }
    return out;
  }

 private:
  Json whole_;
};

/// A request of the document.
struct Documented {
  std::string path;  ///< with what its id stands for
  Json properties;
  Json example;
};

struct Fixture {
  Engine engine = shipped();
  TestServer server{engine};
  Document document{server.get("/openapi.json").json()};

  /// All that have a body, with a branch or an effect that is there.
  std::vector<Documented> requests() const {
    std::vector<Documented> out;
    for (const auto& [pattern, item] : document.paths().items()) {
      if (!item.contains("post") || !item["post"].contains("requestBody")) continue;
      std::string path = pattern;
      if (const std::size_t id = path.find("{id}"); id != std::string::npos) {
        if (path.starts_with("/v1/responses")) continue;  // a fork's, of one that is being written
        path.replace(id, 4, path.starts_with("/v1/effects") ? effect() : branch());
      }
      const Json& schema =
          document.resolved(item["post"]["requestBody"]["content"]["application/json"]["schema"]);
      out.push_back({path, document.properties(schema), schema.at("example")});
      // Of what a text has no use for: it is named.
      Json& properties = out.back().properties;
      if (pattern == "/v1/branches") properties.erase("at");
      if (pattern == "/tokenize") {
        for (const char* name : {"tools", "add_special", "add_generation_prompt"}) {
          properties.erase(name);
        }
      }
    }
    return out;
  }
  std::string branch() const {
    return server.post("/v1/branches", {{"prompt", "S 24: 4 5 6 10\n"}}).json()["data"][0]["id"];
  }
  std::string effect() const {
    return server.post("/v1/branches/" + branch() + "/effects", {{"key", "k"}}).json()["id"];
  }
};

const Fixture& fixture() {
  static const Fixture kFixture;
  return kFixture;
}

/// A value that the schema does not allow, of each way that it tells of; with what of it that is.
std::vector<std::pair<std::string, Json>> wrong_values(const Document& document,
                                                       const Json& given) {
  const Json& schema = document.resolved(given);
  std::vector<std::pair<std::string, Json>> out;
  const auto beyond = [&](const char* name, double step) {
    const auto bound = schema.find(name);
    if (bound == schema.end()) return;
    const bool is_whole = schema.value("type", Json()) == "integer";
    out.emplace_back(name, is_whole ? Json(bound->get<std::int64_t>() + (step > 0 ? 1 : -1))
                                    : Json(bound->get<double>() + step));
  };
  beyond("minimum", -0.01);
  beyond("maximum", 0.01);
  if (schema.contains("exclusiveMinimum")) {
    out.emplace_back("exclusiveMinimum", schema["exclusiveMinimum"]);
  }
  if (schema.contains("enum") || schema.contains("const")) out.emplace_back("enum", "neither");
  const Json type = schema.value("type", Json());
  if (type == "integer") out.emplace_back("type", 1.5);
  if (type == "integer" || type == "number" || type == "boolean") out.emplace_back("type", "x");
  if (type == "string") out.emplace_back("type", 1);
  if (type == "object" || type == "array") out.emplace_back("type", "x");
  if (type == "array" && schema.contains("maxItems") && schema["maxItems"] < 10'000) {
    Json many = Json::array();
    for (int i = 0; i <= schema["maxItems"].get<int>(); ++i) many.push_back("x");
    out.emplace_back("maxItems", std::move(many));
  }
  if (type == "string" && schema.contains("maxLength")) {
    out.emplace_back("maxLength", std::string(schema["maxLength"].get<std::size_t>() + 1, 'x'));
  }
  return out;
}

/// Fields that are accepted for others' sake, whatever they are.
bool is_without_effect(const Document& document, const std::string& name) {
  static const std::set<std::string> kOfMessages = {
      "cache_control", "inference_geo", "speed",          "diagnostics",     "betas",
      "metadata",      "service_tier",  "workspace_id",   "user_profile_id", "stream_options",
      "verbosity",     "prediction",    "client_metadata"};
  const Json& accepted = document.whole()["components"]["schemas"]["Accepted"]["properties"];
  return accepted.contains(name) || kOfMessages.contains(name);
}

TEST(Openapi, ItHasAllRoutesAndNoOther) {
  const Fixture& f = fixture();
  std::set<std::string> told;
  for (const auto& [pattern, item] : f.document.paths().items()) {
    std::string path = pattern;
    if (const std::size_t id = path.find("{id}"); id != std::string::npos) {
      path.replace(id, 4, "{}");
    }
    for (const auto& [method, operation] : item.items()) {
      if (method == "parameters") continue;
      std::string name = method;
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
      told.insert(name + " " + path);
    }
  }
  std::set<std::string> served;
  for (const auto& [method, path] : f.server.routes()) served.insert(method + " " + path);
  EXPECT_EQ(told, served);
}

TEST(Openapi, ItHasTheVersionAndTheLimitsOfThisServer) {
  ServerOptions options;
  options.max_n = 3;
  options.max_logprobs = 2;
  const TestServer server(fixture().engine, options);
  const Got got = server.get("/openapi.json");
  EXPECT_EQ(got.header("Content-Type"), "application/json");
  const Document document(got.json());
  EXPECT_EQ(document.whole()["openapi"], "3.1.0");
  EXPECT_EQ(document.whole()["info"]["version"], server.get("/version").json()["version"]);
  const Json chat = document.properties({{"$ref", "#/components/schemas/ChatRequest"}});
  EXPECT_EQ(chat["n"]["maximum"], 3);
  EXPECT_EQ(chat["top_logprobs"]["maximum"], 2);
  EXPECT_EQ(got.body.find('@'), std::string::npos);
}

TEST(Openapi, EveryReferenceIsThere) {
  const Document& document = fixture().document;
  const std::string text = dump(document.whole());
  const std::string mark = "\"$ref\":\"#";
  std::set<std::string> refs;
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    const std::size_t begin = at + mark.size();
    refs.insert(text.substr(begin, text.find('"', begin) - begin));
  }
  for (const std::string& ref : refs) {
    EXPECT_TRUE(document.whole().contains(Json::json_pointer(ref))) << ref;
  }
  for (const auto& [name, schema] : document.whole()["components"]["schemas"].items()) {
    EXPECT_TRUE(refs.contains("/components/schemas/" + name)) << name << " is not used";
  }
}

/// What a property's null tells: whether its name is known.
TEST(Openapi, ReadersKnowAllFieldsOfRequests) {
  const Fixture& f = fixture();
  for (const Documented& request : f.requests()) {
    SCOPED_TRACE(request.path);
    Json body = f.document.nulls(request.properties);
    body.update(request.example);
    if (body.value("stream_options", Json()).is_object()) body["stream"] = true;
    const Got got = f.server.post(request.path, body);
    EXPECT_TRUE(got.status == 200 || got.status == 201) << got.body;
    EXPECT_EQ(got.header("x-dendrite-ignored"), "");
  }
}

TEST(Openapi, ReadersKnowAllFieldsOfStrategies) {
  const Fixture& f = fixture();
  const Json& schemas = f.document.whole()["components"]["schemas"];
  const Json example = schemas["SearchRequest"]["example"];
  std::set<std::string> types;
  for (const Json& one : schemas["Strategy"]["oneOf"]) {
    Json body = example;
    body["strategy"] = f.document.nulls(f.document.properties(one));
    const std::string type = f.document.properties(one)["type"]["const"];
    types.insert(type);
    body["strategy"]["type"] = type;
    if (type == "self_refinement") body["strategy"]["value"] = {{"options", {{"a", 1}, {"b", 0}}}};
    if (type == "fork_join") body["strategy"]["open"] = "(";
    body["budget"] = {{"tokens", 64}};
    const bool is_of_lines = f.document.properties(one).contains("max_step_tokens");
    if (is_of_lines) body.erase("max_tokens");
    const Got got = f.server.post("/v1/searches", body);
    EXPECT_EQ(got.status, 200) << type << ": " << got.body;
  }
  EXPECT_EQ(types.size(), 9U);
  EXPECT_EQ(types.size(), schemas["Strategy"]["discriminator"]["mapping"].size());
}

/// Bounds, types and words of fields are the readers': what is just beyond is refused by name.
/// (And so none of them is refused whatever it says, or read by nobody.)
TEST(Openapi, BoundsOfFieldsAreThoseOfTheReaders) {
  const Fixture& f = fixture();
  int checked = 0;
  for (const Documented& request : f.requests()) {
    for (const auto& [name, property] : request.properties.items()) {
      if (is_without_effect(f.document, name)) continue;
      for (const auto& [what, value] : wrong_values(f.document, property)) {
        Json body = request.example;
        body[name] = value;
        const Got got = f.server.post(request.path, body);
        const std::string shown = value.dump().substr(0, 80);
        EXPECT_EQ(got.status, 400) << request.path << " " << name << " " << what << " " << shown;
        const Json error = got.json()["error"];
        EXPECT_NE(error.value("code", Json()), "unsupported_parameter") << request.path << name;
        EXPECT_NE(error.value("message", std::string()).find(name), std::string::npos)
            << request.path << " " << name << " " << what << " " << shown << ": " << got.body;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 300);
}

/// And what is at the bounds is not.
TEST(Openapi, BoundsOfNumbersAreTaken) {
  const Fixture& f = fixture();
  for (const Documented& request : f.requests()) {
    for (const auto& [name, given] : request.properties.items()) {
      const Json& property = f.document.resolved(given);
      for (const char* bound : {"minimum", "maximum"}) {
        if (!property.contains(bound)) continue;
        Json body = request.example;
        body[name] = property[bound];
        const Got got = f.server.post(request.path, body);
        EXPECT_LT(got.status, 500) << request.path << " " << name << got.body;
        // (Some say that the field beside it is missing, or that it is more than the context has.)
        EXPECT_EQ(got.body.find("a number from"), std::string::npos) << got.body;
        EXPECT_EQ(got.body.find("a whole number from"), std::string::npos) << got.body;
      }
    }
  }
}

TEST(Openapi, EveryOperationSaysWhatItMayRefuse) {
  const Document& document = fixture().document;
  std::set<std::string> ids;
  for (const auto& [path, item] : document.paths().items()) {
    for (const auto& [method, operation] : item.items()) {
      if (method == "parameters") continue;
      EXPECT_TRUE(ids.insert(operation["operationId"]).second) << path;
      const Json& responses = operation["responses"];
      const bool is_open = operation.contains("security");
      EXPECT_EQ(responses.contains("401"), !is_open) << path;
      EXPECT_EQ(responses.contains("415"), operation.contains("requestBody")) << path;
      const std::string form = path.starts_with("/v1/messages") ? "MessagesError" : "Error";
      EXPECT_EQ(responses["400"]["content"]["application/json"]["schema"]["$ref"],
                "#/components/schemas/" + form);
    }
  }
}

}  // namespace
}  // namespace dendrite::server
