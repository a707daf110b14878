#include "engine/drafts/mtp_provider.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"
#include "engine/calls/lane_sampler.h"

namespace dendrite {
namespace {

/// The head was trained for the first; what it says of its own hidden states is seldom right for
/// long.
constexpr std::int64_t kLength = 8;
constexpr std::size_t kBeside = 2;  // tokens beside each of a chain

/// Of what the model reads in a step, a draft's token reads the head and the output matrix.
double size_ratio(const EngineCore& engine) {
  const std::int64_t bytes =
      engine.mtp->weight_bytes() + engine.model->output_matrix().size_bytes();
  return static_cast<double>(bytes) /
         static_cast<double>(std::max<std::int64_t>(1, engine.model->weight_bytes()));
}

MtpPass::Parts parts_of(EngineCore& engine, StepHost& host) DENDRITE_REQUIRES(kTreeLock) {
  return {*engine.backend,   *engine.mtp,       *engine.drafter_store,
          *engine.tree,      engine.memories(), host,
          engine.tree_mutex, *engine.workers,   engine.vocab()};
}

}  // namespace

MtpProvider::MtpProvider(EngineCore& engine, StepHost& host)
    : PacedProvider(engine, chains_, {.ratio = size_ratio(engine), .depth = kLength}),
      pass_(parts_of(engine, host)),
      tips_(engine) {}

std::vector<LaneDraft*> MtpProvider::choose(std::span<LaneDraft* const> wanted) {
  return with_one_missing(wanted, kLength);
}

void MtpProvider::fill(std::span<LaneDraft* const> drafts, std::int64_t depth) {
  std::vector<MtpAsk> asks;
  {
    const std::vector<Token> places(static_cast<std::size_t>(depth), 0);
    const TreeLock lock(engine_.tree_mutex);
    for (const LaneDraft* draft : drafts) {
      MtpAsk& ask = asks.emplace_back(ask_of(*draft));
      ask.tip = &tips_.fork(draft->lane->branch->tip);
      engine_.tree->append(*ask.tip, places);
    }
  }
  pass_.draft(asks, depth);
  for (std::size_t i = 0; i < asks.size(); ++i) {
    LaneDraft& draft = *drafts[i];
    DraftLimits limits = draft.limits;
    if (is_free(&draft)) limits.least = 0;
    const bool greedy = draft.lane->sampler->settings().temperature == 0;
    draft.draft = chains_.propose(asks[i].chain, greedy, limits);
    draft.draft.level = asks[i].chain.size();
  }
}

/// Tokens that the tokenizer does not know are not proposed.
MtpAsk MtpProvider::ask_of(const LaneDraft& draft) const {
  const Lane& lane = *draft.lane;
  const Token known =
      engine_.tokenizer ? engine_.tokenizer->vocab_size() : std::numeric_limits<Token>::max();
  MtpAsk ask;
  ask.choose = [&lane, known](std::span<const float> logits, std::span<const ChosenToken> chain) {
    std::optional<ChosenToken> token =
        lane.sampler->foresee(lane, std::ssize(chain), logits, kBeside);
    if (token && token->id >= known) token.reset();
    if (token) std::erase_if(token->top, [&](const auto& other) { return other.id >= known; });
    return token;
  };
  return ask;
}

void MtpProvider::tidy(bool /*failed*/) {
  const TreeLock lock(engine_.tree_mutex);
  tips_.drop();
}

}  // namespace dendrite
