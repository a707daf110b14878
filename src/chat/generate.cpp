#include "dendrite/generate.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <mutex>

#include "dendrite/error.h"

namespace dendrite {
namespace {

constexpr std::int64_t kMostBranches = 512;  // that are decoded at a time
constexpr std::size_t kNoCall = std::numeric_limits<std::size_t>::max();

std::uint64_t stream_of(std::span<const Token> ids) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const Token id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<std::uint32_t>(id) >> shift) & 255)) * 0x100000001b3;
    }
  }
  return hash;
}

/// Numbers of prompts whose call has ended, from the thread that drives.
struct Inbox {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<std::size_t> numbers;
  std::function<void()> wake;

  void post(std::size_t number) {
    {
      const std::lock_guard lock(mutex);
      numbers.push_back(number);
    }
    came.notify_one();
    if (wake) wake();
  }
  std::vector<std::size_t> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(numbers, {});
  }
  bool empty() {
    const std::lock_guard lock(mutex);
    return numbers.empty();
  }
  void wait(std::chrono::microseconds most) {
    std::unique_lock lock(mutex);
    came.wait_for(lock, most, [&] { return !numbers.empty(); });
  }
};

/// A prompt with what is wanted of it.
struct Request {
  std::size_t index = 0;
  std::vector<Token> ids;
  DecodeParams params;
  std::optional<std::uint64_t> stream;
};

/// One in the engine, in the call that has not ended: one after the other of these.
struct Live {
  Request request;
  PromptResult result;
  PendingPrefill root_call, first_call;
  PendingScore score_call;
  PendingDecode decode_call;
  Branch root, first;
  Pending* call = nullptr;  // of these
};

void check_counts(const GenerateParams& params, std::size_t prompts) {
  const auto at_least_one = [](const char* name, std::optional<int> value) {
    if (value && *value < 1) {
      throw Error(std::string("generate: ") + name + " is " + std::to_string(*value) +
                  "; expected >= 1");
    }
  };
  at_least_one("n", params.n);
  at_least_one("at_once", params.at_once);
  if (params.echo_top < 0) {
    throw Error("generate: echo_top is " + std::to_string(params.echo_top) + "; expected >= 0");
  }
  const auto one_each = [&](const char* name, std::size_t count) {
    if (count != 0 && count != prompts) {
      throw Error("generate: got " + std::to_string(count) + " " + name + " and " +
                  std::to_string(prompts) + " prompts; expected one each");
    }
  };
  one_each("decode_each", params.decode_each.size());
  one_each("seeds", params.seeds.size());
}

}  // namespace

class GenerateRun::Impl {
 public:
  Impl(const Session& session, std::span<const Prompt> prompts, GenerateParams params,
       std::function<void()> wake);
  ~Impl();

  std::vector<std::pair<std::size_t, PromptResult>> take();
  bool running() const { return !live_.empty() || !waiting_.empty() || !dropped_.empty(); }
  bool wait_for(std::chrono::nanoseconds time);
  void cancel();
  bool ready() const { return !inbox_->empty(); }

 private:
  std::vector<Token> ids_of(const Prompt& prompt, std::size_t index);
  bool has_room() const;
  void enter(Request request);
  void expect(Live& live, Pending& call);
  bool go_on(Live& live);
  void begin_decode(Live& live);
  void begin_echo(PromptResult& result, std::size_t tokens) const;

  Session session_;
  Engine engine_;
  GenerateParams params_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::deque<Request> waiting_;
  std::map<std::size_t, std::unique_ptr<Live>> live_;
  std::vector<std::pair<std::size_t, PromptResult>> dropped_;  // by cancel()
  std::int64_t copies_ = 1;
  bool cancelled_ = false;
};

GenerateRun::Impl::Impl(const Session& session, std::span<const Prompt> prompts,
                        GenerateParams params, std::function<void()> wake)
    : session_(session), engine_(session.engine()), params_(std::move(params)) {
  inbox_->wake = std::move(wake);
  copies_ = params_.n.value_or(1);
  check_counts(params_, prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request{i, ids_of(prompts[i], i),
                    params_.decode_each.empty() ? params_.decode : params_.decode_each[i],
                    std::nullopt};
    if (!params_.seeds.empty() && params_.seeds[i]) request.params.seed = params_.seeds[i];
    if (request.params.seed) request.stream = stream_of(request.ids);
    // A call of no branches looks at its parameters, and does nothing.
    if (i == 0 || !params_.decode_each.empty()) {
      DecodeParams checked = request.params;
      checked.cancel_each.clear();
      session_.submit_decode(std::vector<Branch>(), checked);
    }
    waiting_.push_back(std::move(request));
  }
  if (!waiting_.empty()) inbox_->post(kNoCall);
}

GenerateRun::Impl::~Impl() {
  for (auto& [index, live] : live_) live->call->cancel();
  for (auto& [index, live] : live_) {
    try {
      live->call->wait();
    } catch (const Error&) {  // in a callback, which must not wait: it ends with the step
    }
  }
}

std::vector<Token> GenerateRun::Impl::ids_of(const Prompt& prompt, std::size_t index) {
  const std::string where = "generate: prompt " + std::to_string(index);
  std::vector<Token> ids;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    ids = engine_.encode(*text, params_.add_special);
  } else {
    ids = std::get<std::vector<Token>>(prompt);
  }
  const EngineInfo& info = engine_.info();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= info.vocab) {
      throw Error(where + ": token " + std::to_string(i) + " is " + std::to_string(ids[i]) +
                  "; expected 0 to " + std::to_string(info.vocab - 1));
    }
  }
  if (ids.empty()) throw Error(where + " has no tokens; expected at least one");
  if (std::ssize(ids) > std::min(info.max_positions, info.kv_tokens)) {
    try {  // whether it can be is the engine's to say
      session_.submit_prefill(std::span<const Token>(ids), {.stream = 0}).cancel();
    } catch (const Error& error) {
      throw Error(where + ": " + error.what());
    }
  }
  return ids;
}

bool GenerateRun::Impl::has_room() const {
  const std::int64_t live = std::ssize(live_);
  if (params_.at_once) return live < *params_.at_once;
  return live == 0 || (live + 1) * copies_ <= kMostBranches;
}

void GenerateRun::Impl::enter(Request request) {
  auto live = std::make_unique<Live>();
  live->request = std::move(request);
  live->root_call = session_.submit_prefill(
      std::span<const Token>(live->request.ids),
      {.stream = live->request.stream, .cancel = live->request.params.cancel});
  Live& entered = *(live_[live->request.index] = std::move(live));
  expect(entered, entered.root_call);
}

void GenerateRun::Impl::expect(Live& live, Pending& call) {
  live.call = &call;
  call.on_done([inbox = inbox_, index = live.request.index] { inbox->post(index); });
  if (cancelled_) call.cancel();
}

/// Takes what the call gave, and submits the next one. True: that was the last.
bool GenerateRun::Impl::go_on(Live& live) {
  const std::vector<Token>& ids = live.request.ids;
  const bool has_rest = params_.echo && ids.size() > 1;
  if (live.call == &live.decode_call) {
    live.result.generations = live.decode_call.get();
    return true;
  }
  if (live.call == &live.root_call) {
    live.root = live.root_call.get();
    begin_echo(live.result, ids.size());
    if (has_rest) {
      live.first_call = session_.submit_prefill(
          std::span(ids).first(1), {.stream = 0, .cancel = live.request.params.cancel});
      expect(live, live.first_call);
      return false;
    }
  } else if (live.call == &live.first_call) {
    live.first = live.first_call.get();
    live.score_call =
        session_.submit_score_tokens(std::span(&live.first, 1), {{ids.begin() + 1, ids.end()}},
                                     {.top_logprobs = params_.echo_top});
    expect(live, live.score_call);
    return false;
  } else {
    Score rest = std::move(live.score_call.get().front().front());
    std::ranges::copy(rest.tokens, live.result.prompt_logprobs.begin() + 1);
    std::ranges::move(rest.top, live.result.prompt_top.begin() + (rest.top.empty() ? 0 : 1));
    live.first.prune();
  }
  begin_decode(live);
  return false;
}

/// As long as nothing is known of its tokens.
void GenerateRun::Impl::begin_echo(PromptResult& result, std::size_t tokens) const {
  if (!params_.echo) return;
  result.prompt_logprobs.assign(tokens, std::numeric_limits<float>::quiet_NaN());
  if (params_.echo_top > 0) result.prompt_top.resize(tokens);
}

void GenerateRun::Impl::begin_decode(Live& live) {
  std::vector<Branch> branches;
  if (params_.n) {
    branches = live.root.fork(*params_.n);
    live.root.prune();
  } else {
    branches.push_back(std::move(live.root));
  }
  live.decode_call = session_.submit_decode(std::move(branches), live.request.params);
  expect(live, live.decode_call);
}

std::vector<std::pair<std::size_t, PromptResult>> GenerateRun::Impl::take() {
  std::vector<std::pair<std::size_t, PromptResult>> ended = std::exchange(dropped_, {});
  for (const std::size_t index : inbox_->take()) {
    const auto found = live_.find(index);
    if (found == live_.end() || !found->second->call->done() || !go_on(*found->second)) continue;
    const std::unique_ptr<Live> live = std::move(found->second);
    live_.erase(found);
    live->result.ids = std::move(live->request.ids);
    if (params_.on_done) {
      std::vector<Branch> branches = live->decode_call.release();
      params_.on_done(index, live->result, branches);
    }
    ended.emplace_back(index, std::move(live->result));
  }
  while (!waiting_.empty() && has_room()) {
    Request next = std::move(waiting_.front());
    waiting_.pop_front();
    enter(std::move(next));
  }
  return ended;
}

void GenerateRun::Impl::cancel() {
  if (std::exchange(cancelled_, true)) return;
  for (auto& [index, live] : live_) live->call->cancel();
  for (Request& request : waiting_) {
    PromptResult result{std::move(request.ids), {}, {}};
    result.generations.resize(static_cast<std::size_t>(copies_));
    for (Generation& generation : result.generations) generation.finish = Finish::kCancelled;
    begin_echo(result, result.ids.size());
    dropped_.emplace_back(request.index, std::move(result));
  }
  waiting_.clear();
  if (!dropped_.empty()) inbox_->post(kNoCall);
}

bool GenerateRun::Impl::wait_for(std::chrono::nanoseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!ready() && std::chrono::steady_clock::now() < until) {
    if (!engine_.step()) inbox_->wait(std::chrono::microseconds(200));
  }
  return ready();
}

GenerateRun::GenerateRun(const Session& session, std::span<const Prompt> prompts,
                         GenerateParams params, std::function<void()> wake)
    : impl_(std::make_unique<Impl>(session, prompts, std::move(params), std::move(wake))) {}
GenerateRun::GenerateRun(GenerateRun&&) noexcept = default;
GenerateRun& GenerateRun::operator=(GenerateRun&&) noexcept = default;
GenerateRun::~GenerateRun() = default;

std::vector<std::pair<std::size_t, PromptResult>> GenerateRun::take() {
  return impl_->take();
}

bool GenerateRun::running() const {
  return impl_->running();
}

bool GenerateRun::ready() const {
  return impl_->ready();
}

void GenerateRun::cancel() {
  impl_->cancel();
}

bool GenerateRun::wait_for(std::chrono::nanoseconds time) {
  return impl_->wait_for(time);
}

std::vector<PromptResult> generate(Session& session, std::span<const Prompt> prompts,
                                   const GenerateParams& params) {
  session.engine().step();  // throws in a callback, which must not wait
  std::vector<PromptResult> results(prompts.size());
  GenerateRun run(session, prompts, params);
  while (run.running()) {
    for (auto& [index, result] : run.take()) results[index] = std::move(result);
    if (!run.running()) break;
    run.wait_for(std::chrono::milliseconds(50));
    if (params.poll && !params.poll()) run.cancel();
  }
  return results;
}

PromptResult generate(Session& session, const Prompt& prompt, const GenerateParams& params) {
  return std::move(generate(session, std::span(&prompt, 1), params).front());
}

}  // namespace dendrite
