#include "fuzz/mirrors.h"

#include <algorithm>

#include "core/hash.h"
#include "core/rng.h"
#include "engine/branches/internals.h"
#include "fuzz/slow_matcher.h"

namespace dendrite::fuzz {

namespace {

/// How many there are, and the last ones.
std::string end_of(std::span<const Token> tokens) {
  std::string out = std::to_string(tokens.size()) + ", at last";
  for (const Token token : tokens.last(std::min<std::size_t>(tokens.size(), 8))) {
    out += " " + std::to_string(token);
  }
  return out;
}

}  // namespace

void Mirror::check() const {
  const auto same = [this](bool holds, const char* what) {
    if (!holds) throw Violation("branch b" + std::to_string(number) + what);
  };
  same(branch.valid(), " is empty");
  if (branch.tokens() != tokens) {
    throw Violation("branch b" + std::to_string(number) + " has other tokens than it was given: " +
                    end_of(branch.tokens()) + "; expected " + end_of(tokens));
  }
  same(branch.length() == length(), " has another length than its tokens");
  same(branch.stream() == stream, " has another random stream than its history gives");
  same(branch.prompt_length() == prompt_length, " has another prompt length");
  same(branch.priority() == priority, " has another priority");
  same(branch.logprob() == logprob, " has another log-prob than its tokens' sum");
  const Constraint* constraint = spans.constraint();
  same(branch.constraint() == (constraint == nullptr ? std::nullopt : std::optional(*constraint)),
       " is under another constraint than it was given");
  check_composition();
}

void Mirror::check_composition() const {
  const auto same = [this](bool holds, const char* what) {
    if (!holds) throw Violation("branch b" + std::to_string(number) + what);
  };
  const KvTree& tree = *core().engine->tree;
  std::int64_t moved = 0;
  for (const Segment* s = tree.segment(state_of(branch)->tip); s != nullptr; s = s->parent) {
    if (s->moved()) moved += s->end() - s->begin;
  }
  const Composition report = branch.composition();
  same(report.kept + report.moved + report.repaired + report.computed == length(),
       " is composed of more or fewer tokens than it has");
  same(report.moved <= moved, " says that more was moved than was");
  same((report.exactness == Exactness::kComposed) == (moved > 0),
       " says wrongly whether it is exact");
  same(moved == 0 || composed != nullptr, " has tokens that were moved, and was not composed");
}

void Mirror::constrain(const std::optional<Constraint>& constraint) {
  if (constraint) {
    branch.constrain(*constraint);
  } else {
    branch.unconstrain();
  }
  spans.add(length(), constraint);
}

bool Mirror::append(std::span<const Token> more, const char* text) {
  const auto call = [&] {
    if (text != nullptr) {
      branch.append(text);
    } else {
      branch.append(more);
    }
  };
  const auto matcher = SlowMatcher::of(*core().engine, history());
  if (matcher && matcher->count_accepted(more) < more.size()) {
    must_throw("append of what the constraint refuses", call);
    return false;
  }
  call();
  tokens.insert(tokens.end(), more.begin(), more.end());
  return true;
}

bool any_constrained(const std::vector<Mirror*>& mirrors) {
  return std::ranges::any_of(
      mirrors, [](const Mirror* mirror) { return mirror->spans.constraint() != nullptr; });
}

std::string names_of(const std::vector<Mirror*>& mirrors) {
  std::string out;
  for (const Mirror* mirror : mirrors) {
    out.append(out.empty() ? "b" : " b").append(std::to_string(mirror->number));
  }
  return out;
}

std::vector<Mirror*> Mirrors::of(const Owner& owner) const {
  std::vector<Mirror*> out;
  for (const auto& mirror : all_) {
    if (mirror->owner == &owner) out.push_back(mirror.get());
  }
  return out;
}

Mirror& Mirrors::add(Branch branch, Owner& owner, History history, Lineage lineage) {
  auto mirror = std::make_unique<Mirror>();
  mirror->branch = std::move(branch);
  mirror->owner = &owner;
  mirror->tokens = std::move(history.tokens);
  mirror->spans = std::move(history.spans);
  mirror->prompt_length = history.prompt_length;
  mirror->composed = std::move(history.composed);
  mirror->stream = history.stream;
  mirror->lineage = std::move(lineage);
  mirror->number = next_number_++;
  all_.push_back(std::move(mirror));
  return *all_.back();
}

Mirror& Mirrors::add_prompt(Branch branch, Owner& owner, const std::vector<Token>& prompt,
                            std::uint64_t before, std::optional<std::uint64_t> given) {
  Lineage lineage{.seed = owner.seed,
                  .session_stream = owner.stream,
                  .prompt = prompt,
                  .before = before,
                  .stream = given,
                  .births = {}};
  const std::uint64_t stream = given.value_or(prompt_stream(
      owner.seed, owner.stream, hash_bytes(std::as_bytes(std::span(prompt))), before));
  return add(std::move(branch), owner, {owner.seed, stream, std::ssize(prompt), prompt},
             std::move(lineage));
}

Mirror& Mirrors::add_composed(Branch branch, Owner& owner, Mirror* parent,
                              std::vector<Token> tokens, std::shared_ptr<const Recipe> recipe) {
  ++owner.compositions;
  if (parent == nullptr) {
    const std::uint64_t before = owner.prompts[tokens]++;
    Mirror& mirror = add_prompt(std::move(branch), owner, tokens, before, {});
    mirror.composed = std::move(recipe);
    return mirror;
  }
  const auto length = std::ssize(tokens);
  const Lineage::Birth birth{.length = length, .forks = parent->forks};
  const std::uint64_t stream =
      fork_stream(parent->stream, parent->forks++, static_cast<std::uint64_t>(length));
  return add_birth(std::move(branch), *parent,
                   {owner.seed, stream, length, std::move(tokens), {}, std::move(recipe)}, birth);
}

History Mirrors::history_of_birth(const Mirror& parent, std::vector<Token> tokens,
                                  std::int64_t length, std::uint64_t stream) {
  History history = parent.history();
  history.stream = stream;
  history.spans.rewind(length);
  history.prompt_length = std::min(parent.prompt_length, length);
  history.tokens = std::move(tokens);
  return history;
}

Mirror& Mirrors::add_birth(Branch child, Mirror& parent, History history,
                           const Lineage::Birth& birth) {
  ++counts_.forks;
  Lineage lineage = parent.lineage;
  lineage.births.push_back(birth);
  require(child.parent() == parent.branch.id() || !parent.branch.valid(),
          "a fork names another parent");
  Mirror& mirror = add(std::move(child), *parent.owner, std::move(history), std::move(lineage));
  mirror.priority = parent.priority;
  return mirror;
}

Mirror& Mirrors::add_fork(Branch child, Mirror& parent, std::vector<Token> tokens, double logprob,
                          std::optional<std::uint64_t> stream) {
  const auto length = std::ssize(tokens);
  const Lineage::Birth birth{.length = length, .forks = parent.forks, .stream = stream};
  if (!stream) {
    stream = fork_stream(parent.stream, parent.forks++, static_cast<std::uint64_t>(length));
  }
  Mirror& mirror = add_birth(std::move(child), parent,
                             history_of_birth(parent, std::move(tokens), length, *stream), birth);
  mirror.logprob = logprob;
  return mirror;
}

Mirror& Mirrors::add_child(Branch child, Mirror& parent, const TokenLogprob& token) {
  const std::int64_t length = parent.length();
  const std::uint64_t stream =
      token_stream(parent.stream, token.id, static_cast<std::uint64_t>(length));
  std::vector<Token> tokens = parent.tokens;
  tokens.push_back(token.id);
  Mirror& mirror = add_birth(std::move(child), parent,
                             history_of_birth(parent, std::move(tokens), length, stream),
                             {.length = length, .token = token.id});
  mirror.logprob = parent.logprob + token.logprob;
  return mirror;
}

void Mirrors::drop(const Mirror& mirror) {
  (void)take(mirror);
}

std::unique_ptr<Mirror> Mirrors::take(const Mirror& mirror) {
  const auto place =
      std::ranges::find_if(all_, [&](const auto& each) { return each.get() == &mirror; });
  std::unique_ptr<Mirror> out = std::move(*place);
  all_.erase(place);
  return out;
}

}  // namespace dendrite::fuzz
