#include "step/readout.h"

#include <algorithm>
#include <utility>

#include "sample/distribution.h"

namespace dendrite {
namespace {

/// Rows that are brought to the device together.
constexpr std::int64_t kKeptRows = 64;

/// Log-probs of tokens under a row of logits on the host.
void host_log_probs(std::span<const float> logits, std::span<const Token> tokens,
                    std::vector<float>& out) {
  const double lse = log_sum_exp(logits);
  for (const Token token : tokens) {
    out.push_back(static_cast<float>(logits[static_cast<std::size_t>(token)] - lse));
  }
}

}  // namespace

void Readout::begin_draws(std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes, const StepPlan& plan,
                          const Tensor& logits, std::vector<Draw>& draws) {
  draws.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (outcomes[i].drawn < 0) continue;
    draws.push_back(*requests[i].draw);
    draws.back().row = plan.draw_rows[static_cast<std::size_t>(outcomes[i].drawn)];
  }
  backend_.sampler()->begin_draw(logits, draws);
}

void Readout::finish_draws(std::vector<Draw>& draws, std::span<StepOutcome> outcomes) {
  backend_.sampler()->finish_draw(draws);
  for (StepOutcome& outcome : outcomes) {
    if (outcome.drawn < 0) continue;
    outcome.token = draws[static_cast<std::size_t>(outcome.drawn)].token;
    outcome.logprob = draws[static_cast<std::size_t>(outcome.drawn)].logprob;
  }
}

bool Readout::has_rows(const StepPlan& plan) {
  const TreeLock lock(tree_mutex_);
  return std::ranges::any_of(plan.runs, [](const StepPlan::Run& run) DENDRITE_REQUIRES(kTreeLock) {
    return run.sink != nullptr || run.outlives_draws();
  });
}

void Readout::take_rows(const StepPlan& plan, const Tensor& logits) {
  if (backend_.sampler() == nullptr) {
    take_on_host(plan, logits);
  } else {
    take_log_probs(plan, logits);
    keep_rows(plan, logits);
  }
}

void Readout::take_on_host(const StepPlan& plan, const Tensor& logits) {
  std::vector<std::shared_ptr<LogitsRow>> rows;
  {
    const TreeLock lock(tree_mutex_);
    for (std::size_t i = 0; i < plan.logit_targets.size(); ++i)
      rows.push_back(pool_.acquire(vocab_));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    backend_.download(rows[i]->values, logits.data + static_cast<std::int64_t>(i) * logits.stride);
  }
  const TreeLock lock(tree_mutex_);
  std::vector<float> logprobs;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [run_index, position] = plan.logit_targets[i];
    const StepPlan::Run& run = plan.runs[static_cast<std::size_t>(run_index)];
    if (run.sink != nullptr && position >= run.logits_from) {
      logprobs.clear();
      host_log_probs(rows[i]->values, run.sink->wanted(*run.segment, position), logprobs);
      run.sink->take(*run.segment, position, logprobs);
    }
    if (run.keep_logits && position == run.end - 1) run.segment->logits = std::move(rows[i]);
  }
  rows.clear();  // what is left goes back to the pool under its lock
}

void Readout::take_log_probs(const StepPlan& plan, const Tensor& logits) {
  const auto run_of = [&](std::int32_t row) -> const StepPlan::Run& {
    return plan
        .runs[static_cast<std::size_t>(plan.logit_targets[static_cast<std::size_t>(row)].run)];
  };
  std::vector<TokenQuery> queries;
  for (std::size_t i = 0; i < plan.logit_targets.size(); ++i) {
    const auto row = static_cast<std::int32_t>(i);
    const StepPlan::Run& run = run_of(row);
    const std::int64_t position = plan.logit_targets[i].position;
    if (run.sink == nullptr || position < run.logits_from) continue;
    for (const Token token : run.sink->wanted(*run.segment, position)) {
      queries.push_back({row, token});
    }
  }
  if (queries.empty()) return;
  std::vector<float> logprobs(queries.size());
  backend_.sampler()->log_probs(logits, queries, logprobs);
  for (std::size_t begin = 0; begin < queries.size();) {
    std::size_t end = begin;
    while (end < queries.size() && queries[end].row == queries[begin].row) ++end;
    const StepPlan::Run& run = run_of(queries[begin].row);
    const std::int64_t position =
        plan.logit_targets[static_cast<std::size_t>(queries[begin].row)].position;
    run.sink->take(*run.segment, position, std::span(logprobs).subspan(begin, end - begin));
    begin = end;
  }
}

void Readout::keep_rows(const StepPlan& plan, const Tensor& logits) {
  std::vector<std::pair<const StepPlan::Run*, std::shared_ptr<LogitsRow>>> kept;
  {
    const TreeLock lock(tree_mutex_);
    for (const StepPlan::Run& run : plan.runs) {
      if (run.outlives_draws()) kept.emplace_back(&run, pool_.acquire(vocab_));
    }
  }
  for (const auto& [run, row] : kept) {
    backend_.download(row->values, logits.data + run->last_logit_row * logits.stride);
  }
  const TreeLock lock(tree_mutex_);
  for (auto& [run, row] : kept) run->segment->logits = std::move(row);
}

Tensor Readout::kept_tensor(std::int64_t rows) {
  if (kept_rows_ == nullptr) kept_rows_ = backend_.make_buffer(kKeptRows * vocab_);
  return {kept_rows_->data(), rows, vocab_, vocab_};
}

void Readout::draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) {
  const Tensor all = kept_tensor(kKeptRows);
  for (std::size_t begin = 0; begin < draws.size();) {
    // Forks of one prompt draw from one row: it goes over once.
    std::int64_t uploaded = 0;
    std::size_t end = begin;
    for (; end < draws.size(); ++end) {
      if (end == begin || rows[end] != rows[end - 1]) {
        if (uploaded == kKeptRows) break;
        backend_.upload(all.data + uploaded * all.stride, rows[end]->values);
        ++uploaded;
      }
      draws[end].row = static_cast<std::int32_t>(uploaded - 1);
    }
    backend_.sampler()->draw(all.first_rows(uploaded), draws.subspan(begin, end - begin));
    begin = end;
  }
}

std::vector<float> Readout::log_probs(const LogitsRow& row, std::span<const Token> tokens) {
  std::vector<float> out;
  if (backend_.sampler() == nullptr) {
    host_log_probs(row.values, tokens, out);
    return out;
  }
  const Tensor logits = kept_tensor(1);
  backend_.upload(logits.data, row.values);
  std::vector<TokenQuery> queries;
  for (const Token token : tokens) queries.push_back({0, token});
  out.resize(queries.size());
  backend_.sampler()->log_probs(logits, queries, out);
  return out;
}

}  // namespace dendrite
