#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "dendrite/types.h"
#include "step/request.h"

namespace dendrite {

/// A trie over the continuations of one branch. Tokens that several continuations begin with are
/// computed once; the last token of a continuation is not computed at all.
struct TrieNode {
  Token token = 0;
  std::int32_t parent = -1;
  std::vector<std::int32_t> children{};
  float logprob = 0;                // of this token after its parent
  bool greedy = false;              // it is the likeliest there
  std::vector<TokenLogprob> top{};  // the likeliest after it, where they were asked for
  bool internal() const { return !children.empty(); }
};

class ScoreTrie {
 public:
  explicit ScoreTrie(const std::vector<std::vector<Token>>& continuations) {
    nodes_.emplace_back();  // the branch's own tip
    for (const std::vector<Token>& continuation : continuations) {
      std::int32_t node = 0;
      for (const Token token : continuation) node = child(node, token);
      ends_.push_back(node);
    }
  }

  TrieNode& node(std::int32_t index) { return nodes_[static_cast<std::size_t>(index)]; }

  /// The tokens of the children of `index`, into `out`.
  void tokens_after(std::int32_t index, std::vector<Token>& out) {
    out.clear();
    for (const std::int32_t child : node(index).children) out.push_back(node(child).token);
  }
  /// Their log-probs, in the same order, and what else is known of the place after `index`.
  void take(std::int32_t index, const RowLogprobs& read) {
    const auto& children = node(index).children;
    for (std::size_t i = 0; i < children.size(); ++i) {
      TrieNode& child = node(children[i]);
      child.logprob = read.of_tokens[i];
      child.greedy = child.token == read.likeliest && !std::isnan(child.logprob);
    }
    node(index).top = read.top;
  }

  std::vector<Score> scores() {
    std::vector<Score> out;
    for (const std::int32_t end : ends_) {
      Score& score = out.emplace_back();
      score.greedy = true;
      for (std::int32_t at = end; at > 0; at = node(at).parent) {
        score.tokens.push_back(node(at).logprob);
        score.greedy = score.greedy && node(at).greedy;
        const std::vector<TokenLogprob>& top = node(node(at).parent).top;
        if (!top.empty()) score.top.push_back(top);
      }
      std::reverse(score.tokens.begin(), score.tokens.end());
      std::reverse(score.top.begin(), score.top.end());
      for (const float logprob : score.tokens) score.logprob += logprob;
    }
    return out;
  }

 private:
  std::int32_t child(std::int32_t parent, Token token) {
    for (const std::int32_t index : node(parent).children) {
      if (node(index).token == token) return index;
    }
    const auto index = static_cast<std::int32_t>(nodes_.size());
    nodes_.push_back({token, parent});
    node(parent).children.push_back(index);
    return index;
  }

  std::vector<TrieNode> nodes_;
  std::vector<std::int32_t> ends_;
};

}  // namespace dendrite
