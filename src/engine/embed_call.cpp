#include "engine/embed_call.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "dendrite/error.h"
#include "engine/calls/prompt_branch.h"
#include "engine/loop/run_call.h"

namespace dendrite {
namespace {

std::int64_t common_prefix(const std::vector<Token>& a, const std::vector<Token>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

EmbedCall::EmbedCall(SessionCore& session, std::span<const std::vector<Token>* const> texts,
                     Pooling pooling, std::stop_token cancel)
    : RequestsCall(session, std::move(cancel)), pooling_(pooling), vectors_(texts.size()) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    // (The last token of a text is always one of its own, with a row in this call: texts differ,
    // and come in order.)
    const std::int64_t common = i == 0 ? 0 : common_prefix(*texts[i - 1], *texts[i]);
    branches_.push_back(begin_text(session, *texts[i],
                                   i == 0 ? nullptr : state_of(branches_[i - 1]), common,
                                   pooling == Pooling::kLastToken));
  }
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    BranchState& state = *state_of(branches_[i]);
    hold(state);
    texts_.emplace(engine_.tree->segment(state.tip), i);
    Wish wish = wish_for(state, state.tip);
    wish.request.keep_logits = false;
    wish.request.hidden = this;
    want(wish);
  }
}

EmbedCall::~EmbedCall() {
  leave();  // before the branches go
}

bool EmbedCall::wants(const Segment& segment, std::int64_t position) {
  return pooling_ == Pooling::kMean || (position == segment.end() - 1 && texts_.contains(&segment));
}

void EmbedCall::take(const Segment& segment, std::int64_t position, std::span<const float> hidden) {
  if (pooling_ == Pooling::kLastToken) {
    vectors_[texts_.at(&segment)].assign(hidden.begin(), hidden.end());
  } else {
    rows_.push_back({&segment, position, {hidden.begin(), hidden.end()}});
  }
}

void EmbedCall::take(std::span<const StepOutcome> outcomes, ReadyLanes& ready) {
  std::ranges::stable_sort(rows_, {}, &Row::position);  // ancestors' before descendants'
  for (const Row& row : rows_) add(row);
  rows_.clear();
  RequestsCall::take(outcomes, ready);
}

void EmbedCall::add(const Row& row) {
  const auto [place, is_new] = sums_.try_emplace(row.segment);
  Sum& sum = place->second;
  if (is_new) {
    const Segment* parent = row.segment->parent;
    while (parent != nullptr && parent->size == 0) parent = parent->parent;
    const auto before = sums_.find(parent);
    sum = before == sums_.end() ? Sum{0, std::vector<double>(row.hidden.size())} : before->second;
  }
  if (row.position != sum.next) return;  // computed again
  for (std::size_t i = 0; i < row.hidden.size(); ++i) sum.values[i] += row.hidden[i];
  ++sum.next;
}

void EmbedCall::finish(Finish ended) {
  ended_ = has_no_room() ? Finish::kBudget : ended;
  if (ended_ != Finish::kRunning) return;
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    BranchState& state = *state_of(branches_[i]);
    session_->count_independent(state, engine_.tree->length(state.tip));
    if (pooling_ == Pooling::kLastToken) continue;
    const Sum& sum = sums_.at(engine_.tree->segment(state.tip));
    for (const double value : sum.values) {
      vectors_[i].push_back(static_cast<float>(value / static_cast<double>(sum.next)));
    }
  }
}

namespace {

void append_normalized(std::span<const float> vector, std::vector<float>& out) {
  double square = 0;
  for (const float x : vector) square += static_cast<double>(x) * x;
  const double length = std::sqrt(square);
  for (const float x : vector) {
    out.push_back(length > 0 ? static_cast<float>(x / length) : 0.0f);
  }
}

using Texts = std::span<const std::vector<Token>* const>;

/// How many of the texts are computed together: as many as take half of the pool, so that none of
/// them has to give way.
std::size_t size_of_group(const EngineCore& engine, Texts texts) {
  const std::int64_t page = engine.info.page_tokens;
  std::int64_t tokens = 0;
  std::size_t size = 0;
  for (; size < texts.size(); ++size) {
    tokens += (std::ssize(*texts[size]) + 2 * page) / page * page;  // and a copy of a shared page
    if (size > 0 && tokens > engine.info.kv_tokens / 2) break;
  }
  return size;
}

/// Each text once, in order.
std::vector<const std::vector<Token>*> sorted(std::span<const std::vector<Token>> texts) {
  std::vector<const std::vector<Token>*> out;
  for (const std::vector<Token>& text : texts) out.push_back(&text);
  std::ranges::sort(out, [](const auto* a, const auto* b) { return *a < *b; });
  out.erase(
      std::unique(out.begin(), out.end(), [](const auto* a, const auto* b) { return *a == *b; }),
      out.end());
  return out;
}

/// Of a group: [text][dim].
std::vector<std::vector<float>> compute(Session& session, Texts texts,
                                        const EmbedOptions& options) {
  const auto call =
      run_call<EmbedCall>(*core_of(session), "embed", texts, options.pooling, options.cancel);
  if (call->ended() == Finish::kCancelled) throw Error("embed: cancelled");
  if (call->ended() != Finish::kRunning) {
    const auto shortage = session.shortage();
    throw Error("embed: " + (shortage ? shortage->message() : "KV pages ran out"));
  }
  return call->vectors();
}

}  // namespace

Embeddings Engine::embed(std::span<const std::vector<Token>> texts,
                         const EmbedOptions& options) const {
  Session session(*this, {.poll = options.poll});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) {
      throw Error("embed: text " + std::to_string(i) + " has no tokens; expected one or more");
    }
    core_->check_tokens(texts[i]);
    check_length(*core_of(session)->engine, std::ssize(texts[i]), "embed");
  }
  const auto all = sorted(texts);
  std::vector<std::vector<float>> vectors;  // of `all`
  while (vectors.size() < all.size()) {
    const Texts left = std::span(all).subspan(vectors.size());
    std::ranges::move(compute(session, left.first(size_of_group(*core_, left)), options),
                      std::back_inserter(vectors));
  }
  Embeddings out;
  out.dim = core_->info.dim;
  for (const std::vector<Token>& text : texts) {
    const auto at = std::ranges::lower_bound(
        all, text, {}, [](const std::vector<Token>* one) -> const auto& { return *one; });
    const std::vector<float>& vector = vectors[static_cast<std::size_t>(at - all.begin())];
    if (options.normalize) {
      append_normalized(vector, out.values);
    } else {
      out.values.insert(out.values.end(), vector.begin(), vector.end());
    }
  }
  return out;
}

Embeddings Engine::embed(std::span<const std::string> texts, const EmbedOptions& options) const {
  std::vector<std::vector<Token>> ids;
  for (const std::string& text : texts) {
    ids.push_back(core_->require_tokenizer().encode(text, options.add_special));
  }
  return embed(ids, options);
}

}  // namespace dendrite
