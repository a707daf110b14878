#include "fuzz/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/branches/internals.h"
#include "engine/branches/session_core.h"

namespace dendrite::fuzz {

std::vector<float> kv_of(const Branch& branch, std::int64_t positions) {
  EngineCore& engine = *state_of(branch)->session->engine;
  const KvShape& shape = engine.store->shape();
  const auto table = engine.tree->table(state_of(branch)->tip);
  require(std::ssize(table) * shape.page_tokens >= positions,
          "the page table is shorter than what is computed");
  std::vector<float> out(static_cast<std::size_t>(
      2 * positions *
      (shape.layers * shape.of(0).values() + shape.wide.layers * shape.wide.values())));
  std::size_t begin = 0;
  for (std::int64_t layer = 0; layer < shape.all_layers(); ++layer) {
    const std::int64_t slot = shape.of(layer).values();
    const auto size = static_cast<std::size_t>(positions * slot);
    const auto k = std::span(out).subspan(begin, size);
    const auto v = std::span(out).subspan(begin + size, size);
    begin += 2 * size;
    for (std::int64_t at = 0; at < positions; at += shape.page_tokens) {
      const std::int64_t tokens = std::min(shape.page_tokens, positions - at);
      const auto first = static_cast<std::size_t>(at * slot);
      const auto count = static_cast<std::size_t>(tokens * slot);
      engine.store->read(table[static_cast<std::size_t>(at / shape.page_tokens)], layer,
                         static_cast<std::int32_t>(tokens), k.subspan(first, count),
                         v.subspan(first, count));
    }
  }
  return out;
}

std::int64_t computed_of(const Branch& branch) {
  return state_of(branch)->session->engine->tree->computed(state_of(branch)->tip);
}

std::vector<float> logits_of(const Branch& branch) {
  const KvTree& tree = *state_of(branch)->session->engine->tree;
  const auto& logits = tree.segment(state_of(branch)->tip)->logits;
  return logits == nullptr ? std::vector<float>() : logits->values;
}

void require_same_bits(std::span<const float> got, std::span<const float> expected,
                       const std::string& what) {
  if (got.size() != expected.size()) {
    throw Violation(what + ": " + std::to_string(got.size()) + " values; the replay has " +
                    std::to_string(expected.size()));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) == 0 && !std::isnan(got[i])) continue;
    throw Violation(what + ": value " + std::to_string(i) + " of " + std::to_string(got.size()) +
                    " is " + std::to_string(got[i]) + "; the replay's is " +
                    std::to_string(expected[i]));
  }
}

Origin History::origin(std::int64_t length) const {
  const std::int64_t head = std::min(prompt_length, length);
  return {{tokens.begin(), tokens.begin() + length}, head, composed};
}

Reference::Reference(const std::string& model, EngineOptions options, Counts& run_counts)
    : counts(run_counts), engine_([&] {
        options.threads = 1;
        options.page_tokens = 16;
        options.kv_tokens = 8192;
        options.prefix_index = false;
        return Engine::load(model, options);
      }()) {}

Replay Reference::replay(const History& history) {
  const std::span<const Token> tokens(history.tokens);
  Session session(engine_, {.seed = history.seed});
  require(session.stats().pages_used == 0, "the reference engine holds pages of another replay");
  Made made;
  Branch branch = begin(session, history.origin(history.prompt_length), history.stream, made);
  made.clear();
  auto done = static_cast<std::size_t>(history.prompt_length);
  for (const Spans::Span& span : history.spans.all()) {
    const auto from = static_cast<std::size_t>(span.from);
    branch.append(tokens.subspan(done, from - done));
    done = from;
    if (span.constraint) {
      branch.constrain(*span.constraint);
    } else {
      branch.unconstrain();
    }
  }
  branch.append(tokens.subspan(done));
  counts.replayed_tokens += std::ssize(tokens);
  return {std::move(session), std::move(branch)};
}

/// As far as its head.
Branch Reference::begin(Session& session, const Origin& origin, std::uint64_t stream, Made& made) {
  if (origin.composed != nullptr) {
    return compose(session, *origin.composed, made).at(origin.head, {.stream = stream});
  }
  const auto head = static_cast<std::size_t>(origin.head);
  return session.prefill(std::span(origin.tokens).first(head), {.stream = stream});
}

Branch& Reference::compose(Session& session, const Recipe& recipe, Made& made) {
  Branch& branch = made[&recipe];
  if (branch.valid()) return branch;
  std::vector<Branch> sources(recipe.parts.size());
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < recipe.parts.size(); ++i) {
    const Recipe::Part& part = recipe.parts[i];
    if (part.is_computed) {
      pieces.push_back(Piece::tokens(part.from.tokens));
      continue;
    }
    sources[i] = begin(session, part.from, 0, made);
    sources[i].append(
        std::span(part.from.tokens).subspan(static_cast<std::size_t>(part.from.head)));
    pieces.push_back(Piece::span(sources[i], part.at.begin, part.at.end).with(part.repair));
    counts.replayed_tokens += std::ssize(part.from.tokens);
  }
  branch = session.compose(pieces).branch;
  require(branch.finish() == Finish::kRunning, "the reference engine has no room to compose");
  return branch;
}

std::uint64_t Reference::stream_of(const Lineage& lineage) {
  Session session(engine_, {.seed = lineage.seed, .stream = lineage.session_stream});
  std::stop_source source;  // nothing is computed
  source.request_stop();
  Branch branch;
  for (std::uint64_t i = 0; i <= lineage.before; ++i) {
    branch =
        session.prefill(lineage.prompt, {.stream = lineage.stream, .cancel = source.get_token()});
  }
  for (const Lineage::Birth& birth : lineage.births) {
    const std::int64_t missing = birth.length - branch.length();
    if (missing > 0) branch.append(std::vector<Token>(static_cast<std::size_t>(missing)));
    if (birth.token) {
      const std::vector<TokenLogprob> tokens[] = {{{*birth.token, 0}}};
      branch = std::move(session.children(std::span(&branch, 1), tokens).front().front());
    } else {
      if (!birth.stream) branch.fork(static_cast<int>(birth.forks));
      branch = branch.at(birth.length, {.stream = birth.stream});
    }
  }
  return branch.stream();
}

std::vector<float> Reference::logits(Replay& replay) {
  if (logits_of(replay.branch).empty()) replay.branch.score_tokens({{0}});
  return logits_of(replay.branch);
}

}  // namespace dendrite::fuzz
