#include <algorithm>

#include "dendrite/error.h"
#include "server/turn_state.h"

// From a request to its prompt's branch, and the log-probs of its tokens.
namespace dendrite::server {

void TurnState::read_prompt() {
  decode_ = request_.chat.generate.decode;
  if (request_.branch) {
    head_.prompt = request_.branch->tokens();
    parser_ = std::move(request_.parser);
    how_ = composedness_of(*request_.branch);
  } else if (request_.ids) {
    head_.prompt = *request_.ids;
    parser_ = std::move(request_.parser);
  } else if (request_.text) {
    head_.prompt = service_.engine.encode(*request_.text);
  } else {
    ChatRequest chat = service_.model.request(request_.messages_json, request_.chat);
    head_.prompt = std::move(chat.prompt);
    head_.warnings = std::move(chat.warnings);
    decode_ = std::move(chat.decode);
    parser_ = std::move(chat.parser);
    if (!request_.reply_begins.empty()) {
      const std::vector<Token> begun =
          service_.engine.encode_after(head_.prompt, parser_->begin(request_.reply_begins));
      head_.prompt.insert(head_.prompt.end(), begun.begin(), begun.end());
      for (const ReplyEvent& held : ReplyParser(*parser_).finish(Finish::kLength)) {
        begun_ += held.text.size();
      }
    }
  }
}

void TurnState::check_prompt() {
  const std::int64_t vocab = service_.engine.info().vocab;
  for (const Token id : head_.prompt) {
    if (id < 0 || id >= vocab) {
      throw bad_request("prompt", "token " + std::to_string(id) + " is none; expected 0 to " +
                                      std::to_string(vocab - 1));
    }
  }
  const std::int64_t length = std::ssize(head_.prompt);
  const std::int64_t most = service_.context_length();
  if (length == 0) throw bad_request("prompt", "it has no tokens; expected at least one");
  const bool only_reads = request_.max_tokens == 0;
  if (length > most || (length == most && !only_reads)) {
    throw bad_request(request_.messages_json.empty() ? "prompt" : "messages",
                      "this model's maximum context length is " + std::to_string(most) +
                          " tokens, and the prompt has " + std::to_string(length) +
                          "; please shorten it",
                      "context_length_exceeded");
  }
  decode_.max_tokens = std::min(request_.max_tokens.value_or(most), most - length);
  if (decode_.constraint) service_.engine.check(*decode_.constraint);
}

void TurnState::prepare() {
  if (is_over()) return post(&TurnState::let_go);
  try {
    read_prompt();
    check_prompt();
    if (request_.seed) {
      head_.seed = *request_.seed;
    } else if (!request_.branch) {
      head_.seed = draw_seed();
    }
    if (request_.seed || !request_.branch) decode_.seed = head_.seed;
    const bool may_run = admission_.enter(shared_from_this());
    service_.http.post([self = shared_from_this()] {
      if (!self->is_over()) self->sink_->admitted(self->head_);
    });
    if (may_run) run();
  } catch (const Fault& fault) {
    fail(fault);
  } catch (const ConstraintError& error) {
    fail(bad_request("", error.what(), "invalid_schema"));
  } catch (const Error& error) {
    fail(bad_request(request_.messages_json.empty() ? "prompt" : "messages", error.what()));
  } catch (const std::exception&) {
    fail({500, "server_error", "", "", "the server failed to read the request"});
  }
}

void TurnState::run() {
  began_ = computed_ = Clock::now();
  if (is_over()) return post(&TurnState::let_go);
  if (request_.branch) return post(&TurnState::prefilled);
  if (!request_.reuse_composed) return prefill();
  {
    const std::lock_guard lock(mutex_);
    composing_ = true;
  }
  service_.composers.run([self = shared_from_this()] { self->compose(); });
}

void TurnState::prefill() {
  try {
    const std::lock_guard lock(mutex_);
    prefill_ = session_.submit_prefill(std::span<const Token>(head_.prompt),
                                       {.stream = 0,
                                        .salt = service_.salt_of(caller_, request_.cache_salt),
                                        .cancel = stop_.get_token()});
    prefill_.on_done([self = shared_from_this()] { self->computed(); });
  } catch (const Error& error) {
    fail(bad_request("prompt", error.what()));
  }
}

/// In a thread that may wait for the engine.
void TurnState::compose() {
  ComposedPrompt made;
  try {
    made = compose_prompt(session_, service_.recent, {caller_.key, request_.cache_salt},
                          head_.prompt, *request_.reuse_composed, stop_.get_token());
  } catch (const std::exception& error) {
    made.note = error.what();
  }
  const bool is_made = made.branch.valid();
  {
    const std::lock_guard lock(mutex_);
    composing_ = false;
    computed_ = Clock::now();
    root_ = std::move(made.branch);
    how_ = std::move(made.how);
    usage_.cached = made.cached;
    note_ = std::move(made.note);
  }
  if (!is_made && !is_over()) return prefill();
  post(&TurnState::prefilled);
}

/// The prompt's branch is there. Between two turns, in the thread that makes them: what is asked
/// for here is in the next one; who hears of it in another thread comes behind a whole step of
/// others.
void TurnState::computed() {
  const std::lock_guard lock(mutex_);
  computed_ = Clock::now();
  post(&TurnState::prefilled);  // before all that the choices may say
  if (is_over()) return;
  try {
    root_ = prefill_.get();
    if (root_.finish() != Finish::kBudget) {
      // (What others have, and was evicted, counts as shared there.)
      const BranchStats stats = root_.stats();
      usage_.cached = std::max<std::int64_t>(0, stats.prompt_shared - stats.tokens_regenerated);
      if (!request_.prompt_logprobs) fork_choices();
    }
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

/// The same, in the I/O thread.
void TurnState::prefilled() {
  admission_.progress();
  if (is_over()) return let_go();
  try {
    const bool decodes = [&] {
      const std::lock_guard lock(mutex_);  // until computed() has asked for its calls
      prefill_ = {};
      if (goes_on_) root_ = std::move(*request_.branch);
      return !choices_.empty();
    }();
    if (!decodes && !goes_on_ && root_.finish() == Finish::kBudget) {
      return fail(unavailable("server_overloaded", "there is no memory for the prompt now"));
    }
    usage_.prompt = std::ssize(head_.prompt);
    if (goes_on_) usage_.cached = usage_.prompt - request_.uncached;
    usage_.computed = usage_.prompt - usage_.cached;
    if (request_.reuse_composed || !how_.parts.empty()) {
      usage_.composed = {how_.moved(), how_.repaired(), how_.error, note_};
    }
    sink_->begin(usage_);
    if (decodes) return;
    if (!request_.prompt_logprobs) return fork_choices();
    scores_ = std::make_unique<PromptScores>(
        session_, root_, *request_.prompt_logprobs,
        [self = shared_from_this()] { self->post(&TurnState::scored); });
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

/// The prompt's log-probs are there.
void TurnState::scored() {
  admission_.progress();
  if (is_over()) return let_go();
  try {
    std::vector<ChosenToken> logprobs = scores_->get();
    scores_.reset();
    if (logprobs.size() + 1 != head_.prompt.size()) {
      return fail(unavailable("server_overloaded", "there is no memory for log-probs now"));
    }
    sink_->prompt(std::move(logprobs));
    fork_choices();
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

}  // namespace dendrite::server
