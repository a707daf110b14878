#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dendrite/types.h"

// Context that is composed: a branch whose text is put together of pieces, some of which have K and
// V already, computed elsewhere. These are *moved*: V is copied and K rotated to its new position
// (RoPE), into pages of the branch's own. What was moved knows nothing of the text before it here,
// so a composition is not what computing the whole text would give: it says how much of it was
// moved, the error can be estimated, and it is lessened by computing parts of each piece again
// (Repair). Composing the same again gives the same bits, always.
namespace dendrite {

class Branch;
struct ChunkHold;

/// What a branch's K and V are, against those of its tokens computed from scratch.
enum class Exactness : std::uint8_t {
  kExactPrefix,  ///< the same
  kComposed,     ///< some were computed in another context and moved here
};
/// "exact" or "composed"
const char* name_of(Exactness exactness);

/// Which tokens of a piece that is moved are computed instead, where they are now.
struct Repair {
  /// Of each piece, the first so many tokens: they hold what a piece has for its own beginning of
  /// text, which hurts most where it is in the middle of one (Hu et al. 2024, arXiv:2410.15332),
  /// and references to what is before it. The least of 0, 4, 8, 16, 32 and 64 with which the model
  /// of contexts (models/dendrite-compose, of bytes) follows those.
  std::int64_t first = 32;
  /// The last so many: conclusions stand at ends. Where text before the piece was replaced, edit()
  /// takes 4 unless it is given.
  std::optional<std::int64_t> last{};
  /// Of what is still moved then, so large a part more, 0 to 1: the groups of 16 tokens whose K and
  /// V of the second layer differ most from what they are here (Yao et al. 2024, arXiv:2405.16444).
  /// To find them, all tokens go through two layers; the choice depends on the pieces alone.
  double top = 0;
};

/// How far a composition is from computing all of it, as KL(exact || composed) of next-token
/// distributions in nats, over several positions.
struct Estimate {
  enum class Kind : std::uint8_t {
    kStep,   ///< against the same composition with twice the repair: an estimate, no bound
    kAudit,  ///< against the exact branch
  };
  Kind kind = Kind::kStep;
  double kl_mean = 0;
  double kl_p95 = 0;
  double kl_max = 0;
  double top1 = 0;  ///< the part of positions at which both say the same token is the likeliest
  int positions = 0;
};

/// What a branch is composed of, in tokens; their sum is its length.
struct Composition {
  Exactness exactness = Exactness::kExactPrefix;
  std::int64_t kept = 0;      ///< from its beginning on, as they were in the branch it is a fork of
  std::int64_t moved = 0;     ///< from elsewhere
  std::int64_t repaired = 0;  ///< of pieces that were moved, but computed here
  std::int64_t computed = 0;  ///< given as text, or grown since
  std::int64_t dropped = 0;   ///< of the branch that was edited, not in this one
  int moves = 0;              ///< most often a K was rotated, or what it was computed behind
  /// Of its first tokens, exact K and V are there as well (ComposeParams::exact_behind).
  std::int64_t exact_behind = 0;
  std::optional<Estimate> estimate{};
  std::string note{};  ///< for people: what to know of it
};

/// What a chunk is computed behind.
struct ChunkParams {
  /// The system prompt, say: the first chunk behind the same tokens is an exact fork of it, and no
  /// chunk is the beginning of a text. Empty: `stub`.
  std::vector<Token> prefix{};
  /// Without a prefix: behind 4 BOS tokens (newlines, where there is no BOS) rather than nothing.
  bool stub = true;
  std::string name{};  ///< for people
  std::stop_token cancel{};
};

/// Text with K and V of its own, which any number of compositions take (Session::register_chunk). A
/// handle; copies are the same chunk. While handles live its tokens are known, and its K and V go
/// after those of chunks without.
class Chunk {
 public:
  Chunk() = default;
  bool valid() const { return hold_ != nullptr; }
  std::int64_t length() const;  ///< tokens, without what it was computed behind
  std::vector<Token> tokens() const;
  std::string name() const;
  std::string key() const;  ///< SHA-256 of its content, in hex

 private:
  friend struct Internals;
  explicit Chunk(std::shared_ptr<const ChunkHold> hold) : hold_(std::move(hold)) {}
  std::shared_ptr<const ChunkHold> hold_;
};

/// Positions [begin, end).
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Span&) const = default;
};

/// Part of a composition.
class Piece {
 public:
  struct OfBranch {
    const Branch* branch = nullptr;
    Span at{};
  };
  using Content = std::variant<std::string, std::vector<Token>, Chunk, OfBranch>;

  /// Computed. Text is encoded as what follows the pieces before it, see Engine::encode_after.
  static Piece text(std::string text) { return Piece(std::move(text)); }
  static Piece tokens(std::vector<Token> tokens) { return Piece(std::move(tokens)); }
  /// Moved; or kept, where everything before it is what it was computed behind.
  static Piece chunk(Chunk chunk) { return Piece(std::move(chunk)); }
  /// The same of positions [begin, end) of a live branch of the session, which is not changed. The
  /// handle must stay where it is until the call.
  static Piece span(const Branch& branch, std::int64_t begin, std::int64_t end) {
    return Piece(OfBranch{&branch, {begin, end}});
  }
  /// With a repair of its own.
  Piece&& with(Repair repair) && {
    repair_ = repair;
    return std::move(*this);
  }

  const Content& content() const { return content_; }
  const std::optional<Repair>& repair() const { return repair_; }

 private:
  explicit Piece(Content content) : content_(std::move(content)) {}
  Content content_;
  std::optional<Repair> repair_;
};

struct ComposeParams {
  enum class Mode : std::uint8_t {
    kComposed,
    kExact,  ///< nothing is moved: bit for bit what prefill of the same tokens gives
  };
  Repair repair{};
  Mode mode = Mode::kComposed;
  /// > 0: the error is estimated, and while it is above this, `first` is doubled; beyond 64 the
  /// branch is computed exactly, and the report says so. 0: no estimate.
  double target_kl = 0;
  /// The exact branch of the same tokens is computed as well, by and by: in rows that the steps of
  /// other calls have to spare, and in pages that nobody wants, while the branch lives. Once it is
  /// there, settle() computes nothing, and audit() only what it compares. Its rows count against no
  /// budget. Requires the prefix index (EngineOptions::prefix_index), else nothing is done.
  bool exact_behind = false;
  std::stop_token cancel{};
};

/// One change of a context. Without `with`, the span is dropped; at an empty span, text is
/// inserted.
struct Edit {
  Span at{};
  std::vector<Piece> with{};
};

struct JoinParams : ComposeParams {
  std::string before_each{};  ///< text between the siblings' own
  std::string after_all{};    ///< and after them
};

}  // namespace dendrite
