#pragma once

#include <map>
#include <memory>
#include <optional>

#include "draft_modes.h"
#include "models.h"
#include "options.h"
#include "peer.h"

namespace dendrite::bench {

/// Where a search's nodes live: here, or in another engine. What a search computes does not depend
/// on it, only how much of it again.
class TreeMachine {
 public:
  using Node = std::int64_t;

  TreeMachine() = default;
  virtual ~TreeMachine() = default;
  TreeMachine(const TreeMachine&) = delete;
  TreeMachine& operator=(const TreeMachine&) = delete;

  /// Forgets all nodes and computes a prompt.
  virtual Node begin(std::span<const Token> prompt) = 0;
  /// A node that goes on from `parent` with these tokens.
  virtual Node child(Node parent, std::span<const Token> tokens) = 0;
  /// So many new tokens for each node, in one batch; returns the last of each.
  virtual std::vector<Token> generate(std::span<const Node> nodes, std::int64_t tokens,
                                      double temperature) = 0;
  virtual void drop(Node node) = 0;
};

/// What a node of this engine's finds of its parent.
enum class Sharing : std::uint8_t {
  kTree,   // all of it: a fork, whose pages are read once for all branches
  kRadix,  // all but the last token, as an independent request finds them in a radix prefix cache:
           // that one is computed again, and every request reads its pages itself
  kBlock,  // whole pages, as one finds them in a cache of blocks: what is left of the last one is
           // computed again, and every request reads its pages itself
  kReprefill,  // nothing but one token: every request computes its whole path
};
const char* name_of(Sharing sharing);

class OwnMachine final : public TreeMachine {
 public:
  /// Machines of one engine take turns. `mode`: drafts are made so; null: none.
  OwnMachine(const Engine& engine, Sharing sharing, DraftMode* mode = nullptr)
      : engine_(engine), sharing_(sharing), mode_(mode) {}
  ~OwnMachine() override;

  Node begin(std::span<const Token> prompt) override;
  Node child(Node parent, std::span<const Token> tokens) override;
  std::vector<Token> generate(std::span<const Node> nodes, std::int64_t tokens,
                              double temperature) override;
  void drop(Node node) override { nodes_.erase(node); }

  Stats stats() const { return session_->stats(); }
  /// Of all tokens since it began.
  std::uint64_t digest() const { return digest_; }
  /// From now on what is generated is told there, too.
  void record(KnownTexts& texts) { record_ = &texts; }

 private:
  std::int64_t found_of(std::int64_t length) const;

  Engine engine_;
  Sharing sharing_;
  DraftMode* mode_;
  KnownTexts* record_ = nullptr;
  std::uint64_t digest_ = 0;
  std::optional<Session> session_;
  std::map<Node, Branch> nodes_;
  Node next_ = 0;
};

/// Another engine by the line protocol of Peer:
///   begin ID ...                  -> a node
///   child NODE ID ...             -> a node
///   generate N TEMPERATURE NODE ... -> a token for each node
///   drop NODE                     -> ok
class PeerMachine final : public TreeMachine {
 public:
  explicit PeerMachine(Peer& peer) : peer_(peer) {}

  Node begin(std::span<const Token> prompt) override;
  Node child(Node parent, std::span<const Token> tokens) override;
  std::vector<Token> generate(std::span<const Node> nodes, std::int64_t tokens,
                              double temperature) override;
  void drop(Node node) override;

 private:
  Peer& peer_;
};

}  // namespace dendrite::bench
