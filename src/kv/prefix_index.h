#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_tree.h"

namespace dendrite {

struct PrefixIndexStats {
  std::int64_t entries = 0;  // prompts remembered
  std::int64_t nodes = 0;
  std::int64_t tokens = 0;  // on edges: what the index itself stores, shared prefixes once
  std::int64_t lookups = 0;
  std::int64_t hits = 0;  // look-ups that matched at least one token
  std::int64_t looked_up_tokens = 0;
  std::int64_t hit_tokens = 0;
  std::int64_t evictions = 0;
};

/// Finds what is known of a prompt, so that the same prefix is computed once: what any live branch
/// has computed (KvTree::find_held), and prompts that were prefilled before. These it remembers in
/// a radix tree over tokens: each node holds a tip of the KV tree at its end, and its edge the
/// tokens since its parent.
///
/// Prompts are indexed to their last token, not rounded down to whole pages. The price: the branch
/// that was inserted shares its tip page with the index, so its next token opens a child and copies
/// that page's slots, once a prompt. The gain: the same prompt again is a full hit, logits
/// included, and needs no step at all.
///
/// Texts of different salts have roots of their own, and find nothing of each other's.
///
/// Invariants: every node but the roots has a tip whose salt is its root's and whose tokens are
/// those from the root to the node, and is an entry or has at least two children; siblings differ
/// in their first token. A root of a salt has children. In the list of recency a node stands before
/// (was used no earlier than) all its descendants, so the last one is a leaf.
class PrefixIndex {
 public:
  explicit PrefixIndex(KvTree& tree);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  /// A tip at the longest prefix of `tokens` of which somebody holds K and V, or that the index
  /// remembers if no more than that of it is computed; nullopt when not even the first token
  /// matches. The caller drops it. Ends inside a prompt or branch where the two part (a rewind).
  /// O(tokens).
  [[nodiscard]] std::optional<Tip> longest_match(std::span<const Token> tokens, Salt salt = 0);

  /// Remembers `tokens` of the tip's salt; the index forks `tip`, whose first tokens they are.
  /// Requires: tokens.size() <= length(tip). Known already: only its logits are kept, if it had
  /// none.
  void insert(std::span<const Token> tokens, const Tip& tip);

  /// Forgets the least recently used leaf whose end nothing else refers to, which is what gives
  /// pages back. False: forgetting any would give none back.
  bool evict_one();
  void clear();

  std::int64_t size() const { return stats_.entries; }
  const PrefixIndexStats& stats() const { return stats_; }
  /// Appends the tips that the index holds, for KvTree::check_invariants.
  void collect_tips(std::vector<const Tip*>& out) const;
  /// Throws std::logic_error if an invariant does not hold. For tests.
  void check_invariants() const;

 private:
  struct Node {
    Node* parent = nullptr;   // null: it is a root
    std::vector<Token> edge;  // tokens since the parent; empty for roots only
    std::map<Token, std::unique_ptr<Node>> children;  // by first token of the edge
    Tip tip;
    bool is_entry = false;  // inserted, not only a place where two prompts part
    Node* newer = nullptr;  // recency list
    Node* older = nullptr;
  };
  /// Where a walk along tokens ended: `matched_edge` tokens into the edge of `node`.
  struct Place {
    Node* node = nullptr;
    std::int64_t matched = 0;
    std::int64_t matched_edge = 0;
  };

  static Place walk(Node& root, std::span<const Token> tokens);
  Node* add_child(Node* parent, std::span<const Token> edge, Tip tip);
  Node* split_edge(Node* node, std::int64_t edge_tokens, Tip tip);
  void merge_with_child(Node* node);
  void remove_leaf(Node* node);
  void link_front(Node* node);
  void unlink(Node* node);
  void touch(Node* node);

  KvTree& tree_;
  std::map<Salt, Node> roots_;
  Node* newest_ = nullptr;
  Node* oldest_ = nullptr;
  PrefixIndexStats stats_;
};

}  // namespace dendrite
