// The seam to HTTP: hostile clients, streams, and clients that go. No engine.
#include <atomic>
#include <random>

#include "server/http_text.h"
#include "server_support.h"

namespace dendrite::server {
namespace {

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpLimits limits;
    limits.body_bytes = 4096;
    limits.head_time = limits.body_slack = milliseconds(400);
    limits.idle = milliseconds(2000);
    limits.stalled = milliseconds(500);
    limits.keep_alive = milliseconds(300);
    limits.unsent_bytes = std::size_t{256} << 20;
    server_ = std::make_unique<HttpServer>(
        limits, [](const Request&, int status, std::string_view, std::string_view message) {
          return Answer{.status = status, .body = std::string(message)};
        });
    server_->route("GET", "/hello",
                   [](const Request&, const Reply& reply) { reply.send({.body = "hello"}); });
    server_->route("POST", "/echo", [](const Request& request, const Reply& reply) {
      reply.send({.body = request.body});
    });
    server_->route("GET", "/things/{}/parts/{}", [](const Request& request, const Reply& reply) {
      reply.send({.body = request.ids[0] + "+" + request.ids[1]});
    });
    server_->route("GET", "/lost", [](const Request&, const Reply&) {});
    server_->route("GET", "/thrown",
                   [](const Request&, const Reply&) { throw std::runtime_error("secret"); });
    server_->route("GET", "/stream", [this](const Request&, const Reply& reply) {
      reply.begin();
      reply.write("data: 1\n\n");
      const std::lock_guard lock(mutex_);
      reply.on_gone([this] { ++gone_; });
      open_.push_back(reply);
    });
    server_->listen("127.0.0.1", 0);
    thread_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    open_.clear();
    server_->stop(milliseconds(1000));
    thread_.join();
  }
  Got ask(const std::string& text) const {
    Client client(server_->port());
    client.send(text);
    return client.answer();
  }
  /// The status of what is sent, which the server then closes.
  int status_of(const std::string& bytes) const { return ask(bytes).status; }

  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::vector<Reply> open_;
  std::atomic<int> gone_ = 0;
};

TEST_F(HttpTest, AnswersAndKeepsTheConnection) {
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send(request_text("POST", "/echo", "body " + std::to_string(i)));
    const Got got = client.answer();
    EXPECT_EQ(got.status, 200);
    EXPECT_EQ(got.body, "body " + std::to_string(i));
    EXPECT_EQ(got.header("x-request-id").substr(0, 4), "req_");
  }
}

TEST_F(HttpTest, RequestsThatComeTogetherAreAnsweredInOrder) {
  Client client(server_->port());
  client.send(request_text("POST", "/echo", "a") + request_text("GET", "/hello") +
              request_text("POST", "/echo", "b"));
  EXPECT_EQ(client.answer().body, "a");
  EXPECT_EQ(client.answer().body, "hello");
  EXPECT_EQ(client.answer().body, "b");
}

TEST_F(HttpTest, PathsHaveParts) {
  EXPECT_EQ(ask(request_text("GET", "/things/a%20b/parts/c?x=1")).body, "a b+c");
  EXPECT_EQ(status_of(request_text("GET", "/things//parts/c")), 404);
  EXPECT_EQ(status_of(request_text("GET", "/things/a/parts/c/")), 404);
  EXPECT_EQ(status_of(request_text("GET", "/%00")), 400);
  EXPECT_EQ(status_of(request_text("GET", "/%zz")), 400);
  const Got wrong = ask(request_text("DELETE", "/hello"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("Allow"), "GET");
}

TEST_F(HttpTest, HeadHasNoBody) {
  Client client(server_->port());
  client.send(request_text("HEAD", "/hello") + request_text("GET", "/hello"));
  EXPECT_EQ(client.answer(false).header("Content-Length"), "5");
  EXPECT_EQ(client.answer().body, "hello");
}

TEST_F(HttpTest, WhatIsNoHttpIsRefused) {
  EXPECT_EQ(status_of("hello\r\n\r\n"), 400);
  EXPECT_EQ(status_of(std::string(100, '\0') + "\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET hello HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
            400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n"
                      "\r\n1\r\na\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(status_of("GET /hello HTTP/1.1\nHost: localhost\n\n"), 400);
  EXPECT_EQ(ask(request_text("GET", "/hello")).body, "hello");
}

TEST_F(HttpTest, WhatIsTooLargeIsRefused) {
  EXPECT_EQ(status_of("GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /hello HTTP/1.1\r\nA: " + std::string(20000, 'a') + "\r\n\r\n"), 431);
  std::string many = "GET /hello HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += "A: b\r\n";
  EXPECT_EQ(status_of(many + "\r\n"), 431);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 4097\r\n\r\n"), 413);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" +
                      std::string(5000, 'a') + "\r\n0\r\n\r\n"),
            413);
}

TEST_F(HttpTest, AChunkedBodyIsRead) {
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n"
                "0\r\n\r\n")
                .body,
            "abcde");
}

TEST_F(HttpTest, WhoAsksFirstIsToldToGoOn) {
  Client client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  std::string line;
  ASSERT_TRUE(client.until("\r\n\r\n", line));
  EXPECT_EQ(line, "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  EXPECT_EQ(client.answer().body, "ab");
}

TEST_F(HttpTest, SlowClientsAreCutOff) {
  Client silent(server_->port());
  Client head(server_->port());
  Client body(server_->port());
  head.send("GET /hello HTTP/1.1\r\nA: b");
  body.send("POST /echo HTTP/1.1\r\nContent-Length: 100\r\n\r\nab");
  EXPECT_EQ(ask(request_text("GET", "/hello")).body, "hello");  // others go on
  EXPECT_EQ(head.answer().status, 408);
  EXPECT_EQ(body.answer().status, 408);
  EXPECT_EQ(silent.rest(), "");
}

TEST_F(HttpTest, AnAnswerThatIsLostOrThrownIsAnErrorWithoutSecrets) {
  EXPECT_EQ(status_of(request_text("GET", "/lost")), 500);
  const Got thrown = ask(request_text("GET", "/thrown"));
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body.find("secret"), std::string::npos);
}

TEST_F(HttpTest, AStreamIsKeptAliveAndEnds) {
  Client client(server_->port());
  client.send(request_text("GET", "/stream"));
  std::string seen;
  ASSERT_TRUE(client.until("data: 1\n\n", seen));
  EXPECT_NE(seen.find("Content-Type: text/event-stream; charset=utf-8"), std::string::npos);
  ASSERT_TRUE(client.until(": keep-alive\n\n", seen));
  {
    const std::lock_guard lock(mutex_);
    open_.front().write("data: 2\n\n");
    open_.front().end();
    open_.front().write("data: late\n\n");
  }
  ASSERT_TRUE(client.until("0\r\n\r\n", seen));
  EXPECT_NE(seen.find("data: 2\n\n"), std::string::npos);
  EXPECT_EQ(seen.find("late"), std::string::npos);
  client.send(request_text("GET", "/hello"));
  EXPECT_EQ(client.answer().body, "hello");
  EXPECT_EQ(gone_, 0);
}

TEST_F(HttpTest, WhoGoesIsNoticed) {
  Client client(server_->port());
  client.send(request_text("GET", "/stream"));
  std::string seen;
  ASSERT_TRUE(client.until("data: 1\n\n", seen));
  client.close();
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
  EXPECT_TRUE(soon([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(open_.front().gone());
}

TEST_F(HttpTest, WhoDoesNotReadIsCutOff) {
  Client client(server_->port());
  client.send(request_text("GET", "/stream"));
  std::string seen;
  ASSERT_TRUE(client.until("data: 1\n\n", seen));
  open_.front().write("data: " + std::string(std::size_t{64} << 20, 'x') + "\n\n");
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
}

TEST_F(HttpTest, FurtherRequestsDuringAnAnswerAreBounded) {
  Client client(server_->port());
  client.send(request_text("GET", "/stream"));
  std::string seen;
  ASSERT_TRUE(client.until("data: 1\n\n", seen));
  client.send(std::string(60000, 'x'));
  EXPECT_TRUE(soon([&] { return gone_ == 1; }));
}

TEST_F(HttpTest, OldClientsGetTheirStreamWithoutChunks) {
  Client client(server_->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  std::string seen;
  ASSERT_TRUE(client.until("data: 1\n\n", seen));
  EXPECT_EQ(seen.find("chunked"), std::string::npos);
  {
    const std::lock_guard lock(mutex_);
    open_.front().end();
  }
  EXPECT_EQ(client.rest(), "");
}

TEST_F(HttpTest, IdleConnectionsDisturbNobody) {
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(std::make_unique<Client>(server_->port()));
  EXPECT_EQ(ask(request_text("GET", "/hello")).body, "hello");
}

TEST_F(HttpTest, WhateverComesOthersAreAnswered) {
  const std::vector<std::string> good = {
      request_text("POST", "/echo", "a body"), request_text("GET", "/things/a/parts/b?c=d"),
      "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"};
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes = good[random() % good.size()];
    for (std::uint32_t change = 0; change <= random() % 4; ++change) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 8);
          break;
        case 2:
          bytes.insert(at, 1 + random() % 40, static_cast<char>(random()));
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 20));
      }
      if (bytes.empty()) bytes = "x";
    }
    const Client client(server_->port());
    client.send(bytes);
  }
  EXPECT_EQ(ask(request_text("GET", "/hello")).body, "hello");
  EXPECT_TRUE(soon([&] { return server_->connections() == 0; }));
}

TEST(HttpText, HeadersStayOnTheirLines) {
  const std::string head = answer_head(200, "a/b", {{"X", "a\r\nY: b"}}, 3, false, true);
  EXPECT_EQ(head,
            "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\nX: a  Y: b\r\n\r\n");
}

TEST(HttpText, QueriesAreDecoded) {
  Request request;
  request.query = "after=a%20b&limit=3&x";
  EXPECT_EQ(request.query_value("after"), "a b");
  EXPECT_EQ(request.query_value("limit"), "3");
  EXPECT_EQ(request.query_value("x"), "");
  EXPECT_EQ(request.query_value("order"), std::nullopt);
}

}  // namespace
}  // namespace dendrite::server
