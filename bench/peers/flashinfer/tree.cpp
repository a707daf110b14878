#include "peers/flashinfer/tree.h"

#include "step/attention_planner.h"

namespace dendrite::bench::fi {
namespace {

void append_pages(std::vector<std::int32_t>& pages, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) pages.push_back(static_cast<std::int32_t>(first + i));
}

/// Ends a request whose rows and pages were appended.
void close(Requests& requests, std::int64_t rows) {
  requests.row_begin.push_back(requests.row_begin.back() + static_cast<std::int32_t>(rows));
  requests.page_begin.push_back(static_cast<std::int32_t>(requests.pages.size()));
  requests.last_page_tokens.push_back(static_cast<std::int32_t>(kPageTokens));
}

}  // namespace

std::string Tree::name() const {
  if (levels_.size() == 2) {
    return std::to_string(rows()) + " x " + std::to_string(levels_[0].tokens) + " + " +
           std::to_string(levels_[1].tokens);
  }
  if (levels_.size() == 1) {
    return std::to_string(rows()) + " x " + std::to_string(levels_[0].tokens);
  }
  std::string name;
  for (const TreeLevel& level : levels_) {
    if (!name.empty()) name += " / ";
    if (level.nodes > 1) name += std::to_string(level.nodes) + " x ";
    name += std::to_string(level.tokens);
  }
  return name;
}

std::int64_t Tree::pages() const {
  std::int64_t pages = 0;
  for (const TreeLevel& level : levels_) pages += level.nodes * level.tokens / kPageTokens;
  return pages;
}

std::vector<std::int32_t> Tree::path(std::int64_t row) const {
  std::vector<std::int32_t> pages;
  std::int64_t first = 0;
  for (const TreeLevel& level : levels_) {
    const std::int64_t node_pages = level.tokens / kPageTokens;
    append_pages(pages, first + node_above(row, level) * node_pages, node_pages);
    first += level.nodes * node_pages;
  }
  return pages;
}

AttentionPlan Tree::plan() const {
  std::vector<std::vector<std::int32_t>> tables;
  for (std::int64_t row = 0; row < rows(); ++row) tables.push_back(path(row));
  std::vector<PlanSequence> sequences;
  for (const auto& table : tables) {
    sequences.push_back({table, std::ssize(table) * kPageTokens - 1, 1});
  }
  AttentionPlan plan;
  AttentionPlanner(kPageTokens).build(sequences, 0, plan);
  return plan;
}

Requests Tree::flat() const {
  Requests requests;
  for (std::int64_t row = 0; row < rows(); ++row) {
    const std::vector<std::int32_t> pages = path(row);
    requests.pages.insert(requests.pages.end(), pages.begin(), pages.end());
    close(requests, 1);
  }
  return requests;
}

Requests Tree::level(std::size_t index) const {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < index; ++i) first += levels_[i].nodes * levels_[i].tokens;
  first /= kPageTokens;
  const TreeLevel& level = levels_[index];
  Requests requests;
  for (std::int64_t node = 0; node < level.nodes; ++node) {
    append_pages(requests.pages, first + node * level.tokens / kPageTokens,
                 level.tokens / kPageTokens);
    close(requests, rows() / level.nodes);
  }
  return requests;
}

}  // namespace dendrite::bench::fi
