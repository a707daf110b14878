// Responses and messages by a server in this process: what is stored, shared and told apart.
#include <fstream>

#include "server/server_support.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

const Json kAsk = {{"input", "What time is it in Lima?"}, {"max_output_tokens", 60}};

Json with(Json body, const Json& more) {
  body.update(more);
  return body;
}

std::string text_of(const Json& response) {
  return response["output"][0]["content"][0]["text"];
}

class ResponsesServed : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = new Engine(shipped("dendrite-tools")); }
  static void TearDownTestSuite() { delete engine_; }
  static Engine* engine_;
};
Engine* ResponsesServed::engine_ = nullptr;

TEST_F(ResponsesServed, ATurnByIdHasTheBitsOfTheStatelessOneOnAFreshServer) {
  const Json more = {{"include", {"message.output_text.logprobs"}}, {"top_logprobs", 3}};
  Json first;
  Json by_id;
  {
    const TestServer server(*engine_);
    first = server.post("/v1/responses", with(kAsk, {{"seed", 3}})).json();
    by_id =
        server
            .post("/v1/responses", with(with(kAsk, more), {{"seed", 9},
                                                           {"input", "And in Oslo?"},
                                                           {"previous_response_id", first["id"]}}))
            .json();
  }
  const Engine fresh = shipped("dendrite-tools");
  const TestServer server(fresh);
  Json input = {{{"role", "user"}, {"content", kAsk["input"]}}};
  for (const Json& item : first["output"]) input.push_back(item);
  input.push_back({{"role", "user"}, {"content", "And in Oslo?"}});
  const Json whole =
      server.post("/v1/responses", with(with(kAsk, more), {{"seed", 9}, {"input", input}})).json();
  ASSERT_EQ(by_id["status"], whole["status"]);
  EXPECT_EQ(by_id["output"][0]["content"].dump(), whole["output"][0]["content"].dump());
  EXPECT_GT(by_id["usage"]["dendrite"]["shared"], first["usage"]["input_tokens"]);
}

TEST_F(ResponsesServed, IdsOfOneKeyAreNotThereForAnother) {
  const TestServer server(*engine_, {.api_keys = {"one", "two"}});
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "x-api-key: two\r\n";
  const Json made = server.post("/v1/responses", kAsk, one).json();
  const std::string id = made["id"];
  EXPECT_EQ(server.ask("GET", "/v1/responses/" + id, "", one).status, 200);
  EXPECT_EQ(server.ask("GET", "/v1/responses/" + id, "", two).status, 404);
  EXPECT_EQ(server.ask("DELETE", "/v1/responses/" + id, "", two).status, 404);
  const Got next = server.post("/v1/responses", with(kAsk, {{"previous_response_id", id}}), two);
  EXPECT_EQ(next.status, 400);
  EXPECT_EQ(next.json()["error"]["code"], "previous_response_not_found");
  const Json item = {{{"type", "item_reference"}, {"id", made["output"][0]["id"]}}};
  EXPECT_EQ(server.post("/v1/responses", with(kAsk, {{"input", item}}), one).status, 200);
  EXPECT_EQ(server.post("/v1/responses", with(kAsk, {{"input", item}}), two).status, 400);
}

TEST_F(ResponsesServed, TheyAreThereAfterARestart) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const ServerOptions options{.response_store = folder.path().string()};
  std::string kept;
  std::string deleted;
  std::string next;
  Got before;
  {
    const TestServer server(*engine_, options);
    deleted = server.post("/v1/responses", kAsk).json()["id"];
    const Json body = with(kAsk, {{"previous_response_id", deleted}, {"input", "And in Oslo?"}});
    kept = server.post("/v1/responses", body).json()["id"];
    EXPECT_EQ(server.ask("DELETE", "/v1/responses/" + deleted).status, 200);
    const Json more = {{"previous_response_id", kept}, {"input", "And?"}, {"seed", 4}};
    next = text_of(server.post("/v1/responses", with(kAsk, more)).json());
    before = server.get("/v1/responses/" + kept + "?stream=true");
  }
  for (int restart = 0; restart < 2; ++restart) {
    const Engine fresh = shipped("dendrite-tools");
    const TestServer server(fresh, options);
    EXPECT_EQ(server.get("/v1/responses/" + deleted).status, 404);
    EXPECT_EQ(server.get("/v1/responses/" + kept + "?stream=true").body, before.body);
    // The one that was deleted is still what this one went on from.
    EXPECT_EQ(server.get("/v1/responses/" + kept + "/input_items").json()["data"].size(), 3U);
    const Json more = {{"previous_response_id", kept}, {"input", "And?"}, {"seed", 4}};
    EXPECT_EQ(text_of(server.post("/v1/responses", with(kAsk, more)).json()), next);
  }
}

TEST_F(ResponsesServed, TheJournalGetsSmallerWhereMostOfItHasGone) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const ServerOptions options{.response_store = folder.path().string()};
  const auto bytes = [&] {
    return std::filesystem::file_size(folder.path() / "responses.journal");
  };
  std::string kept;
  Got before;
  {
    const TestServer server(*engine_, options);
    const Json first = server.post("/v1/responses", kAsk).json();
    const Json more = {{"previous_response_id", first["id"]}};
    kept = server.post("/v1/responses", with(kAsk, more)).json()["id"];
    server.ask("DELETE", "/v1/responses/" + first["id"].get<std::string>());
    std::uintmax_t most = 0;
    for (int i = 0; i < 505; ++i) {
      const Json made =
          server.post("/v1/responses", {{"input", "a"}, {"max_output_tokens", 1}}).json();
      most = std::max(most, bytes());
      server.ask("DELETE", "/v1/responses/" + made["id"].get<std::string>());
    }
    EXPECT_TRUE(soon([&] { return bytes() < most / 10; }));
    before = server.get("/v1/responses/" + kept);
    EXPECT_EQ(before.status, 200);
  }
  const TestServer server(*engine_, options);
  EXPECT_EQ(server.get("/v1/responses/" + kept).body, before.body);
  EXPECT_EQ(server.get("/v1/responses/" + kept + "/input_items").json()["data"].size(), 3U);
}

TEST_F(ResponsesServed, InputItemsAreListedInPages) {
  const TestServer server(*engine_);
  Json input = Json::array();
  for (int i = 0; i < 5; ++i) {
    input.push_back({{"role", "user"}, {"content", std::to_string(i)}});
  }
  const std::string id = server.post("/v1/responses", with(kAsk, {{"input", input}})).json()["id"];
  const std::string path = "/v1/responses/" + id + "/input_items";
  const Json page = server.get(path + "?order=asc&limit=3").json();
  EXPECT_EQ(page["data"][2]["content"][0]["text"], "2");
  EXPECT_EQ(page["has_more"], true);
  const std::string last = page["last_id"];
  const Json rest = server.get(path + "?order=asc&limit=3&after=" + last).json();
  EXPECT_EQ(rest["data"].size(), 2U);
  EXPECT_EQ(rest["data"][0]["content"][0]["text"], "3");
  EXPECT_EQ(rest["has_more"], false);
  EXPECT_EQ(server.get(path + "?limit=0").json()["error"]["param"], "limit");
  EXPECT_EQ(server.get(path + "?order=up").json()["error"]["param"], "order");
}

TEST_F(ResponsesServed, AClientThatLeavesEndsWhatIsNotStored) {
  const TestServer server(*engine_);
  const Json endless = with(
      kAsk, {{"stream", true}, {"store", false}, {"ignore_eos", true}, {"max_output_tokens", 900}});
  {
    dendrite::server::Client client(server.port());
    client.send(request_text("POST", "/v1/responses", dump(endless)));
    std::string begun;
    client.until("response.output_text.delta", begun);
  }
  EXPECT_TRUE(soon([&] {
    return server.get("/metrics")
               .body.find("num_requests_running{model_name=\"dendrite-tools\"} 0") !=
           std::string::npos;
  }));
}

TEST_F(ResponsesServed, AClientThatComesBackHearsTheRest) {
  const TestServer server(*engine_);
  const Json body =
      with(kAsk, {{"stream", true}, {"ignore_eos", true}, {"max_output_tokens", 500}, {"seed", 1}});
  std::string begun;
  {
    dendrite::server::Client client(server.port());
    client.send(request_text("POST", "/v1/responses", dump(body)));
    client.until("response.output_text.delta", begun);
  }
  const std::size_t at = begun.find("\"resp_") + 1;
  const std::string id = begun.substr(at, begun.find('"', at) - at);
  const std::string path = "/v1/responses/" + id + "?stream=true&starting_after=";
  const std::vector<Json> rest = events_of(server.get(path + "3").body);
  ASSERT_FALSE(rest.empty());
  EXPECT_EQ(rest.front()["sequence_number"], 4);
  EXPECT_EQ(rest.back()["type"], "response.incomplete");
  EXPECT_EQ(rest.back()["response"]["usage"]["output_tokens"], 500);
  EXPECT_EQ(server.get(path + "x").json()["error"]["param"], "starting_after");
}

/// A model whose template knows one system message, at the front.
TEST_F(ResponsesServed, SystemMessagesMoveToTheFrontWhereTheTemplateKnowsNoOthers) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const std::filesystem::path shipped_folder =
      std::filesystem::path(DENDRITE_MODELS_DIR) / "dendrite-tools";
  std::filesystem::copy(shipped_folder, folder.path(), std::filesystem::copy_options::recursive);
  std::ofstream(folder.path() / "chat_template.jinja")
      << "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
         "{{ raise_exception('one system message') }}{% endif %}{{ m.content }}\n{% endfor %}";
  const Engine engine = Engine::load(folder.path().string(), {.threads = 1, .kv_tokens = 8192});
  const TestServer server(engine);
  const Json input = {{{"role", "user"}, {"content", "a"}}, {{"role", "system"}, {"content", "b"}}};
  const Got response = server.post("/v1/responses", with(kAsk, {{"input", input}}));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.header("x-dendrite-ignored"), "input(system-position)");
  EXPECT_EQ(response.json()["usage"]["input_tokens"], 4);
  const Json ask = {{"messages", input}, {"max_tokens", 5}};
  const Got message = server.post("/v1/messages", ask);
  EXPECT_EQ(message.status, 200);
  EXPECT_EQ(message.json()["dendrite"]["ignored"][0], "messages(system-position)");
  EXPECT_EQ(server.post("/v1/messages/count_tokens", ask).json()["input_tokens"], 4);
}

TEST_F(ResponsesServed, ErrorsOfMessagesHaveAnthropicsFormAlsoBeforeTheyAreRead) {
  const TestServer server(*engine_, {.api_keys = {"one"}});
  const Got denied = server.post("/v1/messages", Json::object());
  EXPECT_EQ(denied.status, 401);
  EXPECT_EQ(denied.json()["error"]["type"], "authentication_error");
  EXPECT_FALSE(denied.json()["request_id"].get<std::string>().empty());
  const Got broken = server.ask("POST", "/v1/messages", "{", "x-api-key: one\r\n");
  EXPECT_EQ(broken.status, 400);
  EXPECT_EQ(broken.json()["type"], "error");
  EXPECT_EQ(broken.header("request-id"), broken.json()["request_id"]);
}

TEST_F(ResponsesServed, AMessageIsTheSameStreamedAndWhole) {
  const TestServer server(*engine_);
  const Json ask = {{"max_tokens", 60},
                    {"seed", 5},
                    {"messages", {{{"role", "user"}, {"content", "Tell me of Oslo"}}}}};
  const Json whole = server.post("/v1/messages", ask).json();
  std::string text;
  for (const Json& event :
       events_of(server.post("/v1/messages", with(ask, {{"stream", true}})).body)) {
    if (event["type"] == "content_block_delta") text += event["delta"]["text"];
  }
  EXPECT_EQ(whole["content"][0]["text"], text);
  EXPECT_EQ(server.post("/v1/messages/count_tokens", with(ask, {{"max_tokens", nullptr}}))
                .json()["input_tokens"],
            whole["usage"]["input_tokens"].get<int>() +
                whole["usage"]["cache_read_input_tokens"].get<int>());
}

}  // namespace
}  // namespace dendrite::server
