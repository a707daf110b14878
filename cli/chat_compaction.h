#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"

// How a conversation stays within what model and KV pool allow: its oldest exchanges go, whole, and
// K and V of what stays are moved (Session::edit). Rarely and much: from the limit to half of it.
namespace dendrite::cli {

/// --compact and --context.
struct CompactionFlags {
  std::string mode = "composed";  // "exact", "off"
  std::int64_t context = 0;       // tokens; 0: as many as model and pool allow

  void add_to(CLI::App& app);
  bool wanted() const { return mode != "off"; }
  /// Tokens that a conversation may have, its answer included. Of the pool it gets three fifths:
  /// while K and V are moved, old and new pages are needed.
  std::int64_t limit(const Engine& engine) const;
};

/// A conversation without its oldest exchanges.
struct ShortChat {
  nlohmann::ordered_json messages;
  std::vector<Token> prompt;  ///< of these messages
  std::size_t dropped = 0;    ///< messages
};

/// Drops as few of the oldest exchanges (a user's message and what follows it) as leave a prompt of
/// at most `tokens`, or all but the last exchange. Messages before the first user's stay. nullopt:
/// there is one exchange.
std::optional<ShortChat> shorten(const Engine& engine, const nlohmann::ordered_json& messages,
                                 std::int64_t tokens);

/// A branch of the tokens `to`, with K and V of `branch` where its tokens are those of `from` and
/// `to` has them too: before what was dropped they are kept, behind it moved.
Composed change_prompt(Session& session, const Branch& branch, const std::vector<Token>& from,
                       const std::vector<Token>& to, const ComposeParams& params);

/// "compacted: 4 messages dropped; tokens: 12 kept, 80 moved, ...; estimated divergence 0.0012"
std::string describe_compaction(std::size_t messages, const Composition& report);

}  // namespace dendrite::cli
