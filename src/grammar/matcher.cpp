#include "grammar/matcher.h"

#include <algorithm>
#include <string>
#include <utility>

#include "grammar/bridge.h"

namespace dendrite {

/// A matcher of the bridge and the way it came. Guarded by its family's mutex, but for what never
/// changes.
struct Matcher::Track {
  Track(std::shared_ptr<const Grammar> of, std::shared_ptr<MatcherFamily> in)
      : grammar(std::move(of)), family(std::move(in)) {
    ++family->matchers;
  }
  ~Track() { --family->matchers; }
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;

  /// Where a track of its own leaves this one.
  struct Exit {
    std::size_t length;
    Token token;
    std::weak_ptr<Track> to;
  };

  const std::shared_ptr<const Grammar> grammar;
  const std::shared_ptr<MatcherFamily> family;
  MatcherFamily::Handle handle;  // after `tokens`
  std::vector<Token> tokens;
  MaskRef mask;  // after `tokens`, once somebody wanted it
  std::vector<Exit> exits;
};

namespace {

using Lock = std::scoped_lock<std::mutex>;

/// The bridge's object has come to a limit, and is of no use any more.
struct Spent {
  std::string reason;
};

void check(dn_status status) {
  if (status < DN_OK) throw Spent{dn_last_error()};
}

/// Those of `tokens` that it takes.
std::size_t accept_all(dn_matcher* matcher, std::span<const Token> tokens) {
  std::size_t accepted = 0;
  check(dn_matcher_accept(matcher, tokens.data(), tokens.size(), &accepted));
  return accepted;
}

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) {
  std::shared_ptr<MatcherFamily> family = grammar->family_for(nullptr);
  track_ = std::make_shared<Track>(std::move(grammar), std::move(family));
  const Lock lock(track_->family->mutex);
  track_->handle = fork_matcher(*track_->family->seed, Fork::kSameFamily);
}

const std::shared_ptr<const Grammar>& Matcher::grammar() const {
  return track_->grammar;
}

const void* Matcher::family() const {
  return track_->family.get();
}

Matcher Matcher::at(std::int64_t length) const {
  Matcher earlier = *this;
  earlier.ended_ = ended_ && length > length_;
  earlier.length_ = std::min(length, length_);
  return earlier;
}

/// `ask`, once more from the start where others have spent the family's lexer.
template <typename Ask>
auto Matcher::compute(Ask ask) {
  try {
    return ask();
  } catch (const Spent&) {
    start_again();
  }
  try {
    return ask();
  } catch (const Spent& spent) {
    throw GrammarLimit("constraint (" + std::string(name_of(grammar()->constraint().kind())) +
                       "): too much work for one token: " + spent.reason);
  }
}

/// `ask` about a track that ends here.
template <typename Ask>
auto Matcher::ask_here(Ask ask) {
  return compute([&] {
    for (;;) {
      const std::shared_ptr<Track> here = track_;
      {
        const Lock lock(here->family->mutex);
        if (is_at_end()) return ask(*here);
      }
      leave_track();
    }
  });
}

bool Matcher::accept(Token token) {
  if (ended_) return false;
  if (grammar()->vocabulary().is_end(token)) return ended_ = is_accepting();
  return compute([&] {
    const std::shared_ptr<Track> here = track_;
    {
      const Lock lock(here->family->mutex);
      if (follow(token)) return true;
      if (is_at_end()) return accept_here(token);
    }
    const auto length = static_cast<std::size_t>(length_);
    leave_track();
    {
      const Lock lock(track_->family->mutex);
      if (!accept_here(token)) return false;
    }
    const Lock lock(here->family->mutex);
    std::erase_if(here->exits, [](const Track::Exit& exit) { return exit.to.expired(); });
    here->exits.push_back({length, token, track_});
    return true;
  });
}

std::size_t Matcher::count_accepted(std::span<const Token> tokens) const {
  Matcher ahead = *this;
  std::size_t accepted = 0;
  while (accepted < tokens.size() && ahead.accept(tokens[accepted])) ++accepted;
  return accepted;
}

MaskRef Matcher::mask() {
  const std::int64_t vocab = grammar()->vocabulary().size();
  std::vector<std::uint32_t> words(static_cast<std::size_t>((vocab + 31) / 32));
  if (ended_) return std::make_shared<const TokenMask>(std::move(words));
  return ask_here([&](Track& track) {
    if (track.mask == nullptr) {
      check(dn_matcher_mask(track.handle.get(), words.data(), words.size()));
      track.mask = std::make_shared<const TokenMask>(std::move(words));
    }
    return track.mask;
  });
}

std::optional<Token> Matcher::forced() {
  if (ended_) return std::nullopt;
  return ask_here([](const Track& track) -> std::optional<Token> {
    dn_ids tokens{};
    check(dn_matcher_forced(track.handle.get(), &tokens));
    std::optional<Token> first;
    if (tokens.size > 0) first = tokens.data[0];
    dn_ids_free(tokens);
    return first;
  });
}

bool Matcher::is_complete() {
  return ended_ || ask_here([](const Track& track) {
           return dn_matcher_is_complete(track.handle.get()) != 0;
         });
}

bool Matcher::is_accepting() {
  return ended_ || ask_here([](const Track& track) {
           return dn_matcher_is_accepting(track.handle.get()) != 0;
         });
}

bool Matcher::is_at_end() const {
  return track_->tokens.size() == static_cast<std::size_t>(length_);
}

/// Where the track, or one that left it here, goes on by that token.
bool Matcher::follow(Token token) {
  const auto length = static_cast<std::size_t>(length_);
  if (length < track_->tokens.size() && track_->tokens[length] == token) {
    ++length_;
    return true;
  }
  for (const Track::Exit& exit : track_->exits) {
    if (exit.length != length || exit.token != token) continue;
    if (std::shared_ptr<Track> other = exit.to.lock()) {
      track_ = std::move(other);  // (its first tokens never change)
      ++length_;
      return true;
    }
  }
  return false;
}

bool Matcher::accept_here(Token token) {
  if (accept_all(track_->handle.get(), std::span(&token, 1)) == 0) return false;
  track_->tokens.push_back(token);
  track_->mask.reset();
  ++length_;
  return true;
}

/// To one of its own, which ends here.
void Matcher::leave_track() {
  const std::shared_ptr<Track> left = track_;
  auto own = std::make_shared<Track>(left->grammar, left->grammar->family_for(left->family));
  {
    const Lock lock(left->family->mutex);
    const std::size_t past = left->tokens.size() - static_cast<std::size_t>(length_);
    own->tokens.assign(left->tokens.begin(), left->tokens.begin() + length_);
    if (own->family == left->family) {
      own->handle = fork_matcher(*left->handle, Fork::kSameFamily);
      check(dn_matcher_rewind(own->handle.get(), past));
      track_ = std::move(own);
      return;
    }
  }
  const Lock lock(own->family->mutex);
  own->handle = fork_matcher(*own->family->seed, Fork::kSameFamily);
  accept_all(own->handle.get(), own->tokens);
  track_ = std::move(own);
}

/// In a family that is not spent.
void Matcher::start_again() {
  const std::shared_ptr<Track> left = track_;
  left->family->broken = true;
  auto own = std::make_shared<Track>(left->grammar, left->grammar->fresh_family());
  {
    const Lock lock(left->family->mutex);
    own->tokens.assign(left->tokens.begin(), left->tokens.begin() + length_);
  }
  const Lock lock(own->family->mutex);
  own->handle = fork_matcher(*own->family->seed, Fork::kSameFamily);
  try {
    accept_all(own->handle.get(), own->tokens);
  } catch (const Spent&) {  // it is asked again, and says why
  }
  track_ = std::move(own);
}

}  // namespace dendrite
