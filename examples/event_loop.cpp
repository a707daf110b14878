// Calls from an event loop: one thread takes tokens as they come and waits for nothing but its
// descriptors and its timer. Once with a thread beside it that computes, once without.
#include <dendrite/dendrite.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <system_error>

namespace {
using namespace dendrite;
using Clock = std::chrono::steady_clock;
using Timer = std::optional<Clock::time_point>;

/// A descriptor that poll() waits for, and that any thread makes readable.
class Waker {
 public:
  Waker() {
    if (::pipe(ends_.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    for (const int end : ends_) ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  ~Waker() {
    for (const int end : ends_) ::close(end);
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

  /// (A pipe that is full takes no more, but then the loop has enough to wake up for.)
  void wake() { [[maybe_unused]] const ssize_t written = ::write(ends_[1], "", 1); }

  /// Sleeps until somebody has called wake(), or the timer is due.
  void sleep(Timer timer) {
    using std::chrono::milliseconds;
    milliseconds timeout(-1);  // no limit
    if (timer) {
      timeout = std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*timer - Clock::now()));
    }
    pollfd descriptor{.fd = ends_[0], .events = POLLIN, .revents = 0};  // and the program's others
    ::poll(&descriptor, 1, static_cast<int>(timeout.count()));
    std::array<char, 256> bytes;
    while (::read(ends_[0], bytes.data(), bytes.size()) > 0) {
    }
  }

 private:
  std::array<int, 2> ends_{};
};

/// A decode call without an end. Session and branches go out of scope here: its handle keeps what
/// it needs.
PendingDecode ramble(const Engine& engine, const std::function<void()>& wake) {
  Session background(engine, {.weight = 0.1});
  Branch root = background.prefill("E 24: 5 6 6\n");
  PendingDecode call =
      background.submit_decode(std::move(root), {.max_tokens = 1'000'000, .ignore_eos = true});
  call.on_done(wake);
  return call;
}

/// All that the loop has in progress.
class Work {
 public:
  /// `wake`: called whenever there is something for look(), by the thread that computes.
  Work(const Engine& engine, std::function<void()> wake)
      : wake_(std::move(wake)), session_(engine, {.seed = 7}) {
    Branch puzzle = session_.prefill("S 24: 4 5 6 10\n");
    for (const char* name : {"anna", "ben"}) write(name, puzzle.fork());
    scores_ = session_.submit_score(std::span(&puzzle, 1), {"10-4=6 |", "10-4=7 |"});
    scores_.on_done(wake_);
    prompt_ = session_.submit_prefill("S 24: 3 5 9 13\n");
    prompt_.on_done(wake_);
    rambling_ = ramble(engine, wake_);
    deadline_ = Clock::now() + std::chrono::milliseconds(50);
  }

  /// Takes what has come, and goes on from there. Waits for nothing. False: all is done.
  bool look() {
    take_tokens();
    if (prompt_.valid() && prompt_.done()) {
      write("cleo", prompt_.get());
      prompt_ = {};
    }
    if (deadline_ && Clock::now() >= *deadline_) {
      rambling_.cancel();
      deadline_.reset();  // on_done tells of its end
    }
    const auto is_done = [](const Writer& writer) { return writer.call.done(); };
    return !(std::ranges::all_of(writers_, is_done) && !prompt_.valid() && scores_.done() &&
             rambling_.done());
  }

  Timer timer() const { return deadline_; }

  /// Once all is done. The same however the calls met in steps.
  std::string result() {
    std::string all;
    for (const Writer& writer : writers_) all += writer.name + ":\n" + writer.text;
    const std::vector<Score> scores = scores_.get().front();
    all += std::string("likelier: ") + (scores[0].logprob > scores[1].logprob ? "6" : "7") + "\n";
    return all + "rambling: " + name_of(rambling_.get().front().finish) + "\n";
  }

 private:
  struct Writer {
    std::string name;
    PendingDecode call;
    std::string text{};
  };

  void write(const std::string& name, Branch branch) {
    const DecodeParams params{.max_tokens = 64,
                              .temperature = 1.0,
                              .on_token = [wake = wake_](const TokenEvent&) { wake(); }};
    writers_.push_back({name, session_.submit_decode(std::move(branch), params)});
    writers_.back().call.on_done(wake_);
  }

  /// What came since the last look is a line.
  void take_tokens() {
    bool any = false;
    for (Writer& writer : writers_) {
      for (const StreamToken& token : writer.call.take()) {
        writer.text += token.text;
        const char* text = token.text == "\n" ? "\\n" : token.text.c_str();
        std::printf("%s%s %-4s", any ? "  " : "", writer.name.c_str(), text);
        any = true;
      }
    }
    if (any) std::printf("\n");
  }

  std::function<void()> wake_;
  Session session_;
  std::vector<Writer> writers_;
  PendingScore scores_;
  PendingPrefill prompt_;
  PendingDecode rambling_;
  Timer deadline_;
};

// [beside]
/// A thread of the engine's computes; this one sleeps unless there is something to do.
std::string beside_a_thread(const Engine& engine) {
  Waker waker;
  const EngineThread thread = engine.start();  // ends before the waker, which it calls
  Work work(engine, [&waker] { waker.wake(); });
  while (work.look()) waker.sleep(work.timer());
  return work.result();
}
// [/beside]

// [turns]
/// This thread computes, a step at a time, and looks after each.
std::string in_turns(const Engine& engine) {
  Work work(engine, [] {});
  while (engine.step()) work.look();
  return work.result();
}
// [/turns]

}  // namespace

int main(int argc, char** argv) try {
  const Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  const std::string beside = beside_a_thread(engine);
  const std::string turns = in_turns(engine);
  std::printf("\n%sin turns: %s\n", turns.c_str(), turns == beside ? "the same" : beside.c_str());
  return turns == beside ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "event_loop: %s\n", error.what());
  return 1;
}
