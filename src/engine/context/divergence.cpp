// How far a composition is from what it stands for.
#include "engine/context/divergence.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dendrite/error.h"
#include "engine/branches/tell.h"
#include "engine/calls/distribution_call.h"
#include "engine/calls/exact_behind.h"
#include "engine/calls/prefill_call.h"
#include "engine/calls/prompt_branch.h"
#include "engine/loop/run_call.h"

namespace dendrite {
namespace {

constexpr std::int64_t kProbes = 32;      // positions that are compared, at most
constexpr std::int64_t kFewest = 8;       // with fewer, greedy tokens are added
constexpr std::int64_t kMostRepair = 64;  // first tokens; beyond, all is computed

/// log of the sum of exponentials, in double.
double log_sum(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

double milliseconds_since(EngineTime begin) {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

std::size_t likeliest(std::span<const float> logits) {
  return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
}

/// The distributions after positions [begin, length) of a branch.
std::vector<Distribution> rows_of(SessionCore& session, Branch& branch, std::int64_t begin,
                                  std::stop_token cancel) {
  std::vector<Branch> forks;
  for (std::int64_t length = begin + 1; length <= branch.length(); ++length) {
    forks.push_back(branch.at(length, {.stream = branch.stream()}));
  }
  return run_call<DistributionCall>(session, "audit", ConstBranches(forks), cancel)->result();
}

/// Tokens behind the last one that was moved; all, where none was.
std::int64_t computed_at_end(const Branch& branch) {
  EngineCore& engine = *state_of(branch)->session->engine;
  const TreeLock lock(engine.tree_mutex);
  return engine.tree->computed_at_end(state_of(branch)->tip);
}

double estimate_factor(EngineCore& engine) {
  const TreeLock lock(engine.tree_mutex);
  return engine.counts.kl_record.factor();
}

/// `distance`: of a step estimate, see KlRecord.
void note_estimate(const Branch& branch, const Estimate& estimate, double distance, double ms) {
  if (estimate.positions == 0) return;
  BranchState& state = *state_of(branch);
  EngineCore& engine = *state.session->engine;
  const TreeLock lock(engine.tree_mutex);
  CompositionRecord record =
      state.rare->composition == nullptr ? CompositionRecord() : *state.rare->composition;
  if (estimate.kind == Estimate::Kind::kStep) {
    engine.counts.kl_record.add_estimate(estimate.kl_mean);
  } else if (engine.tree->moves(state.tip) > 0) {
    engine.counts.kl_record.add_audit(estimate.kl_mean, record.distance);
  }
  record.estimate = estimate;
  record.distance = distance;
  state.rare.edit().composition = std::make_shared<const CompositionRecord>(std::move(record));
  tell_compose(state, ms, estimate.kl_mean);
}

}  // namespace

double divergence_at(std::span<const float> right, std::span<const float> of) {
  const double right_log = log_sum(right);
  const double of_log = log_sum(of);
  double sum = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double log_p = static_cast<double>(right[i]) - right_log;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(of[i]) - of_log));
  }
  return std::max(sum, 0.0);
}

Estimate divergence(std::span<const Distribution> right, std::span<const Distribution> of,
                    Estimate::Kind kind) {
  Estimate estimate{.kind = kind};
  std::vector<double> all;
  int same = 0;
  for (std::size_t i = 0; i < std::min(right.size(), of.size()); ++i) {
    if (!right[i].valid() || !of[i].valid()) continue;
    all.push_back(divergence_at(right[i].logits(), of[i].logits()));
    same += likeliest(right[i].logits()) == likeliest(of[i].logits()) ? 1 : 0;
  }
  if (all.empty()) return estimate;
  std::ranges::sort(all);
  const auto count = static_cast<double>(all.size());
  for (const double kl : all) estimate.kl_mean += kl / count;
  const auto p95 = static_cast<std::size_t>(std::ceil(0.95 * count)) - 1;
  estimate.kl_p95 = all[p95];
  estimate.kl_max = all.back();
  estimate.top1 = same / count;
  estimate.positions = static_cast<int>(all.size());
  return estimate;
}

Composed compose_within(SessionCore& session, const ComposeParams& params,
                        const std::function<Composed(const ComposeParams&)>& compose) {
  ComposeParams with = params;
  with.target_kl = 0;
  with.exact_behind = false;
  const auto goes_on = [&](const Composed& composed) {
    return composed.report.moved > 0 && composed.branch.finish() == Finish::kRunning;
  };
  Composed before = compose(with);
  if (!goes_on(before)) return before;
  Session handle = handle_of(session.shared_from_this());
  while (with.repair.first < kMostRepair) {
    with.repair.first = std::max<std::int64_t>(1, 2 * with.repair.first);
    const auto begin_time = std::chrono::steady_clock::now();
    Composed after = compose(with);
    if (!goes_on(after)) return after;
    // The last positions, which were computed in both; a few tokens more where they are few.
    Branch one = before.branch.fork({.stream = before.branch.stream()});
    Branch two = after.branch.fork({.stream = after.branch.stream()});
    const std::int64_t asked = computed_at_end(after.branch);
    if (asked < kFewest) {
      const Generation greedy = handle.decode(
          two,
          {.max_tokens = kFewest, .temperature = 0, .ignore_eos = true, .cancel = params.cancel});
      one.append(greedy.ids);
    }
    const std::int64_t begin =
        std::max(two.length() - kProbes, after.branch.length() - std::max<std::int64_t>(asked, 1));
    Estimate estimate =
        divergence(rows_of(session, two, begin, params.cancel),
                   rows_of(session, one, begin, params.cancel), Estimate::Kind::kStep);
    const double distance = estimate.kl_mean;
    const double factor = estimate_factor(*session.engine);
    for (double* kl : {&estimate.kl_mean, &estimate.kl_p95, &estimate.kl_max}) *kl *= factor;
    note_estimate(after.branch, estimate, distance, milliseconds_since(begin_time));
    after.report.estimate = estimate;
    if (estimate.kl_mean <= params.target_kl || estimate.positions == 0) {
      if (params.exact_behind) {
        const TreeLock lock(session.engine->tree_mutex);
        begin_exact(*state_of(after.branch));
      }
      return after;
    }
    before = std::move(after);
  }
  with.mode = ComposeParams::Mode::kExact;
  Composed exact = compose(with);
  exact.report.note += "the estimated error stayed above target_kl, so all was computed";
  return exact;
}

Branch Session::settle(const Branch& branch, std::stop_token cancel) {
  const std::vector<Token> tokens = branch.tokens();
  const PrefillOptions options{.cancel = std::move(cancel)};
  return run_call<PrefillCall>(*core_, "settle", tokens, options, salt_of(branch))->result();
}

Estimate Session::audit(Branch& branch, std::stop_token cancel) {
  const auto begin_time = std::chrono::steady_clock::now();
  Branch exact = settle(branch, cancel);
  Branch own = branch.fork({.stream = branch.stream()});
  const std::int64_t begin = std::max<std::int64_t>(0, branch.length() - kProbes);
  Estimate estimate = divergence(rows_of(*core_, exact, begin, cancel),
                                 rows_of(*core_, own, begin, cancel), Estimate::Kind::kAudit);
  note_estimate(branch, estimate, 0, milliseconds_since(begin_time));
  return estimate;
}

Composition Branch::composition() const {
  if (state_ == nullptr) {
    throw BranchEmpty(
        "composition: the branch is empty (moved from or pruned); expected a live one");
  }
  const EngineCore& engine = *state_->session->engine;
  static const CompositionRecord nothing;
  const TreeLock lock(state_->session->engine->tree_mutex);
  const CompositionRecord& record =
      state_->rare->composition == nullptr ? nothing : *state_->rare->composition;
  Composition report = record.report(engine.tree->length(state_->tip));
  report.moves = engine.tree->moves(state_->tip);
  report.exactness = report.moves == 0 ? Exactness::kExactPrefix : Exactness::kComposed;
  if (state_->exact != nullptr) report.exact_behind = engine.tree->computed(state_->exact->tip);
  return report;
}

}  // namespace dendrite
