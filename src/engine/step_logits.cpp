// What becomes of a step's logits: draws, log-probs, and rows that stay on their segments.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"
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

void EngineCore::take_on_host(LogprobSink* sink, const Tensor& logits) {
  std::vector<std::shared_ptr<LogitsRow>> rows;
  {
    const TreeLock lock(tree_mutex);
    for (std::size_t i = 0; i < plan->logit_targets.size(); ++i) {
      rows.push_back(logits_pool.acquire(vocab()));
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    backend->download(rows[i]->values, logits.data + static_cast<std::int64_t>(i) * logits.stride);
  }
  const TreeLock lock(tree_mutex);
  std::vector<float> logprobs;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [run_index, position] = plan->logit_targets[i];
    const StepPlan::Run& run = plan->runs[static_cast<std::size_t>(run_index)];
    if (sink != nullptr && position >= run.logits_from) {
      logprobs.clear();
      host_log_probs(rows[i]->values, sink->wanted(*run.segment, position), logprobs);
      sink->take(*run.segment, position, logprobs);
    }
    if (run.keep_logits && position == run.end - 1) run.segment->logits = std::move(rows[i]);
  }
  rows.clear();  // what is left goes back to the pool under its lock
}

void EngineCore::begin_draws(std::span<const StepRequest> requests, const Tensor& logits) {
  std::vector<Draw>& draws = early_step.draws();
  draws.clear();
  for (const StepRequest& request : requests) {
    if (request.drawn >= 0) draws.push_back(*request.draw);
  }
  backend->sampler()->begin_draw(logits, draws);
}

void EngineCore::finish_draws(std::span<StepRequest> requests) {
  std::vector<Draw>& draws = early_step.draws();
  backend->sampler()->finish_draw(draws);
  for (const StepRequest& request : requests) {
    if (request.drawn >= 0) *request.draw = draws[static_cast<std::size_t>(request.drawn)];
  }
}

void EngineCore::take_log_probs(LogprobSink& sink, const Tensor& logits) {
  std::vector<TokenQuery> queries;
  for (std::size_t i = 0; i < plan->logit_targets.size(); ++i) {
    const auto [run_index, position] = plan->logit_targets[i];
    const StepPlan::Run& run = plan->runs[static_cast<std::size_t>(run_index)];
    if (position < run.logits_from) continue;
    for (const Token token : sink.wanted(*run.segment, position)) {
      queries.push_back({static_cast<std::int32_t>(i), token});
    }
  }
  std::vector<float> logprobs(queries.size());
  backend->sampler()->log_probs(logits, queries, logprobs);
  for (std::size_t begin = 0; begin < queries.size();) {
    std::size_t end = begin;
    while (end < queries.size() && queries[end].row == queries[begin].row) ++end;
    const auto [run_index, position] =
        plan->logit_targets[static_cast<std::size_t>(queries[begin].row)];
    sink.take(*plan->runs[static_cast<std::size_t>(run_index)].segment, position,
              std::span(logprobs).subspan(begin, end - begin));
    begin = end;
  }
}

bool EngineCore::keeps_rows() {
  const TreeLock lock(tree_mutex);
  return std::ranges::any_of(plan->runs, &StepPlan::Run::outlives_draws);
}

void EngineCore::keep_rows(const Tensor& logits) {
  std::vector<std::pair<const StepPlan::Run*, std::shared_ptr<LogitsRow>>> kept;
  {
    const TreeLock lock(tree_mutex);
    for (const StepPlan::Run& run : plan->runs) {
      if (run.outlives_draws()) kept.emplace_back(&run, logits_pool.acquire(vocab()));
    }
  }
  for (const auto& [run, row] : kept) {
    backend->download(row->values, logits.data + run->last_logit_row * logits.stride);
  }
  const TreeLock lock(tree_mutex);
  for (auto& [run, row] : kept) run->segment->logits = std::move(row);
}

Tensor EngineCore::kept_tensor(std::int64_t rows) {
  if (kept_rows == nullptr) kept_rows = backend->make_buffer(kKeptRows * vocab());
  return {kept_rows->data(), rows, vocab(), vocab()};
}

void EngineCore::draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) {
  const Tensor all = kept_tensor(kKeptRows);
  for (std::size_t begin = 0; begin < draws.size();) {
    // Forks of one prompt draw from one row: it goes over once.
    std::int64_t uploaded = 0;
    std::size_t end = begin;
    for (; end < draws.size(); ++end) {
      if (end == begin || rows[end] != rows[end - 1]) {
        if (uploaded == kKeptRows) break;
        backend->upload(all.data + uploaded * all.stride, rows[end]->values);
        ++uploaded;
      }
      draws[end].row = static_cast<std::int32_t>(uploaded - 1);
    }
    backend->sampler()->draw(all.first_rows(uploaded), draws.subspan(begin, end - begin));
    begin = end;
  }
}

std::vector<float> EngineCore::log_probs(const LogitsRow& row, std::span<const Token> tokens) {
  std::vector<float> out;
  if (backend->sampler() == nullptr) {
    host_log_probs(row.values, tokens, out);
    return out;
  }
  const Tensor logits = kept_tensor(1);
  backend->upload(logits.data, row.values);
  std::vector<TokenQuery> queries;
  for (const Token token : tokens) queries.push_back({0, token});
  out.resize(queries.size());
  backend->sampler()->log_probs(logits, queries, out);
  return out;
}

}  // namespace dendrite
