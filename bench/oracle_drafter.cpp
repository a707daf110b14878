#include "oracle_drafter.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/rng.h"
#include "engine/branches/internals.h"
#include "engine/calls/lane.h"
#include "engine/drafts/draft_sources.h"
#include "step/stepper.h"

namespace dendrite::bench {
namespace {

/// What the coins are tossed with: no session has this seed.
constexpr std::uint64_t kSeed = 0x0DAC1E;
/// Of a pass by a step, as a first guess: 5 layers and an output matrix by a model of some 30.
constexpr double kPass = 0.11;
constexpr double kAsSaid = -1;

void busy_for(double ms) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::duration<double, std::milli>(ms);  // (a device would be as busy)
  while (std::chrono::steady_clock::now() < end) {
  }
}

/// Another token than `token`; another for each `which`.
Token other_than(Token token, std::uint64_t which, std::int64_t vocab) {
  const auto others = static_cast<std::uint64_t>(vocab - 1);
  return static_cast<Token>((static_cast<std::uint64_t>(token) + 1 + which % others) %
                            static_cast<std::uint64_t>(vocab));
}

OracleOptions claimed(OracleOptions options) {
  if (options.claims > 0) options.first = options.claims;
  return options;
}

std::int64_t length_of(EngineCore& engine, const LaneDraft& draft) DENDRITE_EXCLUDES(kTreeLock) {
  const TreeLock lock(engine.tree_mutex);
  return engine.tree->length(draft.lane->branch->tip);
}

}  // namespace

std::span<const Token> KnownTexts::after(std::uint64_t stream, std::int64_t length) const {
  const auto found = texts_.find(stream);
  if (found == texts_.end() || std::ssize(found->second) <= length) return {};
  return std::span(found->second).subspan(static_cast<std::size_t>(length));
}

/// No other is likelier than the first.
std::vector<double> chances_of(const OracleOptions& options) {
  std::vector<double> chances{options.first};
  if (!options.tree) return chances;
  double parts = 0;
  for (std::int64_t rank = 1; rank < options.top; ++rank) parts += std::exp2(-rank);
  for (std::int64_t rank = 1; rank < options.top; ++rank) {
    const double part = std::exp2(-rank) / parts;
    chances.push_back(std::min(options.first, (1 - options.first) * options.beside * part));
  }
  return chances;
}

/// After one text. Its keys: places before, and whether all tokens of them were right.
class OracleDrafter::Guesses final : public Lattice {
 public:
  Guesses(const OracleDrafter& drafter, std::uint64_t stream, std::int64_t length,
          std::span<const Token> next)
      : drafter_(drafter), stream_(stream), length_(length), next_(next) {}

  std::span<const DraftChild> children(std::int32_t key) override {
    out_.clear();
    const std::int32_t place = key / 2;
    const bool is_astray = key % 2 == 1;
    if (place == std::ssize(next_)) return out_;
    const auto position = static_cast<std::uint64_t>(length_ + place);
    const Token right = next_[static_cast<std::size_t>(place)];
    double left = uniform_at(kSeed, stream_, position);
    bool is_found = is_astray;
    const std::vector<double>& chances = drafter_.chances_;
    for (std::size_t rank = 0; rank < chances.size(); ++rank) {
      const bool comes = !is_found && left < chances[rank];
      is_found = is_found || comes;
      left -= chances[rank];
      const Token token = comes ? right : other_than(right, position + rank, vocab());
      const std::int32_t after = 2 * (place + 1) + (comes ? 0 : 1);
      out_.push_back({token, static_cast<float>(std::log(drafter_.claims_[rank])), after, 0});
    }
    return out_;
  }

 private:
  std::int64_t vocab() const { return drafter_.engine_.vocab(); }

  const OracleDrafter& drafter_;
  const std::uint64_t stream_;
  const std::int64_t length_;
  const std::span<const Token> next_;
  std::vector<DraftChild> out_;
};

OracleDrafter::OracleDrafter(EngineCore& engine, const KnownTexts& texts,
                             const OracleOptions& options)
    : PacedProvider(
          engine, acceptance_,
          {.ratio = options.ms > 0 ? kPass : 0, .one_pass = true, .depth = options.depth}),
      texts_(texts),
      options_(options),
      chances_(chances_of(options)),
      claims_(chances_of(claimed(options))),
      acceptance_({kAsSaid}) {}

std::span<const Token> OracleDrafter::next_of(const LaneDraft& draft) const {
  return texts_.after(draft.lane->branch->stream, length_of(engine_, draft));
}

std::vector<LaneDraft*> OracleDrafter::choose(std::span<LaneDraft* const> wanted) {
  std::vector<LaneDraft*> drafts;
  for (LaneDraft* draft : wanted) {
    if (draft->limits.depth > 0 && !next_of(*draft).empty()) drafts.push_back(draft);
  }
  return drafts;
}

void OracleDrafter::fill(std::span<LaneDraft* const> drafts, std::int64_t depth) {
  if (options_.ms > 0) busy_for(options_.ms);
  for (LaneDraft* draft : drafts) {
    DraftLimits limits = draft->limits;
    limits.depth = std::min(limits.depth, depth);
    if (is_free(draft)) limits.least = 0;
    Guesses guesses(*this, draft->lane->branch->stream, length_of(engine_, *draft),
                    next_of(*draft));
    draft->draft = {.nodes = build_draft(guesses, limits),
                    .level = static_cast<std::size_t>(limits.depth)};
  }
}

void WrongDrafter::propose(std::span<LaneDraft* const> drafts, double /*slack*/) {
  for (LaneDraft* draft : drafts) {
    draft->is_wanted = shape.empty() || engine_.stepper->has_begun();
    if (draft->is_wanted) continue;
    const std::span<const Token> next =
        texts_.after(draft->lane->branch->stream, length_of(engine_, *draft));
    if (next.empty()) continue;
    std::vector<DraftNode>& nodes = draft->draft.nodes;
    for (const DraftNode& node : shape) {
      if (std::ssize(nodes) == draft->limits.nodes) break;
      nodes.push_back(node);
      nodes.back().token = other_than(next[0], nodes.size() - 1, engine_.vocab());
    }
  }
}

DraftModelInPlace::DraftModelInPlace(const Engine& engine, std::unique_ptr<DraftProvider>& provider)
    : engine_(engine), provider_(provider) {
  provider_ = sources_of(*core_of(engine_)).exchange_draft_model(std::move(provider_));
}

DraftModelInPlace::~DraftModelInPlace() {
  provider_ = sources_of(*core_of(engine_)).exchange_draft_model(std::move(provider_));
}

}  // namespace dendrite::bench
