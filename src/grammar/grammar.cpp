#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/bridge.h"

namespace dendrite {
namespace {

dn_grammar_kind kind_of(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::Kind::kJsonSchema:
      return DN_GRAMMAR_JSON_SCHEMA;
    case Constraint::Kind::kRegex:
      return DN_GRAMMAR_REGEX;
    case Constraint::Kind::kLark:
      return DN_GRAMMAR_LARK;
    case Constraint::Kind::kChoice:
      return DN_GRAMMAR_CHOICE;
  }
  return DN_GRAMMAR_LARK;
}

}  // namespace

void MatcherFamily::Free::operator()(dn_matcher* matcher) const {
  dn_matcher_free(matcher);
}

Grammar::Grammar(std::shared_ptr<const Vocabulary> vocabulary, Constraint constraint, int families)
    : vocabulary_(std::move(vocabulary)),
      constraint_(std::move(constraint)),
      most_(static_cast<std::size_t>(std::max(families, 1))) {
  const std::string& text = constraint_.text();
  dn_matcher* matcher = nullptr;
  if (dn_matcher_open(vocabulary_->bridge(), kind_of(constraint_.kind()), text.data(), text.size(),
                      &matcher) < DN_OK) {
    throw ConstraintError("constraint (" + std::string(name_of(constraint_.kind())) +
                          "): " + dn_last_error());
  }
  spare_.reset(matcher);
  families_.push_back(make_family());
}

std::shared_ptr<MatcherFamily> Grammar::make_family() const {
  auto family = std::make_shared<MatcherFamily>();
  family->seed = fork_matcher(*spare_, Fork::kApart);
  return family;
}

std::shared_ptr<MatcherFamily> Grammar::family_for(
    const std::shared_ptr<MatcherFamily>& current) const {
  // (Another one has the way so far to go again: not for every difference.)
  constexpr int kLess = 2;
  const std::scoped_lock lock(mutex_);
  const auto matchers = [](const std::shared_ptr<MatcherFamily>& family) {
    return family->matchers.load();
  };
  const std::shared_ptr<MatcherFamily>& emptiest =
      *std::ranges::min_element(families_, {}, matchers);
  const bool stays = current != nullptr && !current->broken;
  if (!stays) return emptiest;
  const bool may_have_more = emptiest->matchers > 0 && families_.size() < most_;
  const int least = may_have_more ? 0 : emptiest->matchers.load();
  if (current->matchers < least + kLess) return current;
  if (!may_have_more) return emptiest;
  families_.push_back(make_family());
  return families_.back();
}

std::shared_ptr<MatcherFamily> Grammar::fresh_family() const {
  const std::scoped_lock lock(mutex_);
  std::erase_if(families_, [](const auto& family) { return family->broken.load(); });
  families_.push_back(make_family());
  return families_.back();
}

}  // namespace dendrite
