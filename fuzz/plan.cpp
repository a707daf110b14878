#include "fuzz/plan.h"

#include <algorithm>

#include "fuzz/model.h"

namespace dendrite::fuzz {
namespace {

constexpr int kDeepest = 10;  // compositions of compositions take ever longer to be made again

std::optional<Repair> draw_own_repair(Draws& draws) {
  if (!draws.one_in(4)) return std::nullopt;
  Repair repair{.first = draws.below(20)};
  if (draws.one_in(2)) repair.last = draws.below(4);
  if (draws.one_in(6)) repair.top = 0.25 * static_cast<double>(draws.in(1, 4));
  return repair;
}

/// At most `most` tokens; of its beginning, as often as not.
Span draw_span(Draws& draws, std::int64_t length, std::int64_t most) {
  const std::int64_t begin = draws.one_in(2) ? 0 : draws.below(length + 1);
  const std::int64_t count = draws.one_in(3)
                                 ? length - begin
                                 : draws.below(std::min<std::int64_t>(length - begin, 40) + 1);
  return {begin, begin + std::min(count, most)};
}

}  // namespace

void Plan::add(std::vector<Token> tokens) {
  add_computed(tokens);
  pieces_.push_back(Piece::tokens(std::move(tokens)));
}

void Plan::add(const Engine& engine, const std::string& text) {
  add_computed(engine.encode(text, false));
  pieces_.push_back(Piece::text(text));
}

void Plan::add(const Mirror& of, Span at, const std::optional<Repair>& repair) {
  add_moved(of.history().origin(at.end), at, repair);
  Piece piece = Piece::span(of.branch, at.begin, at.end);
  pieces_.push_back(repair ? std::move(piece).with(*repair) : std::move(piece));
}

void Plan::add(const KnownChunk& chunk, const std::optional<Repair>& repair) {
  Origin from{chunk.left};
  from.tokens.insert(from.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  from.head = std::ssize(from.tokens);
  add_moved(std::move(from), {std::ssize(chunk.left), from.head}, repair);
  Piece piece = Piece::chunk(chunk.chunk);
  pieces_.push_back(repair ? std::move(piece).with(*repair) : std::move(piece));
}

void Plan::add_computed(const std::vector<Token>& tokens) {
  if (tokens.empty()) return;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  parts_.push_back({.from = {tokens, 0}, .is_computed = true});
}

void Plan::add_moved(Origin from, Span at, const std::optional<Repair>& repair) {
  if (at.begin == at.end) return;
  tokens_.insert(tokens_.end(), from.tokens.begin() + at.begin, from.tokens.begin() + at.end);
  parts_.push_back({std::move(from), at, repair.value_or(params_.repair)});
}

std::int64_t Plan::most_moved() const {
  std::int64_t most = 0;
  for (const Recipe::Part& part : parts_) {
    if (part.is_computed) continue;
    const std::int64_t repaired = part.repair.first + part.repair.last.value_or(0);
    most += std::max<std::int64_t>(0, part.at.end - part.at.begin - repaired);
  }
  return most;
}

std::shared_ptr<const Recipe> Plan::recipe() const {
  if (params_.mode == ComposeParams::Mode::kExact) return nullptr;
  auto recipe = std::make_shared<Recipe>();
  recipe->parts = parts_;
  for (const Recipe::Part& part : parts_) {
    recipe->depth = std::max(recipe->depth, 1 + depth_of(part.from.composed));
  }
  return recipe;
}

ComposeParams draw_compose_params(Draws& draws, const Engine& engine) {
  ComposeParams params;
  if (!draws.one_in(4)) params.repair.first = draws.below(6) * draws.below(4);
  if (draws.one_in(2)) params.repair.last = draws.below(4);
  const bool exact = draws.one_in(8);
  const EngineInfo info = engine.info();
  if (exact || info.recurrent_layers > 0 || is_only_exact(info.model_type)) {
    params.mode = ComposeParams::Mode::kExact;
  }
  if (draws.one_in(12)) params.repair.top = 0.25 * static_cast<double>(draws.in(1, 4));
  params.exact_behind = draws.one_in(6);
  return params;
}

std::string draw_text(Draws& draws, const Engine& engine) {
  const char* const kTexts[] = {"", " the", "10 - 4 = 6", "ing\n", "\xE2\x82\xAC and that is all"};
  return engine.info().has_tokenizer ? kTexts[draws.below(std::ssize(kTexts))] : "";
}

void draw_piece(Plan& plan, Draws& draws, const Sources& sources, std::int64_t most) {
  const std::int64_t room = most - plan.length();
  const std::int64_t kind = draws.below(8);
  if (kind >= 3 && !sources.branches.empty()) {
    std::vector<Mirror*> branches = sources.branches;
    const Mirror& of = *draws.pick(branches);
    const Span at = draw_span(draws, of.length(), room);
    if (depth_of(of.composed) < kDeepest) return plan.add(of, at, draw_own_repair(draws));
    return plan.add({of.tokens.begin() + at.begin, of.tokens.begin() + at.end});
  }
  if (kind >= 1 && !sources.chunks.empty()) {
    const KnownChunk& chunk =
        sources.chunks[static_cast<std::size_t>(draws.below(std::ssize(sources.chunks)))];
    if (std::ssize(chunk.left) + std::ssize(chunk.tokens) > room) return;
    // Behind what it was computed behind.
    if (plan.length() == 0 && draws.one_in(2)) plan.add(chunk.left);
    return plan.add(chunk, draw_own_repair(draws));
  }
  if (draws.one_in(3)) {
    const std::string text = draw_text(draws, sources.engine);
    if (std::ssize(text) <= room) plan.add(sources.engine, text);
    return;
  }
  plan.add(draws.tokens(std::min(draws.in(1, draws.one_in(6) ? 60 : 8), room),
                        sources.engine.info().vocab));
}

Mirror* draw_pieces(Plan& plan, Draws& draws, const Sources& sources, std::int64_t most) {
  for (std::int64_t n = draws.in(1, draws.one_in(6) ? 12 : 4); n > 0; --n) {
    draw_piece(plan, draws, sources, most);
  }
  if (plan.length() == 0) plan.add(draws.tokens(1, sources.engine.info().vocab));
  const auto* of = std::get_if<Piece::OfBranch>(&plan.pieces().front().content());
  if (of == nullptr) return nullptr;
  return *std::ranges::find_if(sources.branches,
                               [of](const Mirror* m) { return &m->branch == of->branch; });
}

}  // namespace dendrite::fuzz
