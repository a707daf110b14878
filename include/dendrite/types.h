#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dendrite/constraint.h"

namespace dendrite {

using Token = std::int32_t;

/// Names a branch for as long as its session lives; never reused.
enum class BranchId : std::uint64_t { kNone = 0 };

/// Why a branch stopped. Running out of something is a status, never an exception.
enum class Finish : std::uint8_t {
  kRunning,    ///< it did not stop; decode it further
  kLength,     ///< max_tokens, or the end of the model's positions, reached
  kStop,       ///< a stop string or stop token; or its constraint is complete. Under a constraint
               ///< never inside: the text is whole, with and without the stop string
  kEos,        ///< one of the model's end-of-sequence tokens
  kBudget,     ///< the session's budget or its KV pages ran out; tokens and state are kept
  kCancelled,  ///< the caller asked for it
  kDeadEnd,    ///< no token of the vocabulary can follow: its constraint and the bans of logit_bias
               ///< (-infinity) leave none, or to find out which came to a limit of work
  kStopInside,  ///< a stop string or stop token, of a branch under a constraint whose text may not
                ///< end there, or not without the stop string, which Generation::text leaves out
  kAbandoned,   ///< others of the call were enough (DecodeParams::enough); the branch is pruned
};

/// "running", "length", "stop", "eos", "budget", "cancelled", "dead_end", "abandoned" or
/// "stop_inside".
const char* name_of(Finish finish);

struct TokenLogprob {
  Token id = 0;
  float logprob = 0;  ///< natural log, softmax over the whole vocabulary
};

/// The distribution that chose one generated token: of the raw logits, before bias, penalties,
/// temperature, filters and constraint.
struct ChosenToken {
  Token id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;  ///< the likeliest `top_logprobs` tokens, likeliest first
};

/// One generated token, as it happens.
struct TokenEvent {
  BranchId branch = BranchId::kNone;
  std::size_t index = 0;  ///< of the branch in the call's span
  Token token = 0;
  std::string_view text;  ///< what this token added to the branch's text; may be empty
  /// Its log-probs, with DecodeParams::top_logprobs; else null. Valid during the call.
  const ChosenToken* chosen = nullptr;
};

/// What one branch generated in one decode call.
struct Generation {
  std::vector<Token> ids;  ///< all new tokens, the stop or EOS token included
  std::string text;        ///< their text without special tokens and without the stop string
  Finish finish = Finish::kRunning;
  /// The stop string that ended it, the call's or the model's own: of several the one that begins
  /// first, and of those the shortest. Empty where none did.
  std::string stop{};
  /// The one of DecodeParams::stop_tokens that ended it, where no stop string did: the last of ids.
  std::optional<Token> stop_token{};
  std::vector<ChosenToken> logprobs;  ///< one an id, when asked for
};

/// Where tokens are drafted from that may come next (speculative decoding).
enum class Speculate : std::uint8_t {
  kOff,
  kSuffix,      ///< what followed in the session where its texts ended alike
  kDraftModel,  ///< what a smaller model says, see EngineOptions::draft_model
  /// What a block drafter says, which reads along with the model (EngineOptions::drafter): its
  /// likeliest chain,
  kDFlash,
  kDFlashTree,  ///< or a tree of what is likely (DDTree)
  /// kSuffix where what the session said promises more than the drafter, kDFlashTree elsewhere.
  kSuffixDFlash,
  /// What the model's own MTP head says, token after token (EngineOptions::drafter "mtp").
  kMtp,
  kSuffixMtp,  ///< kSuffix where what the session said promises more than the head, kMtp elsewhere
};
/// off, suffix, draft_model, dflash, dflash_ddtree, suffix_dflash, mtp, suffix_mtp
const char* name_of(Speculate method);
/// Throws Error for another name.
Speculate speculate_of(std::string_view name);

/// Raw logits on their way to a draw (DecodeParams::on_logits); gone when the function returns.
struct LogitsBatch {
  /// Whose a row is.
  struct Row {
    BranchId branch = BranchId::kNone;
    std::size_t index = 0;       ///< of the branch in the call's span
    std::span<const Token> ids;  ///< what the call has generated for it so far
    std::span<float> logits;     ///< [vocab]
  };
  std::span<const Row> rows;  ///< in branch order
  std::span<float> logits;    ///< all of them, [rows.size(), vocab], row after row
};

/// How to decode. What is unset comes from the model's generation_config.json, else from the
/// neutral value: temperature 0 (greedy) unless it says do_sample; no filters; no penalty. Its
/// stop_strings end branches, too, and what it forbids (suppress_tokens, bad_words_ids) is never
/// drawn. EngineInfo::warnings names what else it says, which nothing obeys.
/// Order of application: on_logits, logit_bias, repetition_penalty, presence_penalty and
/// frequency_penalty, what min_tokens and bad words forbid, temperature, top_k, top_p, min_p.
struct DecodeParams {
  std::int64_t max_tokens = 256;  ///< new tokens per branch in this call
  /// Before a branch has so many new tokens in this call, no end-of-sequence token that would end
  /// it and none of stop_tokens is drawn, and a stop string that is complete by then ends nothing.
  /// A constraint wins: a text that can only end, ends; where all that it allows is forbidden here,
  /// the branch ends with kDeadEnd. >= 0.
  std::optional<std::int64_t> min_tokens{};
  std::vector<std::string> stop{};      ///< ends a branch when its new text holds one of these
  std::vector<Token> stop_tokens{};     ///< ends a branch when it draws one of these
  std::optional<double> temperature{};  ///< >= 0; 0 takes the likeliest token (ties: lowest id)
  std::optional<std::int64_t> top_k{};  ///< >= 0; 0 keeps all
  std::optional<double> top_p{};        ///< in (0, 1]
  std::optional<double> min_p{};        ///< in [0, 1]: keeps p >= min_p * largest p
  std::optional<double> repetition_penalty{};  ///< > 0; over prompt and generated tokens
  /// Taken from the logit of each token that the branch has behind its prompt (prompt_length), ...
  std::optional<double> presence_penalty{};
  /// ... and this, so many times as it has it. Tokens of earlier calls and appended ones count, and
  /// a fork's are those of its whole path: the text is the same in one call or in several, and
  /// fork and replay agree. Finite, usually -2 to 2.
  std::optional<double> frequency_penalty{};
  /// Added to the logits of these tokens. One with -infinity is never drawn, whatever else holds.
  std::vector<std::pair<Token, float>> logit_bias{};
  /// Texts that are never completed: neither as they stand inside a text, nor at its beginning, nor
  /// behind a space. They are forbidden as the tokens that they are encoded to, whatever surrounds
  /// them; a text of which other tokens are made is not seen.
  std::vector<std::string> bad_words{};
  /// The same as tokens: the last token of one is not drawn where the branch, its prompt included,
  /// ends with those before it. Where nothing else can be drawn the branch ends with kDeadEnd, as
  /// it does where a constraint leaves nothing else.
  std::vector<std::vector<Token>> bad_word_ids{};
  /// Draws by this seed rather than the session's: with the same stream (PrefillOptions::stream)
  /// the same tokens in any session.
  std::optional<std::uint64_t> seed{};
  /// What the new text must be, from each branch's tip on, in this call alone: a fork that is made
  /// meanwhile is free. For more than one call, and for texts that fork inside, there is
  /// Branch::constrain. Applied before all else,
  /// logit_bias included. A branch ends with kStop as soon as its text can only end, or draws an
  /// end-of-sequence token where it may; with kLength the text is cut short, with kStopInside by a
  /// stop. Tokens that it leaves no choice about take no step of their own, unless log-probs are
  /// asked for.
  std::optional<Constraint> constraint{};
  /// Goes on after end-of-sequence tokens, the stop strings of generation_config.json, and the
  /// model's last position; a constraint's end ends a branch all the same.
  bool ignore_eos = false;
  int top_logprobs = -1;  ///< -1: no log-probs; 0: of the chosen token; n: and of the n likeliest
  /// Called for every token, in branch order within a step; in the thread that waits for the call,
  /// or where it was submitted in the one that drives. It may fork, read and prune branches, append
  /// to those that are in no call, and submit calls. What would wait for a call throws Error in it,
  /// and it must not wait in other ways for what another call does. What it throws ends the call
  /// with kCancelled and comes out of it.
  std::function<void(const TokenEvent&)> on_token{};
  /// Called once a step, after on_token, with all tokens that the call got from it, in branch
  /// order; the texts are gone when it returns. False: these were the last ones; `enough` is asked
  /// no more, and the branches that still ran end with kCancelled. May do, and throw, what on_token
  /// may.
  std::function<bool(std::span<const TokenEvent>)> on_step{};
  /// Called for each branch of the call that ended by length, stop or EOS, with its place in the
  /// span and what it generated. True: these are enough; every branch that was not shown is pruned
  /// within the same step, its handle is empty, its Generation is empty with kAbandoned. (First
  /// success: true when the text is right; a quorum or a vote counts in the callable.) Branches are
  /// shown by tokens generated, then by place, not by time: who wins does not depend on threads,
  /// pages, priorities or how many fit into a step. One that pages or budget cut short before it
  /// had as many tokens as the last one shown is kept, with kBudget. May do what on_token may.
  std::function<bool(std::size_t index, const Generation& generation)> enough{};
  /// Called once a step, before its tokens are drawn, with the raw logits of all branches of the
  /// call that are to get one; it may read and change them. In the thread that drives the engine,
  /// which may be another caller's, and everything else waits for it: it must not call the engine.
  /// Its price: logits come to the host, a row of [vocab] floats a branch and step; the device
  /// draws nothing for this call, and begins no step for any before the tokens of the last are
  /// known; nothing is decoded ahead. Log-probs stay those of the raw logits, and tokens that a
  /// constraint leaves no choice about are not shown. With drafts (speculate), it is called again
  /// for each further token of a step. What depends on these logits and tokens alone keeps fork and
  /// replay alike. What it throws ends the call with kCancelled and comes out of it.
  std::function<void(const LogitsBatch&)> on_logits{};
  std::stop_token cancel{};  ///< looked at before every step
  /// None, or one for each branch of the call, looked at before every step: that branch alone ends
  /// with kCancelled.
  std::vector<std::stop_token> cancel_each{};
  /// >= 1. Where other branches are decoded ahead (Session::decode), a step may take so many times
  /// as long as it would without them, as far as the engine can foresee; infinity: no limit.
  double slack = 1.05;
  /// Speculation: tokens that may come next are drafted and computed with the branch's own row, as
  /// forks of it that are dropped after the step; where what is drawn was drafted, the next token
  /// needs no step. Tokens, texts and log-probs are those without it, to the bit, at any
  /// temperature: it decides about time alone. A step takes drafts as far as they are likely to
  /// give more than they cost, by how long the engine's steps have taken; callbacks hear of the
  /// tokens of one step together.
  Speculate speculate = Speculate::kOff;
  std::int64_t speculate_budget = 16;  ///< drafted tokens a branch and step, at most; >= 0
  /// Tokens one after the other in a draft, at most; >= 0. 0: as many as the method proposes. With
  /// kDFlashTree and kSuffixDFlash no more than speculate_budget.
  std::int64_t speculate_tokens = 0;
  // Of kDFlashTree and kSuffixDFlash:
  std::int64_t speculate_top_k = 8;  ///< tokens that are looked at for each place; >= 1
  /// > 0. Divides the drafter's logits: what is believed likely, and so the tree's shape alone.
  double speculate_temperature = 1;
  /// The likeliest chain goes into the tree first, whatever its chance. Unset: until it is known
  /// how often drafts come true, where the budget is small.
  std::optional<bool> speculate_chain_seed{};
};

/// How to score continuations.
struct ScoreParams {
  /// So many of the likeliest tokens are told in the place of each scored one (Score::top); >= 0.
  /// On a device that samples, the rows of these places come to the host then.
  int top_logprobs = 0;
  std::stop_token cancel{};  ///< looked at before every step
};

/// Log-probabilities of one continuation. Where budget, pages or cancellation forbade computing
/// them, `tokens` is empty and `logprob` is NaN.
struct Score {
  double logprob = 0;         ///< the sum over its tokens
  std::vector<float> tokens;  ///< of each token
  /// Each of its tokens is the likeliest after those before it (ties: the lowest id): what greedy
  /// decoding generates.
  bool greedy = false;
  /// Of each token, with ScoreParams::top_logprobs: the likeliest tokens in its place, likeliest
  /// first (ties: the lowest id), by the model alone, whatever a constraint says. A scored token
  /// that is among them has the same log-prob there, to the bit.
  std::vector<std::vector<TokenLogprob>> top{};
};

/// How the vectors of a text's tokens become one.
enum class Pooling : std::uint8_t {
  kLastToken,  ///< that of its last token
  kMean,       ///< the mean over all of its tokens
};

/// How Engine::embed makes vectors of texts.
struct EmbedOptions {
  Pooling pooling = Pooling::kLastToken;
  bool normalize = true;         ///< to length 1
  bool add_special = true;       ///< of texts: with the tokenizer's special tokens (BOS)
  std::stop_token cancel{};      ///< looked at before every step
  std::function<bool()> poll{};  ///< the call's, see SessionOptions
};

/// One vector a text, row after row.
struct Embeddings {
  std::int64_t dim = 0;
  std::vector<float> values;  ///< [texts, dim]
  std::int64_t size() const { return dim == 0 ? 0 : std::ssize(values) / dim; }
  std::span<const float> operator[](std::int64_t i) const {
    return std::span(values).subspan(static_cast<std::size_t>(i * dim),
                                     static_cast<std::size_t>(dim));
  }
};

/// Why a call ended for want of pages: what one branch needs at once, and who holds the pool. All
/// that could be evicted had been when this was written down.
struct KvShortage {
  std::int64_t tokens = 0;        ///< of the branch
  std::int64_t pages_needed = 0;  ///< more than it has, to take its next step
  std::int64_t pages_free = 0;
  std::int64_t pages_total = 0;
  std::int64_t pages_held = 0;         ///< by the branch, and by what K and V it lacks come from
  std::int64_t pages_of_branches = 0;  ///< by other branches, and not by it
  std::int64_t pages_on_hold = 0;  ///< by those on hold (Branch::hold), and by what they wait for
  std::int64_t pages_of_compositions = 0;  ///< of these: by branches that something was moved to
  std::int64_t pages_of_chunks = 0;        ///< by registered chunks, and by no branch
  std::int64_t pages_of_sources = 0;  ///< by what other compositions lack, and by none of the above
  std::int64_t pages_of_calls = 0;    ///< by calls in progress: continuations being scored
  std::int64_t page_tokens = 0;
  /// The least kv_tokens with which the pages that are lacking would be free.
  std::int64_t kv_tokens_needed() const;
  /// All of it in a sentence, with what would help.
  std::string message() const;
};

/// The deepest that a draft's tokens go.
inline constexpr std::size_t kDraftDepth = 32;

/// What speculation did (DecodeParams::speculate), beside tokens_drafted and tokens_accepted. A
/// draft: the tokens proposed for a branch whose rows one step computed.
struct SpeculationStats {
  std::int64_t drafts = 0;
  std::int64_t tokens_budget = 0;    ///< that they could have had: speculate_budget of each
  std::int64_t tokens_proposed = 0;  ///< of drafts and beside them: not all get a row
  std::int64_t tokens_wasted = 0;    ///< of tokens_drafted: not accepted
  /// Of tokens_accepted: on a row that another branch, which stood after the same text, took as
  /// well. tokens_drafted is tokens_accepted - tokens_shared + tokens_wasted.
  std::int64_t tokens_shared = 0;
  /// Of tokens_accepted: not the first choice of who proposed them, after the text before them; ...
  std::int64_t siblings_taken = 0;
  /// ... those before the first such token: what the first choices alone had given, as one chain.
  std::int64_t tokens_accepted_as_chain = 0;
  /// Times that a branch wanted a draft and there could be none: where the device samples, with
  /// top_logprobs; past the draft model's positions, or after that had failed.
  std::int64_t fallbacks = 0;
  /// Drafts of which more tokens were accepted than 0, 1, 2, ...: the sum is tokens_accepted.
  std::array<std::int64_t, kDraftDepth> accept_depth_by_position{};
  // Of calls that speculate, times with all company:
  std::int64_t steps_drafted = 0;  ///< steps with drafts
  std::int64_t steps_plain = 0;    ///< steps for which drafts were looked for, and none got a row
  double steps_drafted_seconds = 0;
  double steps_plain_seconds = 0;
  double draft_seconds = 0;  ///< before such steps, for proposing drafts and growing their trees

  std::int64_t tokens_accepted() const;
  /// Tokens accepted a draft.
  double accept_depth() const;
  void add(const SpeculationStats& other);
};

/// Counters of a session since it began; pages_total and pages_used are the whole engine's.
struct Stats {
  std::int64_t tokens_computed = 0;  ///< rows that went through the model
  std::int64_t tokens_independent =
      0;  ///< rows that the same calls would have taken, had each branch
          ///< been a request of its own that computes its whole prompt; one of which
          ///< no call wanted a row (dropped as it was forked or expanded) takes none
  std::int64_t tokens_generated = 0;
  std::int64_t tokens_ahead = 0;      ///< drawn ahead of the calls that would want them
  std::int64_t tokens_taken = 0;      ///< of those: taken over by a call, and then generated
  std::int64_t tokens_drafted = 0;    ///< rows of drafts (DecodeParams::speculate); in no other
                                      ///< count, unless they were accepted
  std::int64_t tokens_accepted = 0;   ///< of those: drawn; they are in tokens_computed as well
  std::int64_t tokens_reused = 0;     ///< prompt tokens found in other branches or prompts
  std::int64_t tokens_moved = 0;      ///< K and V that compositions took from elsewhere
  std::int64_t tokens_repaired = 0;   ///< that compositions computed again, to lessen their error
  std::int64_t compositions = 0;      ///< compose, edit, compact, join and what is made of them
  std::int64_t tokens_discarded = 0;  ///< rows, beside tokens_computed, of steps that the device
                                      ///< began before it was known that their branch had ended
  std::int64_t tokens_redundant = 0;  ///< rows whose K and V were held, by any branch
  std::int64_t steps = 0;
  std::int64_t forks = 0;
  std::int64_t prunes = 0;
  std::int64_t copies_on_write = 0;
  std::int64_t evictions = 0;           ///< runs of tokens that lost K and V to make room
  std::int64_t preemptions = 0;         ///< times that happened to a branch that was decoding
  std::int64_t tokens_regenerated = 0;  ///< rows computed again because K and V were evicted
  std::int64_t branches_live = 0;
  std::int64_t largest_batch_rows = 0;
  std::int64_t kv_bytes_unique = 0;  ///< pages' bytes at the widest step, each page once
  std::int64_t kv_bytes_naive = 0;   ///< at that same step, had every branch pages of its own
  std::int64_t pages_total = 0;
  std::int64_t pages_used = 0;
  /// Median time of a fork, of the most recent ones, without what reading the clock takes: tens of
  /// nanoseconds where one call makes many, several hundred for one after a step, whose caches are
  /// cold (dendrite-bench fork-overhead has both). Children of `expand` are not forks here.
  double fork_ns = 0;
  SpeculationStats speculation;
};

}  // namespace dendrite
