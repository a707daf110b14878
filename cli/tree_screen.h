#pragma once

#include <string>
#include <vector>

#include "dendrite/search.h"
#include "terminal_text.h"

namespace dendrite::cli {

/// The tree of a search as lines of a screen, from its events.
class TreeScreen {
 public:
  TreeScreen();

  void on(const SearchEvent& event);

  /// The tree in at most `rows` lines of at most `columns` columns: a thought below the one that it
  /// goes on from, in the order of proposal, with value and visits. Where there is not room for
  /// all, thoughts that were pruned unused go first, then what promises least; a line below their
  /// parent counts what is left out. O(thoughts).
  std::vector<std::string> lines(int columns, int rows, const Paint& paint) const;

  std::size_t thoughts() const { return nodes_.size() - 1; }
  std::size_t kept() const { return kept_; }      ///< ever gone on from
  std::size_t pruned() const { return pruned_; }  ///< as it is now

 private:
  struct Node {
    std::size_t parent = 0;
    std::vector<std::size_t> children;  // in the order of proposal
    std::string text;
    double value = 0;
    std::int64_t visits = 0;
    bool judged = false;
    bool kept = false;
    bool pruned = false;
    bool solved = false;
  };
  struct Choice;  // what is shown of the tree
  struct Row;     // a line before its columns are known

  /// Whether `a` is shown rather than `b`.
  bool before(std::size_t a, std::size_t b) const;
  Choice choose(int rows) const;
  void add_children(std::size_t parent, const std::string& indent, const Choice& choice,
                    int columns, std::vector<Row>& rows) const;
  std::string count_hidden(std::size_t parent, const Choice& choice) const;
  std::string draw(const Row& row, int text_columns, bool value, bool visits,
                   const Paint& paint) const;

  std::vector<Node> nodes_;  // by NodeId; 0 is the prompt
  std::size_t kept_ = 0;
  std::size_t pruned_ = 0;
  bool visited_ = false;  // the search counts visits
};

}  // namespace dendrite::cli
