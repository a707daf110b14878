#include "kv/prefix_index.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace dendrite {

PrefixIndex::PrefixIndex(KvTree& tree) : tree_(tree) {}

PrefixIndex::~PrefixIndex() {
  clear();
}

// --- look-up

PrefixIndex::Place PrefixIndex::walk(Node& root, std::span<const Token> tokens) {
  Place place{&root, 0, 0};
  while (place.matched < std::ssize(tokens)) {
    const auto rest = tokens.subspan(static_cast<std::size_t>(place.matched));
    const auto child = place.node->children.find(rest[0]);
    if (child == place.node->children.end()) break;
    place.node = child->second.get();
    const auto& edge = place.node->edge;
    place.matched_edge =
        std::mismatch(edge.begin(), edge.end(), rest.begin(), rest.end()).first - edge.begin();
    place.matched += place.matched_edge;
    if (place.matched_edge < std::ssize(edge)) break;
  }
  return place;
}

std::optional<Tip> PrefixIndex::longest_match(std::span<const Token> tokens, Salt salt) {
  ++stats_.lookups;
  stats_.looked_up_tokens += std::ssize(tokens);
  const auto root = roots_.find(salt);
  const Place place = root == roots_.end() ? Place() : walk(root->second, tokens);
  if (place.node != nullptr) touch(place.node);
  const std::int64_t computed =
      place.matched > 0 ? std::min(place.matched, tree_.computed(place.node->tip)) : 0;
  KvTree::Place held;
  if (computed < std::ssize(tokens)) held = tree_.find_held(tokens, salt);
  const std::int64_t found = held.length > computed ? held.length : place.matched;
  if (found == 0) return std::nullopt;
  ++stats_.hits;
  stats_.hit_tokens += found;
  return held.length > computed ? tree_.at(held) : tree_.at(place.node->tip, place.matched);
}

// --- insertion

void PrefixIndex::insert(std::span<const Token> tokens, const Tip& tip) {
  const std::int64_t length = std::ssize(tokens);
  assert(length <= tree_.length(tip));
  if (length == 0) return;
  const Place place = walk(roots_[tree_.salt(tip)], tokens);
  Node* node = place.node;
  if (node->parent != nullptr && place.matched_edge < std::ssize(node->edge)) {
    node = split_edge(node, place.matched_edge, tree_.at(node->tip, place.matched));
  }
  if (place.matched < length) {
    node = add_child(node, tokens.subspan(static_cast<std::size_t>(place.matched)),
                     tree_.at(tip, length));
  } else if (length == tree_.length(tip)) {
    // Known tokens. The pages that are there stay; a distribution that was missing is welcome.
    auto& logits = tree_.segment(node->tip)->logits;
    if (logits == nullptr) logits = tree_.segment(tip)->logits;
  }
  if (!node->is_entry) ++stats_.entries;
  node->is_entry = true;
  touch(node);
}

PrefixIndex::Node* PrefixIndex::add_child(Node* parent, std::span<const Token> edge, Tip tip) {
  auto child = std::make_unique<Node>();
  Node* node = child.get();
  node->parent = parent;
  node->edge.assign(edge.begin(), edge.end());
  node->tip = std::move(tip);
  parent->children.emplace(edge[0], std::move(child));
  link_front(node);
  stats_.tokens += std::ssize(edge);
  ++stats_.nodes;
  return node;
}

/// Puts a node after the first `edge_tokens` tokens of the edge of `node`, and returns it.
/// Requires: touch() of the new node or of a child of it follows, so that its ancestors stand
/// before it.
PrefixIndex::Node* PrefixIndex::split_edge(Node* node, std::int64_t edge_tokens, Tip tip) {
  assert(0 < edge_tokens && edge_tokens < std::ssize(node->edge));
  std::unique_ptr<Node>& place = node->parent->children.at(node->edge[0]);
  auto middle = std::make_unique<Node>();
  middle->parent = node->parent;
  middle->edge.assign(node->edge.begin(), node->edge.begin() + edge_tokens);
  middle->tip = std::move(tip);
  node->edge.erase(node->edge.begin(), node->edge.begin() + edge_tokens);
  node->parent = middle.get();
  const Token first = node->edge[0];
  middle->children.emplace(first, std::move(place));
  place = std::move(middle);
  link_front(place.get());
  ++stats_.nodes;
  return place.get();
}

// --- eviction

bool PrefixIndex::evict_one() {
  // Usually the first look succeeds. Past it, only ends that live branches hold are skipped.
  for (Node* node = oldest_; node != nullptr; node = node->newer) {
    if (node->children.empty() && tree_.segment(node->tip)->refs == 1) {
      remove_leaf(node);
      ++stats_.evictions;
      return true;
    }
  }
  return false;
}

void PrefixIndex::remove_leaf(Node* node) {
  assert(node->children.empty() && node->is_entry);
  Node* parent = node->parent;
  unlink(node);
  --stats_.entries;
  --stats_.nodes;
  stats_.tokens -= std::ssize(node->edge);
  const Token first = node->edge[0];
  const Salt salt = tree_.salt(node->tip);
  tree_.drop(node->tip);
  parent->children.erase(first);  // frees node
  if (parent->parent == nullptr) {
    if (parent->children.empty()) roots_.erase(salt);
  } else if (!parent->is_entry && parent->children.size() == 1) {
    merge_with_child(parent);
  }
}

/// Removes a node that is no entry and has one child, which takes its place.
void PrefixIndex::merge_with_child(Node* node) {
  std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  tree_.drop(node->tip);
  unlink(node);
  --stats_.nodes;
  child->edge.insert(child->edge.begin(), node->edge.begin(), node->edge.end());
  child->parent = node->parent;
  const Token first = node->edge[0];
  node->parent->children.at(first) = std::move(child);  // frees node
}

void PrefixIndex::clear() {
  while (oldest_ != nullptr) remove_leaf(oldest_);
}

// --- recency

void PrefixIndex::link_front(Node* node) {
  node->newer = nullptr;
  node->older = newest_;
  (newest_ != nullptr ? newest_->newer : oldest_) = node;
  newest_ = node;
}

void PrefixIndex::unlink(Node* node) {
  (node->newer != nullptr ? node->newer->older : newest_) = node->older;
  (node->older != nullptr ? node->older->newer : oldest_) = node->newer;
}

/// From the node to the root, so that ancestors end up before their descendants.
void PrefixIndex::touch(Node* node) {
  for (; node->parent != nullptr; node = node->parent) {
    unlink(node);
    link_front(node);
  }
}

// --- checks

void PrefixIndex::collect_tips(std::vector<const Tip*>& out) const {
  for (const Node* node = newest_; node != nullptr; node = node->older) out.push_back(&node->tip);
}

void PrefixIndex::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("PrefixIndex: ") + what);
  };
  std::int64_t nodes = 0;
  std::int64_t entries = 0;
  std::int64_t tokens = 0;
  std::vector<const Node*> seen;
  for (const Node* node = newest_; node != nullptr; node = node->older) {
    ++nodes;
    entries += node->is_entry ? 1 : 0;
    tokens += std::ssize(node->edge);
    require(node->parent->parent == nullptr ||
                std::find(seen.begin(), seen.end(), node->parent) != seen.end(),
            "a node is more recent than its parent");
    require(!node->edge.empty(), "an edge is empty");
    const auto found = node->parent->children.find(node->edge[0]);
    require(found != node->parent->children.end() && found->second.get() == node,
            "a child is not under its first token");
    require(node->is_entry || node->children.size() >= 2, "a node has no reason to exist");
    std::vector<Token> path;
    const Node* root = node;
    for (; root->parent != nullptr; root = root->parent) {
      path.insert(path.begin(), root->edge.begin(), root->edge.end());
    }
    const auto of_salt = roots_.find(tree_.salt(node->tip));
    require(of_salt != roots_.end() && root == &of_salt->second, "a node has another salt's root");
    require(path == tree_.tokens(node->tip), "a node's tip has other tokens than its path");
    seen.push_back(node);
  }
  for (const auto& [salt, root] : roots_) require(!root.children.empty(), "a root has no children");
  require(nodes == stats_.nodes && entries == stats_.entries && tokens == stats_.tokens,
          "statistics do not match");
}

}  // namespace dendrite
