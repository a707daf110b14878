#pragma once

#include <span>
#include <string>
#include <vector>

#include "fuzz/operation_table.h"
#include "fuzz/world.h"

namespace dendrite::fuzz {

/// How a call is cut short, if it is.
struct Cut {
  enum class Kind : std::uint8_t {
    kNone,
    kTokens,  // the session's budget of tokens
    kTime,    // ... of milliseconds
    kBefore,  // cancelled before it begins
    kInside,  // ... from on_token
  };
  Kind kind = Kind::kNone;
  std::int64_t count = 0;  // tokens that may be computed; calls of on_token before it is cancelled

  bool by_budget() const { return kind == Kind::kTokens || kind == Kind::kTime; }
  bool by_cancel() const { return kind == Kind::kBefore || kind == Kind::kInside; }
};
Cut draw_cut(Draws& draws);

/// Makes a Cut happen to the calls of a session while it lives.
class CutCall {
 public:
  CutCall(SessionCore& session, const Cut& cut);
  ~CutCall();
  CutCall(const CutCall&) = delete;
  CutCall& operator=(const CutCall&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  void on_token();

 private:
  SessionCore& session_;
  Cut cut_;
  std::stop_source source_;
};

/// Those that may still grow.
std::vector<Mirror*> short_enough(std::vector<Mirror*> mirrors);

// Operations that compute, in decoding.cpp and compute.cpp; those on the tree alone are in
// operations.cpp.
void decode(World& world, Draws& draws);
void decode_step(World& world, Draws& draws);
/// A decode call that ends when enough branches have ended well.
void race(World& world, Draws& draws);
/// Some branches are decoded, and others ahead of that.
void ahead(World& world, Draws& draws);
/// A decode call with the parameters by which tokens were last drawn ahead.
void take(World& world, Draws& draws);
void score(World& world, Draws& draws);
void select(World& world, Draws& draws);
void expand(World& world, Draws& draws);
/// A whole comparison of one branch with its replay, and of what a fork of it decodes.
void compare(World& world, Draws& draws);

/// Several threads use the engine at once, in overlap.cpp.
void overlap(World& world, Draws& draws);

// Compositions, in composing.cpp.
void register_chunk(World& world, Draws& draws);
void compose(World& world, Draws& draws);
void edit(World& world, Draws& draws);
void compact(World& world, Draws& draws);
void join(World& world, Draws& draws);
/// A branch of the same tokens that nothing was moved to, or how far that is away.
void settle(World& world, Draws& draws);

// Snapshots, in snapshots.cpp.
void save_restore(World& world, Draws& draws);
/// Everything is saved, the engine goes, and a new one takes it up.
void restart(World& world, Draws& draws);

}  // namespace dendrite::fuzz
