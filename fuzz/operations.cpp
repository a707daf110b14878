// The table of operations, and those on sessions, prompts and the tree.
#include "fuzz/operations.h"

#include <algorithm>

#include "dendrite/error.h"
#include "engine/branches/internals.h"
#include "fuzz/draw_calls.h"
#include "fuzz/slow_matcher.h"

namespace dendrite::fuzz {
namespace {

// --- sessions

void open(World& world, Draws& draws) {
  if (std::ssize(world.owners()) >= World::kMostSessions) return;
  const auto seed = static_cast<std::uint64_t>(draws.below(100));
  const Owner& owner = world.open_session(seed, static_cast<std::uint64_t>(draws.below(2)));
  world.say("open session s", owner.number, " with seed ", owner.seed, ", stream ", owner.stream);
}

void close(World& world, Draws& draws) {
  Owner& owner = world.any_session(draws);
  const bool with_branches = draws.one_in(2);
  world.say("close session s", owner.number, with_branches ? " and drop its branches" : "");
  world.close(owner, with_branches);
}

// --- prompts

/// Often one that begins like one before.
std::vector<Token> draw_prompt(World& world, Draws& draws) {
  std::vector<Token> prompt;
  const std::vector<Token>* known = nullptr;
  switch (draws.below(4)) {
    case 1:
      if (const Mirror* mirror = world.any_branch(draws)) known = &mirror->tokens;
      break;
    case 2:
      if (!world.prompts().empty()) known = &draws.pick(world.prompts());
      break;
    default:
      break;
  }
  if (known != nullptr) {
    const std::int64_t shared = std::ssize(*known) - (draws.one_in(4) ? 0 : draws.below(40));
    prompt.assign(known->begin(), known->begin() + std::max<std::int64_t>(0, shared));
    if (!prompt.empty() && draws.one_in(4)) return prompt;  // the very same again
  }
  if (world.has_text() && draws.one_in(8)) {
    std::string text;
    for (std::int64_t n = draws.in(1, 30); n > 0; --n) text += static_cast<char>(draws.in(32, 126));
    const std::vector<Token> tokens = world.engine().encode(text, false);
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    return prompt;
  }
  const std::int64_t most = draws.one_in(40) ? 1300 : draws.one_in(8) ? 300 : 40;
  const std::vector<Token> rest =
      draws.tokens(draws.in(1, most), draws.one_in(3) ? 4 : world.vocab());
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return prompt;
}

void prefill(World& world, Draws& draws) {
  if (world.full()) return;
  Owner& owner = world.any_session(draws);
  std::vector<Token> prompt = draw_prompt(world, draws);
  const std::int64_t most = std::min(world.engine().info().kv_tokens, World::kMostTokens);
  if (std::ssize(prompt) > most) prompt.resize(static_cast<std::size_t>(most));
  Cut cut = draw_cut(draws);
  if (cut.kind == Cut::Kind::kInside) cut.kind = Cut::Kind::kBefore;
  CutCall call(*core_of(*owner.session), cut);
  PrefillOptions options;
  options.cancel = call.token();
  if (draws.one_in(8)) {
    if (const Mirror* other = world.any_branch(draws)) options.stream = other->stream;
  }
  world.say("s", owner.number, ": prefill ", prompt.size(), " tokens");

  Branch branch = owner.session->prefill(prompt, options);
  const std::uint64_t before = options.stream ? 0 : owner.prompts[prompt]++;
  const Finish finish = branch.finish();
  const bool whole = computed_of(branch) == branch.length();
  Mirror& mirror =
      world.mirrors().add_prompt(std::move(branch), owner, prompt, before, options.stream);
  if (finish == Finish::kRunning) {
    require(whole, "a prefill left tokens out and does not say why");
  } else {
    require(finish == Finish::kBudget || (finish == Finish::kCancelled && cut.by_cancel()),
            "a prefill ended for no reason");
    if (finish == Finish::kBudget && !cut.by_budget()) world.refused({&mirror});
    world.counts().cut_calls += cut.kind == Cut::Kind::kNone ? 0 : 1;
  }
  world.say("    -> b", mirror.number, ", ", name_of(finish));
  if (world.prompts().size() < 16) {
    world.prompts().push_back(std::move(prompt));
  } else {
    draws.pick(world.prompts()) = std::move(prompt);
  }
  if (draws.one_in(4)) world.compare_bits(mirror);
}

// --- the tree

void append(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr || mirror->length() > World::kMostTokens - 200) return;
  std::vector<Token> tokens;
  const char* text = nullptr;
  if (world.has_text() && draws.one_in(4)) {
    const char* const kTexts[] = {" the", "10 - 4 = 6", "\xE2\x82\xAC", "ing\n", ""};
    text = kTexts[draws.below(std::ssize(kTexts))];
    tokens = mirror->branch.encode(text);
  } else {
    tokens = draws.tokens(draws.in(1, draws.one_in(6) ? 150 : 6), world.vocab());
  }
  if (mirror->spans.constraint() != nullptr && !draws.one_in(3)) {
    text = nullptr;
    tokens = draw_allowed(*mirror, draws.in(1, 12), draws);
  }
  world.say("b", mirror->number, ": append ", tokens.size(), " tokens to ", mirror->length());
  if (mirror->append(tokens, text)) return;
  ++world.counts().refused_tokens;
  world.say("    its constraint refuses one");
}

void constrain(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr || !world.has_text()) return;
  const std::optional<Constraint> constraint = draw_constraint(draws);
  world.say("b", mirror->number, ": ",
            constraint ? "constrain by the " + std::string(name_of(constraint->kind())) + " " +
                             constraint->text()
                       : "unconstrain",
            " at ", mirror->length());
  mirror->constrain(constraint);
}

void fork(World& world, Draws& draws) {
  Mirror* parent = world.any_branch(draws);
  if (parent == nullptr || world.full()) return;
  if (draws.one_in(3)) {
    const int count = static_cast<int>(draws.in(0, 5));
    world.say("b", parent->number, ": fork ", count, " times");
    for (Branch& child : parent->branch.fork(count)) {
      world.mirrors().add_fork(std::move(child), *parent, parent->tokens, parent->logprob);
    }
    return;
  }
  ForkOptions options;
  if (draws.one_in(6)) options.stream = world.any_branch(draws)->stream;
  const Mirror& child = world.mirrors().add_fork(parent->branch.fork(options), *parent,
                                                 parent->tokens, parent->logprob, options.stream);
  world.say("b", parent->number, ": fork -> b", child.number);
}

void rewind(World& world, Draws& draws) {
  Mirror* parent = world.any_branch(draws);
  if (parent == nullptr || world.full()) return;
  // Near the end as often as anywhere.
  const std::int64_t reach =
      draws.one_in(2) ? std::min<std::int64_t>(parent->length(), 40) : parent->length();
  const std::int64_t length = parent->length() - draws.below(reach);
  std::vector<Token> tokens(parent->tokens.begin(), parent->tokens.begin() + length);
  ForkOptions options;
  if (draws.one_in(6)) options.stream = parent->stream;
  Mirror& child = world.mirrors().add_fork(parent->branch.at(length, options), *parent,
                                           std::move(tokens), 0, options.stream);
  ++world.counts().rewinds;
  world.say("b", parent->number, ": at ", length, " of ", parent->length(), " -> b", child.number);
}

void prune(World& world, Draws& draws) {
  for (std::int64_t n = draws.one_in(6) ? draws.in(1, 12) : draws.in(1, 2); n > 0; --n) {
    Mirror* mirror = world.any_branch(draws);
    if (mirror == nullptr) return;
    world.say("b", mirror->number, ": prune");
    if (draws.one_in(2)) mirror->branch.prune();
    world.drop(*mirror);
  }
}

void set_priority(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr) return;
  mirror->priority = static_cast<int>(draws.in(-2, 2));
  mirror->branch.set_priority(mirror->priority);
  world.say("b", mirror->number, ": priority ", mirror->priority);
}

/// Holds come to an end with release, or some operations later.
void hold(World& world, Draws& draws) {
  Mirror* mirror = world.any_branch(draws);
  if (mirror == nullptr) return;
  const std::int64_t operations = draws.below(20);
  world.say("b", mirror->number, ": hold for ", operations, " operations");
  if (operations == 0) {
    mirror->branch.release();
  } else {
    mirror->branch.hold(std::chrono::milliseconds(operations));
  }
}

// --- mistakes

/// A token that the branch's constraint refuses, in all ways to add it.
void refused(Mirror& mirror, Draws& draws) {
  const SlowMatcher matcher = *SlowMatcher::of(*mirror.core().engine, mirror.history());
  const std::int64_t vocab = mirror.core().engine->vocab();
  auto token = static_cast<Token>(draws.below(vocab));
  for (std::int64_t tried = 0; matcher.count_accepted(std::span(&token, 1)) > 0; ++tried) {
    if (tried == vocab) return;
    token = static_cast<Token>((token + 1) % vocab);
  }
  must_throw("append of a token that is refused", [&] { mirror.branch.append({&token, 1}); });
  const std::vector<TokenLogprob> children[] = {{{token, 0}}};
  must_throw("a child by a token that is refused", [&] {
    (void)mirror.owner->session->children(std::span(&mirror.branch, 1), children);
  });
}

/// What a caller may not do throws an Error and changes nothing.
void misuse(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr) return;
  Session& session = *mirror->owner->session;
  Branch& branch = mirror->branch;
  const auto outside = static_cast<Token>(world.vocab());
  world.say("b", mirror->number, ": mistakes");
  const bool constrained = mirror->spans.constraint() != nullptr;
  switch (draws.below(12)) {
    case 0:
      return must_throw("at 0", [&] { (void)branch.at(0); });
    case 1:
      return must_throw("at past the end", [&] { (void)branch.at(mirror->length() + 1); });
    case 2:
      return must_throw("append outside the vocabulary", [&] {
        branch.append(std::vector<Token>{1, outside});
      });
    case 3:
      return must_throw("decode at a temperature below 0",
                        [&] { (void)session.decode(branch, {.temperature = -1.0}); });
    case 4:
      return must_throw("score of an empty continuation", [&] {
        (void)branch.score_tokens({{1}, {}});
      });
    case 5:
      return must_throw("expand without a bound",
                        [&] { (void)session.expand(std::span(&branch, 1), {}); });
    case 6:
      return must_throw("prefill of nothing", [&] { (void)session.prefill(std::vector<Token>{}); });
    case 8:
      return must_throw("no grammar", [&] { branch.constrain(Constraint::regex("(")); });
    case 9:
      if (!constrained) return;
      return must_throw("one constraint of the branch and one of the call", [&] {
        (void)session.decode(branch, {.constraint = Constraint::json_object()});
      });
    case 10:
    case 11:
      if (constrained) refused(*mirror, draws);
      return;
    default: {
      const auto tokens = static_cast<std::size_t>(world.engine().info().kv_tokens + 1);
      return must_throw("prefill of more than the pool holds",
                        [&] { (void)session.prefill(std::vector<Token>(tokens, 3)); });
    }
  }
}

constexpr Operation kOperations[] = {
    {"open", 2, open},
    {"close", 1, close},
    {"prefill", 10, prefill},
    {"append", 10, append},
    {"fork", 14, fork},
    {"at", 10, rewind},
    {"decode", 16, decode},
    {"decode_step", 8, decode_step},
    {"score", 8, score},
    {"select", 3, select},
    {"expand", 5, expand},
    {"prune", 14, prune},
    {"misuse", 2, misuse},
    {"compare", 5, compare},
    {"priority", 4, set_priority},
    {"save_restore", 3, save_restore},
    {"restart", 1, restart},
    {"race", 5, race},
    {"hold", 4, hold},
    {"ahead", 5, ahead},
    {"take", 8, take},
    {"overlap", 5, overlap},
    {"constrain", 12, constrain},
    {"register_chunk", 3, register_chunk},
    {"compose", 8, compose},
    {"edit", 3, edit},
    {"compact", 2, compact},
    {"join", 3, join},
    {"settle", 1, settle},
};
static_assert(std::size(kOperations) <= kMostOperations);

}  // namespace

std::span<const Operation> operations() {
  return kOperations;
}

// --- calls that end early

Cut draw_cut(Draws& draws) {
  switch (draws.below(20)) {
    case 16:
    case 17:
      return {Cut::Kind::kTokens, draws.in(1, 30)};
    case 18:
      return {draws.one_in(2) ? Cut::Kind::kTime : Cut::Kind::kBefore, 0};
    case 19:
      return {Cut::Kind::kInside, draws.in(1, 8)};
    default:
      return {};
  }
}

CutCall::CutCall(SessionCore& session, const Cut& cut) : session_(session), cut_(cut) {
  Budget& budget = session_.options.budget;
  if (cut.kind == Cut::Kind::kTokens) budget.tokens = session_.spent_tokens() + cut.count;
  if (cut.kind == Cut::Kind::kTime) budget.milliseconds = 1e-9;
  if (cut.kind == Cut::Kind::kBefore) source_.request_stop();
}

CutCall::~CutCall() {
  session_.options.budget = {};
}

void CutCall::on_token() {
  if (cut_.kind == Cut::Kind::kInside && --cut_.count <= 0) source_.request_stop();
}

}  // namespace dendrite::fuzz
