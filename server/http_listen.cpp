#include "server/http_listen.h"

#include <sys/stat.h>
#include <unistd.h>

#include "dendrite/error.h"

namespace dendrite::server {
namespace {

namespace asio = boost::asio;
using boost::beast::error_code;
using Local = asio::local::stream_protocol;

constexpr int kWaiting = 4096;          // connections that are not yet accepted
constexpr std::size_t kMostPath = 107;  // the system's
constexpr mode_t kForUser = S_IRUSR | S_IWUSR;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error("serve: --uds " + path + ": " + why);
}

/// Removes a socket that nobody listens at.
void remove_old(const asio::any_io_executor& executor, const std::string& path) {
  Local::socket socket(executor);
  error_code error;
  socket.connect(Local::endpoint(path), error);
  if (!error) fail(path, "another server listens there");
  if (error != asio::error::connection_refused) fail(path, "is there, and: " + error.message());
  if (unlink(path.c_str()) != 0) fail(path, "the old socket cannot be removed");
}

}  // namespace

void Listener::listen(const std::string& host, std::uint16_t port) {
  const auto where = [&] { return host + ":" + std::to_string(port); };
  error_code error;
  asio::ip::tcp::resolver resolver(tcp_.get_executor());
  const auto found =
      resolver.resolve(host, std::to_string(port), asio::ip::resolver_base::passive, error);
  if (error || found.empty()) {
    throw Error("serve: --host " + host + ": " + error.message() + "; expected an address");
  }
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  tcp_.open(endpoint.protocol(), error);
  if (!error) tcp_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) tcp_.bind(endpoint, error);
  if (!error) tcp_.listen(kWaiting, error);
  if (error) throw Error("serve: cannot listen on " + where() + ": " + error.message());
}

void Listener::listen_at(const std::string& path) {
  if (path.size() > kMostPath) {
    fail(path, "it has " + std::to_string(path.size()) + " bytes; expected at most " +
                   std::to_string(kMostPath));
  }
  struct stat there {};
  if (lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode))
      fail(path, "it is there, and no socket; expected none or a socket");
    remove_old(local_.get_executor(), path);
  }
  error_code error;
  local_.open(Local(), error);
  // The file gets these rights as it is made: at no time can others connect.
  if (!error && fchmod(local_.native_handle(), kForUser) != 0) {
    error = error_code(errno, boost::system::system_category());
  }
  if (!error) local_.bind(Local::endpoint(path), error);
  if (!error) {
    path_ = path;
    if (lstat(path.c_str(), &there) == 0) inode_ = there.st_ino;
    local_.listen(kWaiting, error);
  }
  if (error) fail(path, error.message());
}

void Listener::accept(std::function<void(error_code, Socket)> accepted) {
  if (local_.is_open()) {
    local_.async_accept([accepted = std::move(accepted)](error_code error, Local::socket socket) {
      accepted(error, Socket(std::move(socket)));
    });
  } else {
    tcp_.async_accept(
        [accepted = std::move(accepted)](error_code error, asio::ip::tcp::socket socket) {
          accepted(error, Socket(std::move(socket)));
        });
  }
}

void Listener::close() {
  error_code ignored;
  tcp_.close(ignored);
  local_.close(ignored);
  struct stat there {};
  if (!path_.empty() && lstat(path_.c_str(), &there) == 0 && there.st_ino == inode_) {
    unlink(path_.c_str());
  }
  path_.clear();
}

}  // namespace dendrite::server
