#include "server/composed_prompt.h"

#include <algorithm>
#include <utility>

namespace dendrite::server {
namespace {

constexpr std::int64_t kShortestRun = 256;  // below, its repair is half of it
constexpr Repair kRepair{.first = 32, .last = 4};
/// For the estimate it is composed twice, with once and twice the first tokens; the latter stays.
constexpr std::int64_t kRepairs = 2 * kRepair.first + 4;
constexpr std::int64_t kWorth = 64;  // rows that an exact source is worth
constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kLeastError = std::numeric_limits<double>::min();  // (0: no estimate)

/// Rows that a composition takes, the one that it is compared with included, about.
std::int64_t rows_composed(const RecentBranches::Found& found, std::int64_t length) {
  std::int64_t rows = length - found.prefix;
  if (found.runs.empty()) return rows;
  for (const TokenRun& run : found.runs) rows -= run.count - kRepairs;
  return 2 * rows;
}

/// The pieces, and where each one ends.
struct Plan {
  std::vector<Piece> pieces;
  std::vector<std::int64_t> ends;

  void add(Piece piece, std::int64_t end) {
    if (end == (ends.empty() ? 0 : ends.back())) return;
    pieces.push_back(std::move(piece));
    ends.push_back(end);
  }
};

Plan plan_of(const RecentBranches::Found& found, std::span<const Token> tokens) {
  Plan plan;
  std::int64_t done = found.prefix;
  const auto compute_to = [&](std::int64_t end) {
    plan.add(Piece::tokens({tokens.begin() + done, tokens.begin() + end}), end);
  };
  plan.add(Piece::span(found.branch, 0, found.prefix), found.prefix);
  for (const TokenRun& run : found.runs) {
    compute_to(run.to);
    done = run.to + run.count;
    plan.add(Piece::span(found.branch, run.from, run.from + run.count), done);
  }
  compute_to(std::ssize(tokens));
  return plan;
}

/// What of the branch was moved and repaired, that of what was kept first.
Composedness describe(Branch& branch, const Composition& report, const Plan& plan,
                      const Composedness& kept) {
  if (report.exactness == Exactness::kExactPrefix) return {};
  Composedness how = kept;
  Composition before;
  std::int64_t begin = 0;
  for (const std::int64_t end : plan.ends) {
    const Composition upto = branch.at(end, {.stream = 0}).composition();
    const ComposedPart part{
        {begin, end}, upto.moved - before.moved, upto.repaired - before.repaired};
    if (part.moved > 0) how.parts.push_back(part);
    before = upto;
    begin = end;
  }
  if (report.estimate && report.estimate->positions > 0) {
    how.error = std::max(how.error.value_or(0), report.estimate->kl_mean);
  }
  return how;
}

}  // namespace

Composedness composedness_of(const Branch& branch) {
  const Composition report = branch.composition();
  Composedness how;
  if (report.exactness == Exactness::kExactPrefix) return how;
  how.parts.push_back({{0, branch.length()}, report.moved, report.repaired});
  if (report.estimate) how.error = report.estimate->kl_mean;
  return how;
}

ComposedPrompt compose_prompt(Session& session, RecentBranches& recent, const BranchOwner& owner,
                              std::span<const Token> tokens, const ReuseComposed& wish,
                              const std::stop_token& cancel) {
  ComposedPrompt made;
  const RecentBranches::FoundBoth both = recent.find(owner, tokens, kShortestRun);
  const std::int64_t length = std::ssize(tokens);
  // What was moved before is a little further off.
  const bool goes_on =
      rows_composed(both.composed, length) + kWorth < rows_composed(both.exact, length);
  const RecentBranches::Found& found = goes_on ? both.composed : both.exact;
  if (rows_composed(found, length) >= length - both.known) return made;
  const Composedness kept = found.how.before(found.prefix);
  if (!kept.parts.empty() && kept.error.value_or(kUnknown) > wish.max_error) {
    made.note = "the estimated error of what could be kept is above max_error";
    return made;
  }
  const Plan plan = plan_of(found, tokens);
  Composed composed = session.compose(
      plan.pieces,
      {.repair = kRepair, .target_kl = std::max(wish.max_error, kLeastError), .cancel = cancel});
  if (composed.branch.finish() != Finish::kRunning) {
    if (composed.branch.finish() == Finish::kBudget) {
      made.note = "there is no memory to move K and V now";
    }
    return made;
  }
  const BranchStats stats = composed.branch.stats();
  const Composition& report = composed.report;
  made.how = describe(composed.branch, report, plan, kept);
  if (made.how.parts.empty()) {
    made.cached = length - stats.tokens_computed;
    made.note = report.note;
  } else {
    made.cached = length - report.computed - report.repaired - stats.tokens_regenerated;
  }
  made.cached = std::clamp<std::int64_t>(made.cached, 0, length);
  made.branch = composed.branch.fork({.stream = 0});
  return made;
}

}  // namespace dendrite::server
