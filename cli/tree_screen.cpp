#include "tree_screen.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dendrite::cli {
namespace {

constexpr int kValueColumns = 9;
constexpr int kVisitColumns = 8;
constexpr int kTextStep = 16;  // the values' place moves by so much as texts get longer

std::string to_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) < 1000 ? "%.3f" : "%.2g", value);
  return std::isnan(value) ? "-" : text;
}

std::string right(const std::string& text, int columns) {
  const auto width = static_cast<std::size_t>(columns);
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

}  // namespace

struct TreeScreen::Choice {
  std::vector<bool> shown;          // by node
  std::vector<std::size_t> hidden;  // by node: children that are not shown
};

struct TreeScreen::Row {
  Line indent;
  Line text;
  const Node* node = nullptr;  // null: counts what is hidden
};

TreeScreen::TreeScreen() : nodes_(1) {}

void TreeScreen::on(const SearchEvent& event) {
  const Thought& thought = *event.thought;
  const auto id = static_cast<std::size_t>(thought.node);
  if (id == 0) return;
  if (id >= nodes_.size()) {
    nodes_.resize(id + 1);
    nodes_[id].parent = static_cast<std::size_t>(thought.parent);
    nodes_[id].text = thought.text;
    nodes_[nodes_[id].parent].children.push_back(id);
  }
  Node& node = nodes_[id];
  node.value = thought.value;
  node.visits = thought.visits;
  switch (event.kind) {
    case SearchEvent::Kind::kProposed:
      break;
    case SearchEvent::Kind::kVisited:
      visited_ = true;
      node.judged = true;
      break;
    case SearchEvent::Kind::kJudged:
      node.judged = true;
      break;
    case SearchEvent::Kind::kKept:
      if (!std::exchange(node.kept, true)) ++kept_;
      break;
    case SearchEvent::Kind::kPruned:
      if (!std::exchange(node.pruned, true)) ++pruned_;
      break;
    case SearchEvent::Kind::kSolved:
      node.solved = true;
      break;
  }
}

bool TreeScreen::before(std::size_t a, std::size_t b) const {
  const auto rank = [](const Node& node) {
    if (node.solved) return 4;
    if (node.kept) return node.pruned ? 1 : 3;
    return node.pruned ? 0 : 2;
  };
  const auto value = [](const Node& node) {
    return node.judged && !std::isnan(node.value) ? node.value : -HUGE_VAL;
  };
  const Node& x = nodes_[a];
  const Node& y = nodes_[b];
  if (rank(x) != rank(y)) return rank(x) > rank(y);
  if (x.visits != y.visits) return x.visits > y.visits;
  if (value(x) != value(y)) return value(x) > value(y);
  return a < b;
}

TreeScreen::Choice TreeScreen::choose(int rows) const {
  Choice choice{std::vector<bool>(nodes_.size(), true), std::vector<std::size_t>(nodes_.size())};
  if (thoughts() <= static_cast<std::size_t>(rows)) return choice;

  std::vector<std::size_t> order;
  for (std::size_t id = 1; id < nodes_.size(); ++id) {
    if (!nodes_[id].pruned || nodes_[id].kept || nodes_[id].solved) order.push_back(id);
  }
  const std::size_t most = std::min(order.size(), static_cast<std::size_t>(rows));
  const auto better = [this](std::size_t a, std::size_t b) { return before(a, b); };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    better);
  order.resize(most);

  choice.shown.assign(nodes_.size(), false);
  choice.shown[0] = true;
  for (std::size_t id = 0; id < nodes_.size(); ++id) choice.hidden[id] = nodes_[id].children.size();
  int used = 1;  // the line that counts what the prompt has
  for (const std::size_t candidate : order) {
    // A thought takes a line, one more for its hidden children, and gives the line of its parent
    // back if it was the last that was hidden there.
    int lines = 0;
    std::size_t last = 0;
    for (std::size_t id = candidate; !choice.shown[id]; id = nodes_[id].parent) {
      const std::size_t left = nodes_[id].children.size() - (last == 0 ? 0 : 1);
      lines += left > 0 ? 2 : 1;
      last = id;
    }
    if (last == 0) continue;  // shown already, for a descendant
    if (choice.hidden[nodes_[last].parent] == 1) --lines;
    if (used + lines > rows) continue;
    used += lines;
    for (std::size_t id = candidate; !choice.shown[id]; id = nodes_[id].parent) {
      choice.shown[id] = true;
      --choice.hidden[nodes_[id].parent];
    }
  }
  return choice;
}

void TreeScreen::add_children(std::size_t parent, const std::string& indent, const Choice& choice,
                              int columns, std::vector<Row>& rows) const {
  // A branch of the picture takes two columns; where a tree is deeper than the screen is wide, it
  // goes on at the same indent.
  const bool deeper = parent != 0 && one_line(indent).columns + 2 < columns / 2;
  const auto with = [&](const char* sign) { return deeper ? indent + sign : indent; };
  std::size_t left = nodes_[parent].children.size() - choice.hidden[parent];
  for (const std::size_t child : nodes_[parent].children) {
    if (!choice.shown[child]) continue;
    const bool last = --left == 0 && choice.hidden[parent] == 0;
    Row& row = rows.emplace_back();
    row.indent = one_line(with(last ? "└ " : "├ "));
    row.node = &nodes_[child];
    row.text = one_line(row.node->text, columns - row.indent.columns - 2);
    row.text.columns += 2;  // its sign
    add_children(child, with(last ? "  " : "│ "), choice, columns, rows);
  }
  if (choice.hidden[parent] == 0) return;
  Row& row = rows.emplace_back();
  row.indent = one_line(with("└ "));
  row.text = one_line(count_hidden(parent, choice), columns - row.indent.columns);
}

std::string TreeScreen::count_hidden(std::size_t parent, const Choice& choice) const {
  std::size_t pruned = 0;
  double best = -HUGE_VAL;
  for (const std::size_t child : nodes_[parent].children) {
    if (choice.shown[child]) continue;
    pruned += nodes_[child].pruned ? 1 : 0;
    if (nodes_[child].judged && nodes_[child].value > best) best = nodes_[child].value;
  }
  std::string text = "+ " + std::to_string(choice.hidden[parent]);
  text += pruned == choice.hidden[parent] ? " pruned" : " more";
  if (pruned > 0 && pruned < choice.hidden[parent]) {
    text += ", " + std::to_string(pruned) + " of them pruned";
  }
  if (best > -HUGE_VAL) text += ", best " + to_text(best);
  return text;
}

std::string TreeScreen::draw(const Row& row, int text_columns, bool value, bool visits,
                             const Paint& paint) const {
  std::string line = paint.dim + row.indent.text;
  if (row.node == nullptr) return line + row.text.text + paint.off;
  const Node& node = *row.node;
  const char* sign = node.solved ? "★ " : node.pruned ? "× " : node.kept ? "● " : "○ ";
  const char* colour = node.solved   ? paint.good
                       : node.pruned ? paint.dim
                       : node.kept   ? paint.bold
                                     : "";
  line += paint.off;
  line += colour;
  line += sign + row.text.text;
  const int blanks = text_columns - row.indent.columns - row.text.columns;
  line.append(static_cast<std::size_t>(std::max(0, blanks)), ' ');
  if (value) line += right(node.judged ? to_text(node.value) : "", kValueColumns);
  if (visits) line += right(node.visits > 0 ? std::to_string(node.visits) : "", kVisitColumns);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + paint.off;
}

std::vector<std::string> TreeScreen::lines(int columns, int rows, const Paint& paint) const {
  if (rows <= 0 || thoughts() == 0) return {};
  const bool value = columns >= 30;
  const bool visits = visited_ && columns >= 40;
  const int most = columns - (value ? kValueColumns : 0) - (visits ? kVisitColumns : 0);
  std::vector<Row> picture;
  add_children(0, "", choose(rows), most, picture);
  int longest = 0;
  for (const Row& row : picture) {
    if (row.node != nullptr) longest = std::max(longest, row.indent.columns + row.text.columns);
  }
  const int text_columns = std::min(most, (longest / kTextStep + 1) * kTextStep);
  std::vector<std::string> out;
  for (const Row& row : picture) out.push_back(draw(row, text_columns, value, visits, paint));
  return out;
}

}  // namespace dendrite::cli
