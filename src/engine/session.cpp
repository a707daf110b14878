#include "dendrite/session.h"

#include <algorithm>

#include "dendrite/error.h"
#include "engine/calls/decode_call.h"
#include "engine/calls/distribution_call.h"
#include "engine/calls/expand_call.h"
#include "engine/calls/prefill_call.h"
#include "engine/calls/prompt_branch.h"
#include "engine/calls/score_call.h"
#include "engine/loop/run_call.h"
#include "engine/snapshot.h"

namespace dendrite {
namespace {

std::shared_ptr<EngineCore> require_weights(const Engine& engine) {
  if (core_of(engine)->model == nullptr) {
    throw Error("session: the engine was loaded without weights; expected EngineOptions::weights");
  }
  return core_of(engine);
}

}  // namespace

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::kRunning:
      return "running";
    case Finish::kLength:
      return "length";
    case Finish::kStop:
      return "stop";
    case Finish::kEos:
      return "eos";
    case Finish::kBudget:
      return "budget";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kAbandoned:
      return "abandoned";
    case Finish::kDeadEnd:
      return "dead_end";
    case Finish::kStopInside:
      return "stop_inside";
  }
  return "?";
}

const char* name_of(Speculate method) {
  switch (method) {
    case Speculate::kOff:
      return "off";
    case Speculate::kSuffix:
      return "suffix";
    case Speculate::kDraftModel:
      return "draft_model";
    case Speculate::kDFlash:
      return "dflash";
    case Speculate::kDFlashTree:
      return "dflash_ddtree";
    case Speculate::kSuffixDFlash:
      return "suffix_dflash";
    case Speculate::kMtp:
      return "mtp";
    case Speculate::kSuffixMtp:
      return "suffix_mtp";
  }
  return "?";
}

Speculate speculate_of(std::string_view name) {
  for (const Speculate method :
       {Speculate::kOff, Speculate::kSuffix, Speculate::kDraftModel, Speculate::kDFlash,
        Speculate::kDFlashTree, Speculate::kSuffixDFlash, Speculate::kMtp, Speculate::kSuffixMtp}) {
    if (name == name_of(method)) return method;
  }
  throw Error("speculate is \"" + std::string(name) +
              "\"; expected off, suffix, draft_model, dflash, dflash_ddtree, suffix_dflash, mtp or "
              "suffix_mtp");
}

std::int64_t KvShortage::kv_tokens_needed() const {
  return (pages_total - pages_free + pages_needed) * page_tokens;
}

std::string KvShortage::message() const {
  const auto pages = [](std::int64_t count) {
    return std::to_string(count) + (count == 1 ? " page" : " pages");
  };
  std::string text = "KV pages ran out: a branch of ";
  text += std::to_string(tokens) + " tokens holds " + pages(pages_held) + " and needs " +
          std::to_string(pages_needed) + " more; of " + pages(pages_total) + " (" +
          std::to_string(page_tokens) + " tokens each) " + std::to_string(pages_free) +
          " are free, " + std::to_string(pages_of_branches) + " are held by other branches (" +
          std::to_string(pages_of_compositions) + " composed), " + std::to_string(pages_of_chunks) +
          " by chunks, " + std::to_string(pages_of_sources) + " by sources of compositions and " +
          std::to_string(pages_of_calls) + " by calls in progress (" +
          std::to_string(pages_on_hold) + " of all these on hold); ";
  const std::string larger =
      "make the pool larger (kv_tokens >= " + std::to_string(kv_tokens_needed()) + ")";
  if (pages_held + pages_needed > pages_total) return text + larger;
  if (pages_of_calls > 0) return text + "score fewer continuations at once, or " + larger;
  if (pages_on_hold > 0) {
    return text + "release or prune branches that are on hold, or " + larger;
  }
  if (pages_of_chunks + pages_of_sources > 0) {
    return text + "compose fewer or shorter pieces at once, or " + larger;
  }
  return text + "prune branches, or " + larger;
}

Session::Session(const Engine& engine, const SessionOptions& options)
    : core_(std::make_shared<SessionCore>(require_weights(engine), options)) {
  if (!(options.weight > 0)) {
    throw Error("session: weight is " + std::to_string(options.weight) + "; expected > 0");
  }
}

Branch Session::prefill(std::string_view text, const PrefillOptions& options) {
  return prefill(core_->engine->require_tokenizer().encode(text, options.add_special), options);
}

Branch Session::prefill(std::span<const Token> tokens, const PrefillOptions& options) {
  return run_call<PrefillCall>(*core_, "prefill", tokens, options, salt_of(options.salt))->result();
}

std::vector<Generation> Session::decode(Branches branches, const DecodeParams& params,
                                        Branches ahead) {
  return run_call<DecodeCall>(*core_, "decode", branches.pointers(), params, ahead,
                              DecodeCall::Tokens::kTold)
      ->results();
}

Generation Session::decode(Branch& branch, const DecodeParams& params) {
  return std::move(decode(std::span(&branch, 1), params).front());
}

std::optional<Token> Session::decode_step(Branch& branch, const DecodeParams& params) {
  DecodeParams one = params;
  one.max_tokens = 1;
  const Generation out = decode(branch, one);
  return out.ids.empty() ? std::nullopt : std::optional<Token>(out.ids.front());
}

std::vector<std::vector<Score>> Session::score(Branches branches,
                                               const std::vector<std::string>& continuations,
                                               const ScoreParams& params) {
  return score_tokens_of_each(branches, encode_all(branches, continuations), params);
}

std::vector<std::vector<Score>> Session::score_tokens(
    Branches branches, const std::vector<std::vector<Token>>& continuations,
    const ScoreParams& params) {
  return run_call<ScoreCall>(*core_, "score", branches, std::span(&continuations, 1), params)
      ->result();
}

std::vector<std::vector<Score>> Session::score_tokens_of_each(
    Branches branches, const std::vector<std::vector<std::vector<Token>>>& continuations,
    const ScoreParams& params) {
  return run_call<ScoreCall>(*core_, "score", branches, std::span(continuations), params)->result();
}

std::vector<std::vector<TokenLogprob>> Session::next_tokens(ConstBranches branches,
                                                            const ExpandParams& params) {
  return run_call<ExpandCall>(*core_, "next_tokens", branches, params)->result();
}

std::vector<Distribution> Session::distributions(Branches branches, std::stop_token cancel) {
  return run_call<DistributionCall>(*core_, "distributions", branches, std::move(cancel))->result();
}

std::vector<std::vector<Branch>> Session::children(
    ConstBranches branches, std::span<const std::vector<TokenLogprob>> tokens) {
  return children_of(*core_, branches, tokens);
}

std::vector<std::vector<Branch>> Session::expand(Branches branches, const ExpandParams& params) {
  return children(branches, next_tokens(branches, params));
}

PendingDecode Session::submit_decode(std::vector<Branch> branches, const DecodeParams& params) {
  return PendingDecode(submit_call<DecodeCall>(*core_, std::move(branches), params));
}

PendingDecode Session::submit_decode(Branch branch, const DecodeParams& params) {
  std::vector<Branch> branches;
  branches.push_back(std::move(branch));
  return submit_decode(std::move(branches), params);
}

PendingDecode Session::submit_decode(Branches branches, const DecodeParams& params) {
  return PendingDecode(submit_call<DecodeCall>(*core_, branches.pointers(), params, Branches(),
                                               DecodeCall::Tokens::kKept));
}

PendingPrefill Session::submit_prefill(std::string_view text, const PrefillOptions& options) {
  return submit_prefill(core_->engine->require_tokenizer().encode(text, options.add_special),
                        options);
}

PendingPrefill Session::submit_prefill(std::span<const Token> tokens,
                                       const PrefillOptions& options) {
  return PendingPrefill(submit_call<PrefillCall>(*core_, tokens, options, salt_of(options.salt)));
}

PendingScore Session::submit_score(Branches branches, const std::vector<std::string>& continuations,
                                   const ScoreParams& params) {
  return submit_score_tokens_of_each(branches, encode_all(branches, continuations), params);
}

PendingScore Session::submit_score_tokens(Branches branches,
                                          const std::vector<std::vector<Token>>& continuations,
                                          const ScoreParams& params) {
  return PendingScore(
      submit_call<ScoreCall>(*core_, branches, std::span(&continuations, 1), params));
}

PendingScore Session::submit_score_tokens_of_each(
    Branches branches, const std::vector<std::vector<std::vector<Token>>>& continuations,
    const ScoreParams& params) {
  return PendingScore(submit_call<ScoreCall>(*core_, branches, std::span(continuations), params));
}

PendingTokens Session::submit_next_tokens(ConstBranches branches, const ExpandParams& params) {
  return PendingTokens(submit_call<ExpandCall>(*core_, branches, params));
}

void Session::prune(Branches branches) {
  const TreeLock lock(core_->engine->tree_mutex);
  core_->prune(branches);
}

void Session::save(const std::filesystem::path& file, ConstBranches branches,
                   const SaveOptions& options) {
  save_session(*core_, file, branches, options);
}

std::vector<std::byte> Session::snapshot(ConstBranches branches, const SaveOptions& options) {
  return snapshot_session(*core_, branches, options);
}

Engine Session::engine() const {
  return handle_of(core_->engine);
}

std::uint64_t Session::number() const {
  return core_->number;
}

std::uint64_t Session::seed() const {
  return core_->options.seed;
}

std::optional<KvShortage> Session::shortage() const {
  const TreeLock lock(core_->engine->tree_mutex);
  return core_->shortage;
}

Stats Session::stats() const {
  const TreeLock lock(core_->engine->tree_mutex);
  Stats stats = core_->stats;
  const KvTree& tree = *core_->engine->tree;
  stats.pages_total = tree.pool().size();
  stats.pages_used = tree.pool().used_pages();
  stats.fork_ns = core_->fork_ns();
  return stats;
}

}  // namespace dendrite
