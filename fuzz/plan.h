#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "fuzz/draws.h"
#include "fuzz/mirrors.h"

namespace dendrite::fuzz {

/// A chunk that is registered, and what it must be.
struct KnownChunk {
  Chunk chunk{};
  std::vector<Token> left;
  std::vector<Token> tokens;
};

/// A composition: the pieces that a call is given, and beside them what must come of it.
class Plan {
 public:
  explicit Plan(const ComposeParams& params) : params_(params) {}

  void add(std::vector<Token> tokens);
  void add(const Engine& engine, const std::string& text);
  void add(const Mirror& of, Span at, const std::optional<Repair>& repair = {});
  void add(const KnownChunk& chunk, const std::optional<Repair>& repair = {});

  const ComposeParams& params() const { return params_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  std::int64_t length() const { return std::ssize(tokens_); }
  /// Tokens that no repair covers: not more of them may be moved.
  std::int64_t most_moved() const;
  /// Null: nothing may be moved, so it is as if the tokens were a prompt.
  std::shared_ptr<const Recipe> recipe() const;

 private:
  void add_computed(const std::vector<Token>& tokens);
  void add_moved(Origin from, Span at, const std::optional<Repair>& repair);

  ComposeParams params_;
  std::vector<Piece> pieces_;
  std::vector<Token> tokens_;
  std::vector<Recipe::Part> parts_;
};

/// What pieces are drawn of.
struct Sources {
  const Engine& engine;
  std::vector<Mirror*> branches;  // of the session that composes
  std::span<const KnownChunk> chunks;
};

/// No estimate and no cancel.
/// For an engine of this model: exact ones, where nothing can be moved.
ComposeParams draw_compose_params(Draws& draws, const Engine& engine);
/// A piece or two more, and no more than `most` tokens in all.
void draw_piece(Plan& plan, Draws& draws, const Sources& sources, std::int64_t most);
/// At least one token. Null: nobody's fork.
Mirror* draw_pieces(Plan& plan, Draws& draws, const Sources& sources, std::int64_t most);
/// Something short, of few; "": where there is no text.
std::string draw_text(Draws& draws, const Engine& engine);

}  // namespace dendrite::fuzz
