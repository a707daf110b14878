#pragma once

#include <sys/types.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/error.hpp>
#include <functional>
#include <string>

// Where connections come from: an address and port, or a socket in the file system. Of http*.cpp
// alone.
namespace dendrite::server {

using Socket = boost::asio::generic::stream_protocol::socket;

class Listener {
 public:
  explicit Listener(boost::asio::io_context& io) : tcp_(io), local_(io) {}
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// All throw Error that names what cannot be.
  void listen(const std::string& host, std::uint16_t port);
  /// Makes `path` for this user alone. A socket there that nobody listens at is removed.
  void listen_at(const std::string& path);
  std::uint16_t port() const { return tcp_.local_endpoint().port(); }
  bool is_open() const { return tcp_.is_open() || local_.is_open(); }
  void accept(std::function<void(boost::beast::error_code, Socket)> accepted);
  /// Nobody can connect any more; the path goes, unless another has put something there.
  void close();

 private:
  boost::asio::ip::tcp::acceptor tcp_;
  boost::asio::local::stream_protocol::acceptor local_;
  std::string path_;
  ino_t inode_ = 0;
};

}  // namespace dendrite::server
