#include "watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "live_view.h"

namespace dendrite::cli {
namespace {

constexpr std::chrono::milliseconds kBetweenPictures{100};

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody looks
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Signals that may end the program, and what was to happen on them before a picture was drawn.
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> former_actions;

/// Puts the terminal back, then does what was to be done.
extern "C" void on_signal(int signal) {
  const int error = errno;
  write_all(kRestoreTerminal);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != signal) continue;
    const auto former = former_actions[i].sa_handler;
    if (former == SIG_DFL) {
      sigaction(signal, &former_actions[i], nullptr);
      raise(signal);
    } else if (former != SIG_IGN) {
      former(signal);
    }
  }
  errno = error;
}

/// While it lives, signals find the terminal as it was.
class SignalGuard {
 public:
  SignalGuard() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &action, &former_actions[i]);
    }
  }
  ~SignalGuard() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &former_actions[i], nullptr);
    }
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
};

std::optional<TerminalSize> terminal_size() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return TerminalSize{};
  }
  return TerminalSize{size.ws_col, size.ws_row};
}

bool can_draw() {
  const char* kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
}

ViewPort stderr_port(const Session& session, bool draws) {
  ViewPort port;
  port.write = write_all;
  port.size = [draws] { return draws ? terminal_size() : std::nullopt; };
  port.stats = [session] { return session.stats(); };
  port.seconds = [begin = std::chrono::steady_clock::now()] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  if (draws && std::getenv("NO_COLOR") == nullptr) port.paint = kAnsiPaint;
  return port;
}

}  // namespace

void WatchFlags::add_to(CLI::App& app) {
  auto* option = app.add_flag("--watch", watch,
                              "Show the tree on stderr while the search runs; without a terminal, "
                              "one line an event");
  app.add_flag("--plain", plain, "With --watch: lines on a terminal, too")->needs(option);
}

struct Watcher::Shown {
  Shown(const Session& session, bool draws, std::string title)
      : view(stderr_port(session, draws), std::move(title)) {
    if (!draws) return;
    guard.emplace();
    painter = std::jthread([this](const std::stop_token& stop) {
      std::unique_lock lock(mutex);
      do {
        view.draw();
      } while (
          !stopped.wait_for(lock, stop, kBetweenPictures, [&] { return stop.stop_requested(); }));
    });
  }

  std::mutex mutex;  // guards view
  std::condition_variable_any stopped;
  LiveView view;
  std::optional<SignalGuard> guard;
  std::jthread painter;
};

Watcher::Watcher(const Session& session, const WatchFlags& flags, std::string title) {
  if (!flags.watch) return;
  const bool draws = !flags.plain && can_draw();
  shown_ = std::make_unique<Shown>(session, draws, std::move(title));
}

Watcher::~Watcher() {
  if (!shown_) return;
  if (shown_->painter.joinable()) {
    shown_->painter.request_stop();
    shown_->painter.join();
  }
  shown_->view.close();
}

void Watcher::on(const SearchEvent& event) {
  if (!shown_) return;
  const std::scoped_lock lock(shown_->mutex);
  shown_->view.on(event);
}

}  // namespace dendrite::cli
