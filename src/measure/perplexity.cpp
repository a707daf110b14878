#include "dendrite/perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "dendrite/error.h"
#include "dendrite/pending.h"
#include "dendrite/session.h"

namespace dendrite {
namespace {

/// Tokens that are scored in one call: enough rows for a device, and few enough pages.
constexpr std::int64_t kTokensTogether = 4096;

/// A run of tokens of one sample: what stands before it, and what is scored behind.
struct Window {
  std::vector<Token> before;
  std::vector<Token> scored;
};

/// The windows of a sample, in its order, where there is a token to score: from `given` on.
void cut(std::span<const Token> tokens, std::size_t given, std::span<const Token> prefix,
         std::size_t size, std::vector<Window>& windows) {
  for (std::size_t begin = 0; begin < tokens.size(); begin += size) {
    const auto run = tokens.subspan(begin, std::min(size, tokens.size() - begin));
    std::size_t first = given > begin ? given - begin : 0;
    if (prefix.empty()) first = std::max<std::size_t>(first, 1);
    if (first >= run.size()) continue;
    Window& window = windows.emplace_back();
    window.before.assign(prefix.begin(), prefix.end());
    const auto scored = run.begin() + static_cast<std::ptrdiff_t>(first);
    window.before.insert(window.before.end(), run.begin(), scored);
    window.scored.assign(scored, run.end());
  }
}

std::vector<Window> windows_of(const Engine& engine, std::span<const TextSample> samples,
                               std::int64_t size) {
  const std::vector<Token> prefix = engine.encode("", true);
  size -= std::ssize(prefix);
  if (size < 1) {
    throw Error("perplexity: the window has room for " + std::to_string(size) +
                " tokens behind the tokenizer's special ones; expected at least 1");
  }
  std::vector<Window> windows;
  for (const TextSample& sample : samples) {
    std::vector<Token> tokens = engine.encode(sample.prompt, false);
    const std::size_t given = tokens.size();
    const std::vector<Token> text =
        given == 0 ? engine.encode(sample.text, false) : engine.encode_after(tokens, sample.text);
    tokens.insert(tokens.end(), text.begin(), text.end());
    cut(tokens, given, prefix, static_cast<std::size_t>(size), windows);
  }
  return windows;
}

/// As many windows from the first on as are scored together.
std::size_t together(std::span<const Window> windows, std::int64_t most) {
  std::int64_t tokens = 0;
  std::size_t count = 0;
  while (count < windows.size()) {
    tokens += std::ssize(windows[count].before) + std::ssize(windows[count].scored);
    if (count > 0 && tokens > most) break;
    ++count;
  }
  return count;
}

void add(const Score& score, Perplexity& out) {
  for (const float logprob : score.tokens) {
    out.nats -= logprob;
    out.squares += static_cast<double>(logprob) * logprob;
  }
  for (const auto& top : score.top) out.likeliest.push_back(top.front().id);
  out.tokens += std::ssize(score.tokens);
  ++out.windows;
}

/// False: cancelled.
bool add_all(Session& session, std::span<const Window> windows, const PerplexityParams& params,
             Perplexity& out) {
  std::vector<PendingPrefill> roots;
  for (const Window& window : windows) {
    roots.push_back(
        session.submit_prefill(std::span<const Token>(window.before), {.cancel = params.cancel}));
  }
  std::vector<Branch> branches;
  std::vector<std::vector<std::vector<Token>>> continuations;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    branches.push_back(roots[i].get());
    continuations.push_back({windows[i].scored});
  }
  const auto scores = session.score_tokens_of_each(
      branches, continuations, {.top_logprobs = params.likeliest ? 1 : 0, .cancel = params.cancel});
  for (const std::vector<Score>& of_window : scores) {
    if (of_window.front().tokens.empty()) {
      if (out.cancelled || params.cancel.stop_requested()) return false;
      const auto shortage = session.shortage();
      throw Error("perplexity: a window could not be scored; " +
                  (shortage ? shortage->message() : "expected pages for all of its tokens"));
    }
    add(of_window.front(), out);
  }
  return true;
}

}  // namespace

double Perplexity::value() const {
  return std::exp(nats / static_cast<double>(tokens));
}

double Perplexity::error() const {
  const auto count = static_cast<double>(tokens);
  if (tokens < 2) return std::numeric_limits<double>::infinity();
  const double mean = nats / count;
  const double variance = std::max(0.0, squares / count - mean * mean) * count / (count - 1);
  return value() * std::sqrt(variance / count);
}

Perplexity perplexity(const Engine& engine, std::span<const TextSample> samples,
                      const PerplexityParams& params) {
  if (samples.empty()) throw Error("perplexity: there is no text; expected at least one");
  if (params.window < 2) {
    throw Error("perplexity: window is " + std::to_string(params.window) +
                "; expected at least 2 tokens");
  }
  Perplexity out;
  out.window = std::min(params.window, engine.info().max_positions);
  const std::vector<Window> windows = windows_of(engine, samples, out.window);
  std::int64_t all = 0;
  for (const Window& window : windows) {
    if (params.tokens > 0 && all >= params.tokens) break;
    all += std::ssize(window.scored);
  }
  if (all == 0) {
    throw Error(
        "perplexity: the texts have no token to score; expected one at least that has another "
        "before it");
  }
  SessionOptions options;
  if (params.poll) {
    options.poll = [&] {
      out.cancelled = !params.poll();
      return !out.cancelled;
    };
  }
  Session session(engine, options);
  const std::int64_t most = std::min(kTokensTogether, engine.info().kv_tokens / 2);
  std::span<const Window> left(windows);
  while (out.tokens < all) {
    const std::size_t limit = together(left, std::min(most, all - out.tokens));
    if (!add_all(session, left.first(limit), params, out)) {
      out.cancelled = true;
      break;
    }
    left = left.subspan(limit);
    if (params.on_progress) params.on_progress(out.tokens, all);
  }
  return out;
}

double top1_agreement(const Perplexity& one, const Perplexity& other) {
  if (one.likeliest.size() != other.likeliest.size() || one.likeliest.empty()) {
    throw Error("top1_agreement: got the likeliest tokens of " +
                std::to_string(one.likeliest.size()) + " and " +
                std::to_string(other.likeliest.size()) +
                " places; expected equally many, and some (PerplexityParams::likeliest)");
  }
  std::int64_t same = 0;
  for (std::size_t i = 0; i < one.likeliest.size(); ++i) {
    same += one.likeliest[i] == other.likeliest[i] ? 1 : 0;
  }
  return static_cast<double>(same) / static_cast<double>(one.likeliest.size());
}

}  // namespace dendrite
