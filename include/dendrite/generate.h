#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dendrite/session.h"

// Many prompts: requests that enter the engine as there is room, and come out as they end.
namespace dendrite {

/// A text, or token ids.
using Prompt = std::variant<std::string, std::vector<Token>>;

/// What came of one prompt.
struct PromptResult {
  std::vector<Token> ids;               ///< of the prompt
  std::vector<Generation> generations;  ///< one, or GenerateParams::n
  /// With GenerateParams::echo, one a token of the prompt: NaN of the first, before which nothing
  /// stands, and where pages, budget or cancellation forbade computing them. Natural log.
  std::vector<float> prompt_logprobs;
  /// With GenerateParams::echo_top as well: the likeliest tokens in the place of each, as
  /// Score::top. None where there is no log-prob.
  std::vector<std::vector<TokenLogprob>> prompt_top{};
};

/// How to generate.
struct GenerateParams {
  /// For all prompts. `cancel` is looked at in all of a prompt's calls, and callbacks are called as
  /// in Session::decode, with the index of the sample.
  DecodeParams decode{};
  std::vector<DecodeParams> decode_each{};  ///< none; or one a prompt, instead of `decode`
  /// So many samples of each prompt: forks of its branch. Unset: one, the branch itself, which
  /// draws what prefill and decode draw. >= 1.
  std::optional<int> n{};
  /// So many prompts are in the engine at a time, >= 1. Unset: as many as 512 branches. (The engine
  /// lets those wait for which its pages do not suffice.)
  std::optional<int> at_once{};
  /// None, or one a prompt, before DecodeParams::seed: what is drawn then depends on this number,
  /// the prompt and the parameters alone, not on the session, nor on what it was asked before. The
  /// prompt's stream is the 64-bit FNV-1a hash of its ids as little-endian 32-bit integers.
  std::vector<std::optional<std::uint64_t>> seeds{};
  /// Also log-probs of the prompts' tokens. Each prompt is read once more for it; nothing that is
  /// drawn changes.
  bool echo = false;
  int echo_top = 0;         ///< with echo: also so many of the likeliest tokens in each place; >= 0
  bool add_special = true;  ///< texts only: BOS and the like, as the tokenizer says
  /// Shown each prompt as it ends, with its branches, which are pruned afterwards unless it moves
  /// them away. In the thread of the call, which holds no lock: it may do what it likes. What it
  /// throws ends the call and comes out of it.
  std::function<void(std::size_t index, const PromptResult& result, std::span<Branch> branches)>
      on_done{};
  /// Of generate() alone, see SessionOptions::poll. False: ends all with kCancelled.
  std::function<bool()> poll{};
};

/// The prompts of one call on their way, for who has a loop of their own; generate() is one. Used
/// by one thread at a time. Somebody has to drive the engine: wait_for(), a thread of its own
/// (Engine::start), or Engine::step(). Dropping it cancels all and waits until that has happened.
class GenerateRun {
 public:
  /// Looks at everything; nothing is computed before take(). `wake`: called when take() has
  /// something to do, in here for the first time, then by the thread that drives; it must be quick
  /// and not call this object. Throws Error
  /// that names a prompt by its index: one that is empty or too long, an id outside of the
  /// vocabulary; and for parameters that decode would refuse.
  GenerateRun(const Session& session, std::span<const Prompt> prompts, GenerateParams params,
              std::function<void()> wake = {});
  GenerateRun(GenerateRun&&) noexcept;
  GenerateRun& operator=(GenerateRun&&) noexcept;
  ~GenerateRun();

  /// What has ended since the last time, by the prompt's index; prompts that wait outside take its
  /// place. Never waits. Throws what a call failed with.
  std::vector<std::pair<std::size_t, PromptResult>> take();
  /// Whether there is more to come.
  bool running() const;
  /// Whether take() has something to do. From any thread.
  bool ready() const;
  /// Waits until it has, for so long at most; drives the engine meanwhile where nobody else does.
  /// Returns ready(). Throws BranchBusy in a callback, which must not wait.
  bool wait_for(std::chrono::nanoseconds time);
  /// Ends what runs, with Finish::kCancelled; prompts that wait outside get a generation of no
  /// tokens.
  void cancel();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What the model writes after prompts, however many, in their order.
///
/// Prompts are computed once as far as they begin alike, and decoded together. Each draws from a
/// random stream of its own, of the session's seed, its tokens, and how often they were asked for
/// before: the bits are those of one prompt after the other, whatever at_once is and whoever else
/// is in the engine. Throws as GenerateRun, what a call or a callback failed with, and BranchBusy
/// in a callback; then all has ended, and its pages are free.
std::vector<PromptResult> generate(Session& session, std::span<const Prompt> prompts,
                                   const GenerateParams& params = {});
PromptResult generate(Session& session, const Prompt& prompt, const GenerateParams& params = {});

}  // namespace dendrite
