// Composed context: what a session offers of it (dendrite/compose.h).
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>

#include "dendrite/error.h"
#include "dendrite/session.h"
#include "engine/calls/prefill_call.h"
#include "engine/calls/prompt_branch.h"
#include "engine/context/chunk_call.h"
#include "engine/context/compose_call.h"
#include "engine/context/divergence.h"
#include "engine/context/top_repair.h"
#include "engine/loop/run_call.h"
#include "text/chunk_text.h"

namespace dendrite {
namespace {

/// Where text before it was replaced, so many tokens at the end of a piece are computed again.
constexpr std::int64_t kLastBehindReplaced = 4;

std::string text_of(Span span) {
  std::string text = "[";
  text += std::to_string(span.begin) + ", " + std::to_string(span.end);
  return text + ")";
}

/// Pieces with their tokens and sources found, for one composition or several.
class Resolver {
 public:
  Resolver(const SessionCore& session, const char* what) : session_(session), what_(what) {}

  /// Encodes each text as what follows the pieces before it.
  static std::vector<Piece> encoded(const SessionCore& session, std::span<const Piece> pieces,
                                    const char* what) {
    std::vector<Piece> out(pieces.begin(), pieces.end());
    const bool has_text = std::ranges::any_of(out, [](const Piece& piece) {
      return std::holds_alternative<std::string>(piece.content());
    });
    if (!has_text) return out;
    const Tokenizer& tokenizer = session.engine->require_tokenizer();
    std::vector<Token> before;  // the last tokens of what is in front
    for (Piece& piece : out) {
      if (const auto* text = std::get_if<std::string>(&piece.content())) {
        piece = Piece::tokens(tokenizer.encode_after(before, *text));
      }
      const std::vector<Token> last = last_of(session, piece, what);
      before.insert(before.end(), last.begin(), last.end());
      const std::int64_t surplus = std::ssize(before) - Tokenizer::kBefore;
      if (surplus > 0) before.erase(before.begin(), before.begin() + surplus);
    }
    return out;
  }

  std::vector<PlainPiece> resolve(std::span<const Piece> pieces, const Repair& usual)
      DENDRITE_REQUIRES(kTreeLock) {
    for (const Piece& piece : pieces) {
      if (const auto* of = std::get_if<Piece::OfBranch>(&piece.content())) look_at(*of);
    }
    std::vector<PlainPiece> out;
    for (const Piece& piece : pieces) out.push_back(resolve(piece, piece.repair().value_or(usual)));
    return out;
  }

  /// Counts that they are composed.
  void count_reads() const DENDRITE_REQUIRES(kTreeLock) {
    for (ChunkEntry* entry : chunks_) session_.engine->chunks->read(*entry);
  }

 private:
  /// Up to kBefore tokens that a piece ends with.
  static std::vector<Token> last_of(const SessionCore& session, const Piece& piece,
                                    const char* what) {
    if (const auto* of = std::get_if<Piece::OfBranch>(&piece.content())) {
      const TreeLock lock(session.engine->tree_mutex);
      const KvTree& tree = *session.engine->tree;
      const BranchState& state = session.require_live(*of->branch, what);
      const std::int64_t end = std::min(of->at.end, tree.length(state.tip));
      return tree.tokens(state.tip, std::max(of->at.begin, end - Tokenizer::kBefore), end);
    }
    const auto* chunk = std::get_if<Chunk>(&piece.content());
    if (chunk != nullptr && !chunk->valid()) return {};  // resolve() says so
    std::vector<Token> tokens =
        chunk != nullptr ? chunk->tokens() : std::get<std::vector<Token>>(piece.content());
    const std::int64_t surplus = std::ssize(tokens) - Tokenizer::kBefore;
    if (surplus > 0) tokens.erase(tokens.begin(), tokens.begin() + surplus);
    return tokens;
  }
  void look_at(const Piece::OfBranch& of) DENDRITE_REQUIRES(kTreeLock) {
    const BranchState& state = session_.require_live(*of.branch, what_);
    const std::int64_t length = session_.engine->tree->length(state.tip);
    if (of.at.begin < 0 || of.at.begin > of.at.end || of.at.end > length) {
      throw Error(std::string(what_) + ": span " + text_of(of.at) + " of a branch of " +
                  std::to_string(length) + " tokens; expected 0 <= begin <= end <= length");
    }
    std::int64_t& end = ends_[&state];
    end = std::max(end, of.at.end);
  }
  /// One for all pieces of the branch, no longer than they need.
  const std::shared_ptr<const Lineage>& lineage_of(const BranchState& state)
      DENDRITE_REQUIRES(kTreeLock) {
    std::shared_ptr<const Lineage>& lineage = lineages_[&state];
    if (lineage == nullptr) {
      lineage = std::make_shared<const Lineage>(
          session_.engine->tree->lineage(state.tip, ends_.at(&state)));
    }
    return lineage;
  }
  PlainPiece resolve(const Piece& piece, const Repair& repair) DENDRITE_REQUIRES(kTreeLock) {
    if (repair.first < 0 || repair.last.value_or(0) < 0) {
      throw Error(std::string(what_) + ": repair of " + std::to_string(repair.first) +
                  " first and " + std::to_string(repair.last.value_or(0)) +
                  " last tokens; expected no less than 0");
    }
    if (!(repair.top >= 0 && repair.top <= 1)) {
      throw Error(std::string(what_) + ": repair of top " + std::to_string(repair.top) +
                  "; expected 0 to 1");
    }
    PlainPiece out;
    out.first = repair.first;
    out.last = repair.last.value_or(0);
    out.top = repair.top;
    if (const auto* tokens = std::get_if<std::vector<Token>>(&piece.content())) {
      session_.engine->check_tokens(*tokens);
      out.tokens = *tokens;
    } else if (const auto* of = std::get_if<Piece::OfBranch>(&piece.content())) {
      out.source = lineage_of(*state_of(*of->branch));
      out.at = of->at;
    } else {
      const Chunk& chunk = std::get<Chunk>(piece.content());
      if (!chunk.valid())
        throw Error(std::string(what_) + ": a chunk is empty; expected registered ones");
      ChunkEntry& entry = entry_of(chunk);
      chunks_.push_back(&entry);
      out.source = entry.lineage();
      out.at = {std::ssize(entry.left()), entry.length()};
    }
    return out;
  }

  ChunkEntry& entry_of(const Chunk& chunk) const {
    const ChunkHold& hold = *Internals::hold(chunk);
    if (hold.engine != session_.engine) {
      throw Error(std::string(what_) + ": a chunk belongs to another engine");
    }
    return *hold.entry;
  }

  const SessionCore& session_;
  const char* what_;
  std::unordered_map<const BranchState*, std::int64_t> ends_;  // of what is used of each
  std::unordered_map<const BranchState*, std::shared_ptr<const Lineage>> lineages_;
  std::vector<ChunkEntry*> chunks_;  // of all pieces that are chunks
};

/// A composition as it is asked for.
struct Wanted {
  std::vector<Piece> pieces;
  const Branch* parent = nullptr;
  std::int64_t dropped = 0;
  std::string note;
};

std::vector<ComposeCall::Wanted> found(SessionCore& session, std::span<const Wanted> wanted,
                                       const char* what, const ComposeParams& params) {
  std::vector<std::vector<Piece>> encoded;
  for (const Wanted& one : wanted) {
    encoded.push_back(Resolver::encoded(session, one.pieces, what));
  }
  std::vector<ComposeCall::Wanted> all;
  {
    const TreeLock lock(session.engine->tree_mutex);
    Resolver resolver(session, what);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ComposeCall::Wanted plain;
      plain.pieces = resolver.resolve(encoded[i], params.repair);
      plain.exact = params.mode == ComposeParams::Mode::kExact;
      if (wanted[i].parent != nullptr) {
        plain.parent = &session.require_live(*wanted[i].parent, what);
      }
      plain.salt = plain.parent != nullptr ? session.engine->tree->salt(plain.parent->tip)
                                           : salt_of(plain.pieces);
      plain.dropped = wanted[i].dropped;
      plain.note = wanted[i].note;
      plain.exact_behind = params.exact_behind;
      plain.of_chunks = std::ranges::none_of(encoded[i], [](const Piece& piece) {
        return std::holds_alternative<Piece::OfBranch>(piece.content());
      });
      all.push_back(std::move(plain));
    }
    resolver.count_reads();
  }
  for (ComposeCall::Wanted& one : all) {
    if (!one.exact) choose_top(*session.engine, one.pieces, one.salt);
  }
  return all;
}

std::vector<Composed> compose_all(SessionCore& session, std::span<const Wanted> wanted,
                                  const char* what, const ComposeParams& params) {
  return run_call<ComposeCall>(session, what, found(session, wanted, what, params), what,
                               params.cancel)
      ->result();
}

std::shared_ptr<ComposeCall> submit_all(SessionCore& session, std::span<const Wanted> wanted,
                                        const char* what, const ComposeParams& params) {
  if (params.target_kl != 0) {
    throw Error(std::string(what) + ": target_kl is " + std::to_string(params.target_kl) +
                " for a call that is submitted; expected 0, or one that waits");
  }
  return submit_call<ComposeCall>(session, found(session, wanted, what, params), what,
                                  params.cancel);
}

/// With the error estimated, and less of it where it is too large (divergence.h), of what is wanted
/// with a repair.
Composed compose_one(SessionCore& session, const std::function<Wanted(const Repair&)>& wanted_with,
                     const char* what, const ComposeParams& params) {
  const auto compose = [&](const ComposeParams& with) {
    const Wanted wanted = wanted_with(with.repair);
    return std::move(compose_all(session, std::span(&wanted, 1), what, with).front());
  };
  if (params.target_kl < 0) {
    throw Error(std::string(what) + ": target_kl is " + std::to_string(params.target_kl) +
                "; expected >= 0");
  }
  if (params.target_kl == 0 || params.mode == ComposeParams::Mode::kExact) return compose(params);
  return compose_within(session, params, compose);
}

void check_spans(std::span<const Span> spans, std::int64_t length, const char* what) {
  std::int64_t before = 0;
  for (const Span& span : spans) {
    if (span.begin < before || span.end < span.begin || span.end > length) {
      throw Error(std::string(what) + ": span " + text_of(span) + " of a branch of " +
                  std::to_string(length) +
                  " tokens; expected spans in ascending order that do not overlap");
    }
    before = span.end;
  }
}

Wanted composition_of(std::span<const Piece> pieces) {
  const Branch* first = nullptr;
  if (!pieces.empty()) {
    const auto* of = std::get_if<Piece::OfBranch>(&pieces.front().content());
    if (of != nullptr) first = of->branch;
  }
  return {{pieces.begin(), pieces.end()}, first, 0, {}};
}

Wanted edit_of(const Branch& branch, std::span<const Edit> edits, const Repair& repair) {
  const std::int64_t length = branch.length();
  std::vector<Span> spans;
  for (const Edit& edit : edits) spans.push_back(edit.at);
  check_spans(spans, length, "edit");
  Wanted wanted;
  wanted.parent = &branch;
  std::int64_t position = 0;
  bool replaced = false;
  const auto keep = [&](std::int64_t end) {
    if (position == end) return;
    Piece piece = Piece::span(branch, position, end);
    if (replaced && !repair.last) {
      piece = std::move(piece).with({repair.first, kLastBehindReplaced, repair.top});
    }
    wanted.pieces.push_back(std::move(piece));
  };
  for (const Edit& edit : edits) {
    keep(edit.at.begin);
    position = edit.at.end;
    wanted.dropped += edit.at.end - edit.at.begin;
    wanted.pieces.insert(wanted.pieces.end(), edit.with.begin(), edit.with.end());
    replaced = replaced || !edit.with.empty();
  }
  keep(length);
  if (replaced) {
    wanted.note =
        "what is kept behind replaced text may still say what that text said; "
        "compute it (exact) where it must not";
  }
  return wanted;
}

/// What is dropped where only these spans are kept.
std::vector<Edit> edits_of(const Branch& branch, std::span<const Span> keep,
                           std::string_view summary) {
  const std::int64_t length = branch.length();
  check_spans(keep, length, "compact");
  std::vector<Edit> edits;
  std::int64_t position = 0;
  const auto drop = [&](std::int64_t end) {
    if (position == end) return;
    edits.push_back({{position, end}, {}});
  };
  for (const Span& span : keep) {
    drop(span.begin);
    position = span.end;
  }
  drop(length);
  if (!summary.empty()) {
    if (edits.empty()) edits.push_back({{length, length}, {}});
    edits.front().with.push_back(Piece::text(std::string(summary)));
  }
  return edits;
}

/// What they have in common, by the tree, then each one's own.
std::vector<Piece> pieces_of_join(const SessionCore& session, ConstBranches siblings,
                                  const JoinParams& params) {
  if (siblings.empty()) throw Error("join: no branches; expected at least one");
  const TreeLock lock(session.engine->tree_mutex);
  const BranchState& first = session.require_live(siblings[0], "join");
  std::int64_t common = session.engine->tree->length(first.tip);
  for (const Branch& sibling : siblings) {
    const BranchState& state = session.require_live(sibling, "join");
    common = std::min(common, session.engine->tree->common_length(first.tip, state.tip));
  }
  std::vector<Piece> pieces;
  for (const Branch& sibling : siblings) {
    const std::int64_t length = session.engine->tree->length(state_of(sibling)->tip);
    if (pieces.empty()) {
      pieces.push_back(Piece::span(sibling, 0, length));
      continue;
    }
    if (!params.before_each.empty()) pieces.push_back(Piece::text(params.before_each));
    pieces.push_back(Piece::span(sibling, common, length));
  }
  if (!params.after_all.empty()) pieces.push_back(Piece::text(params.after_all));
  return pieces;
}

Wanted join_of(const SessionCore& session, ConstBranches siblings, const JoinParams& params) {
  return {pieces_of_join(session, siblings, params), &siblings[0], 0, {}};
}

std::vector<Wanted> joins_of(const SessionCore& session,
                             std::span<const std::vector<const Branch*>> groups,
                             const JoinParams& params) {
  std::vector<Wanted> wanted;
  for (const std::vector<const Branch*>& group : groups) {
    wanted.push_back(join_of(session, group, params));
  }
  return wanted;
}

/// Wherever it will stand: as what follows a line end.
std::vector<Token> encode_chunk(const EngineCore& engine, const std::string& normal) {
  const Tokenizer& tokenizer = engine.require_tokenizer();
  return tokenizer.encode_after(tokenizer.encode("\n", false), normal);
}

}  // namespace

Chunk Session::register_chunk(std::string_view text, const ChunkParams& params) {
  const std::string normal = normalise_chunk(text);
  return dendrite::register_chunk(*core_, encode_chunk(*core_->engine, normal),
                                  chunk_content(normal), params);
}

Chunk Session::register_chunk(std::span<const Token> tokens, const ChunkParams& params) {
  return dendrite::register_chunk(*core_, {tokens.begin(), tokens.end()}, chunk_content(tokens),
                                  params);
}

PendingChunk Session::submit_register_chunk(std::string_view text, const ChunkParams& params) {
  const std::string normal = normalise_chunk(text);
  return PendingChunk(
      submit_chunk(*core_, encode_chunk(*core_->engine, normal), chunk_content(normal), params));
}

PendingChunk Session::submit_register_chunk(std::span<const Token> tokens,
                                            const ChunkParams& params) {
  return PendingChunk(
      submit_chunk(*core_, {tokens.begin(), tokens.end()}, chunk_content(tokens), params));
}

Composed Session::compose(std::span<const Piece> pieces, const ComposeParams& params) {
  return compose_one(
      *core_, [&](const Repair&) { return composition_of(pieces); }, "compose", params);
}

PendingCompose Session::submit_compose(std::span<const Piece> pieces, const ComposeParams& params) {
  const Wanted wanted = composition_of(pieces);
  return PendingCompose(submit_all(*core_, std::span(&wanted, 1), "compose", params));
}

Generation Session::generate_from_chunks(std::span<const Piece> pieces, const DecodeParams& params,
                                         const ComposeParams& compose_params) {
  Composed composed = compose(pieces, compose_params);
  if (composed.branch.finish() != Finish::kRunning) {
    Generation nothing;
    nothing.finish = composed.branch.finish();
    return nothing;
  }
  return decode(composed.branch, params);
}

Composed Session::edit(const Branch& branch, std::span<const Edit> edits,
                       const ComposeParams& params) {
  const auto wanted_with = [&](const Repair& repair) { return edit_of(branch, edits, repair); };
  return compose_one(*core_, wanted_with, "edit", params);
}

PendingCompose Session::submit_edit(const Branch& branch, std::span<const Edit> edits,
                                    const ComposeParams& params) {
  const Wanted wanted = edit_of(branch, edits, params.repair);
  return PendingCompose(submit_all(*core_, std::span(&wanted, 1), "edit", params));
}

Composed Session::compact(const Branch& branch, std::span<const Span> keep,
                          std::string_view summary, const ComposeParams& params) {
  return edit(branch, edits_of(branch, keep, summary), params);
}

PendingCompose Session::submit_compact(const Branch& branch, std::span<const Span> keep,
                                       std::string_view summary, const ComposeParams& params) {
  return submit_edit(branch, edits_of(branch, keep, summary), params);
}

Composed Session::join(ConstBranches siblings, const JoinParams& params) {
  return compose_one(
      *core_, [&](const Repair&) { return join_of(*core_, siblings, params); }, "join", params);
}

PendingCompose Session::submit_join(ConstBranches siblings, const JoinParams& params) {
  const Wanted wanted = join_of(*core_, siblings, params);
  return PendingCompose(submit_all(*core_, std::span(&wanted, 1), "join", params));
}

std::vector<Composed> Session::join_many(std::span<const std::vector<const Branch*>> groups,
                                         const JoinParams& params) {
  if (params.target_kl != 0) {
    throw Error("join: target_kl is " + std::to_string(params.target_kl) +
                " for several groups; expected 0, or one join at a time");
  }
  return compose_all(*core_, joins_of(*core_, groups, params), "join", params);
}

PendingJoins Session::submit_join_many(std::span<const std::vector<const Branch*>> groups,
                                       const JoinParams& params) {
  return PendingJoins(submit_all(*core_, joins_of(*core_, groups, params), "join", params));
}

PendingPrefill Session::submit_settle(const Branch& branch, std::stop_token cancel) {
  const std::vector<Token> tokens = branch.tokens();
  const PrefillOptions options{.cancel = std::move(cancel)};
  return PendingPrefill(submit_call<PrefillCall>(*core_, tokens, options, salt_of(branch)));
}

}  // namespace dendrite
