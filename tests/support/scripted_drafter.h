#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/calls/lane.h"
#include "engine/drafts/draft_sources.h"
#include "support/engine_support.h"

// Drafts that a test decides on, in place of a draft model's.
namespace dendrite::test {

/// A draft as it is written down; limits hold for whatever is added.
class ScriptedDraft {
 public:
  explicit ScriptedDraft(const DraftLimits& limits) : limits_(limits) {}

  static constexpr std::int32_t kFull = -2;  // nothing follows what did not fit

  /// The node's place.
  std::int32_t add(std::int32_t parent, Token token) {
    if (parent == kFull) return kFull;
    const std::int32_t depth = parent < 0 ? 1 : nodes[static_cast<std::size_t>(parent)].depth + 1;
    if (std::ssize(nodes) == limits_.nodes || depth > limits_.depth) return kFull;
    const auto place = static_cast<std::int32_t>(nodes.size());
    nodes.push_back({token, parent, depth, -0.01 * place, 0});
    return place;
  }
  std::int32_t add_chain(std::int32_t parent, std::span<const Token> tokens) {
    for (const Token token : tokens) parent = add(parent, token);
    return parent;
  }

  std::vector<DraftNode> nodes;

 private:
  const DraftLimits limits_;
};

/// What a test knows of a lane that is drafted for.
struct ScriptedLane {
  std::uint64_t stream = 0;
  Tokens text;
};

class ScriptedDrafter final : public DraftProvider {
 public:
  using Script = std::function<void(const ScriptedLane&, ScriptedDraft&)>;
  ScriptedDrafter(EngineCore& engine, Script script)
      : engine_(engine), script_(std::move(script)) {}

  void propose(std::span<LaneDraft* const> drafts, double /*slack*/) override {
    for (LaneDraft* draft : drafts) {
      const BranchState& branch = *draft->lane->branch;
      ScriptedLane lane{branch.stream, {}};
      {
        const TreeLock lock(engine_.tree_mutex);
        lane.text = engine_.tree->tokens(branch.tip);
      }
      ScriptedDraft out(draft->limits);
      script_(lane, out);
      draft->draft.nodes = std::move(out.nodes);
    }
  }
  void learn(const LaneDraft& /*draft*/, std::int32_t /*came*/) override {}

 private:
  EngineCore& engine_;
  const Script script_;
};

/// From here on Speculate::kDraftModel is the script.
inline void draft_by(const Engine& engine, ScriptedDrafter::Script script) {
  EngineCore& core = *core_of(engine);
  sources_of(core).exchange_draft_model(std::make_unique<ScriptedDrafter>(core, std::move(script)));
}

/// With drafts of the script, whatever time they take.
inline DecodeParams scripted(DecodeParams params, std::int64_t budget = 16) {
  params.speculate = Speculate::kDraftModel;
  params.speculate_budget = budget;
  params.slack = std::numeric_limits<double>::infinity();
  return params;
}

/// Texts that are known beforehand, by their streams.
class KnownTexts {
 public:
  void add(const Branch& branch) { texts_[branch.stream()] = branch.tokens(); }
  /// What follows, `most` tokens at most.
  std::span<const Token> after(const ScriptedLane& lane, std::size_t most) const {
    const auto found = texts_.find(lane.stream);
    if (found == texts_.end() || found->second.size() <= lane.text.size()) return {};
    const std::span rest = std::span(found->second).subspan(lane.text.size());
    return rest.first(std::min(most, rest.size()));
  }

 private:
  std::map<std::uint64_t, Tokens> texts_;
};

}  // namespace dendrite::test
