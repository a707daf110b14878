#include "step/readout.h"

#include <algorithm>
#include <utility>

#include "sample/distribution.h"

namespace dendrite {
namespace {

/// Rows that are brought to the device together.
constexpr std::int64_t kKeptRows = 64;

RowLogprobs host_log_probs(std::span<const float> logits, std::span<const Token> tokens,
                           std::size_t top) {
  RowLogprobs out;
  out.lse = log_sum_exp(logits);
  out.likeliest = argmax(logits);
  for (const Token token : tokens) {
    out.of_tokens.push_back(static_cast<float>(logits[static_cast<std::size_t>(token)] - out.lse));
  }
  out.top = top_logprobs(logits, out.lse, top);
  return out;
}

}  // namespace

void Readout::begin_draws(std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes, const StepPlan& plan,
                          Flight& flight) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (outcomes[i].drawn < 0) continue;
    flight.draws.push_back(*requests[i].draw);
    flight.draws.back().row = plan.draw_rows[static_cast<std::size_t>(outcomes[i].drawn)];
  }
  for (std::size_t i = 0; i < plan.logit_targets.size(); ++i) {
    const auto [run_index, position] = plan.logit_targets[i];
    const StepPlan::Run& run = plan.runs[static_cast<std::size_t>(run_index)];
    if (run.chain_draws.empty() || position < run.logits_from) continue;
    const auto lanes = static_cast<std::size_t>(run.chain_lanes);
    const auto first = lanes * static_cast<std::size_t>(position - run.logits_from);
    for (Draw& draw : run.chain_draws.subspan(first, lanes)) {
      flight.draws.push_back(draw);
      flight.draws.back().row = static_cast<std::int32_t>(i);
      flight.chain_draws.push_back(&draw);
    }
  }
  backend_.sampler()->begin_draw(flight.logits, flight.draws);
}

void Readout::finish_draws(Flight& flight, std::span<StepOutcome> outcomes) {
  std::vector<Draw>& draws = flight.draws;
  for (StepOutcome& outcome : outcomes) {
    if (outcome.drawn < 0) continue;
    Draw& draw = draws[static_cast<std::size_t>(outcome.drawn)];
    if (!draw.wants_row) continue;
    std::shared_ptr<LogitsRow> row = pool_.acquire(vocab_);
    draw.values = row->values;
    outcome.row = std::move(row);
  }
  backend_.sampler()->finish_draw(draws);
  for (StepOutcome& outcome : outcomes) {
    if (outcome.drawn < 0) continue;
    const Draw& draw = draws[static_cast<std::size_t>(outcome.drawn)];
    outcome.token = draw.token;
    outcome.logprob = draw.logprob;
    outcome.lse = draw.lse;
  }
  const std::size_t first = draws.size() - flight.chain_draws.size();
  for (std::size_t i = first; i < draws.size(); ++i) *flight.chain_draws[i - first] = draws[i];
}

bool Readout::has_rows(const StepPlan& plan) {
  return std::ranges::any_of(plan.runs, [](const StepPlan::Run& run) DENDRITE_REQUIRES(kTreeLock) {
    return run.sink != nullptr || run.hidden != nullptr || run.outlives_draws() ||
           !run.chain_rows.empty();
  });
}

bool Readout::wants_hidden(const StepPlan& plan) {
  return std::ranges::any_of(plan.runs,
                             [](const StepPlan::Run& run) { return run.hidden != nullptr; });
}

void Readout::take_hidden(const StepPlan& plan, const Tensor& hidden) {
  const TreeLock lock(tree_mutex_);
  std::vector<float> row(static_cast<std::size_t>(hidden.cols));
  for (const StepPlan::Run& run : plan.runs) {
    if (run.hidden == nullptr) continue;
    for (std::int64_t p = run.begin; p < run.end; ++p) {
      if (!run.hidden->wants(*run.segment, p)) continue;
      backend_.download(row, hidden.data + (run.first_row + p - run.begin) * hidden.stride);
      run.hidden->take(*run.segment, p, row);
    }
  }
}

void Readout::take_rows(const StepPlan& plan, const Tensor& logits) {
  take_log_probs(plan, logits);
  keep_rows(plan, logits);
  take_chains(plan, logits);
}

Readout::Rows Readout::read_rows(const StepPlan& plan, const Tensor& logits) {
  Rows rows;
  for (std::size_t i = 0; i < plan.logit_targets.size(); ++i) {
    rows.push_back(pool_.acquire(vocab_));
    backend_.download(rows.back()->values,
                      logits.data + static_cast<std::int64_t>(i) * logits.stride);
  }
  return rows;
}

void Readout::give_rows(const StepPlan& plan, Rows& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [run_index, position] = plan.logit_targets[i];
    const StepPlan::Run& run = plan.runs[static_cast<std::size_t>(run_index)];
    if (run.sink != nullptr && position >= run.logits_from) {
      const std::span<const Token> wanted = run.sink->wanted(*run.segment, position);
      if (!wanted.empty()) {
        run.sink->take(*run.segment, position,
                       host_log_probs(rows[i]->values, wanted, run.sink->top()));
      }
    }
    if (!run.chain_rows.empty() && position >= run.logits_from) {
      run.chain_rows[static_cast<std::size_t>(position - run.logits_from)] = rows[i];
    }
    if (run.keep_logits && position == run.end - 1) run.segment->logits = std::move(rows[i]);
  }
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
  backend_.sampler()->log_probs(logits, queries);
  RowLogprobs read;
  std::vector<float> values;
  for (std::size_t begin = 0; begin < queries.size();) {
    const TokenQuery& first = queries[begin];
    read.of_tokens.clear();
    std::size_t end = begin;
    for (; end < queries.size() && queries[end].row == first.row; ++end) {
      read.of_tokens.push_back(queries[end].logprob);
    }
    read.lse = first.lse;
    read.likeliest = first.likeliest;
    const StepPlan::Run& run = run_of(first.row);
    if (const std::size_t top = run.sink->top(); top > 0) {
      values.resize(static_cast<std::size_t>(vocab_));
      backend_.download(values, logits.data + first.row * logits.stride);
      read.top = top_logprobs(values, read.lse, top);
    }
    const std::int64_t position = plan.logit_targets[static_cast<std::size_t>(first.row)].position;
    run.sink->take(*run.segment, position, read);
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
  if (kept.empty()) return;
  for (const auto& [run, row] : kept) {
    backend_.download(row->values, logits.data + run->last_logit_row * logits.stride);
  }
  const TreeLock lock(tree_mutex_);
  for (auto& [run, row] : kept) run->segment->logits = std::move(row);
}

void Readout::take_chains(const StepPlan& plan, const Tensor& logits) {
  for (std::size_t i = 0; i < plan.logit_targets.size(); ++i) {
    const auto [run_index, position] = plan.logit_targets[i];
    const StepPlan::Run& run = plan.runs[static_cast<std::size_t>(run_index)];
    if (run.chain_rows.empty() || position < run.logits_from) continue;
    std::shared_ptr<LogitsRow> row = pool_.acquire(vocab_);
    backend_.download(row->values, logits.data + static_cast<std::int64_t>(i) * logits.stride);
    run.chain_rows[static_cast<std::size_t>(position - run.logits_from)] = std::move(row);
  }
}

Tensor Readout::kept_tensor(std::int64_t rows) {
  if (kept_rows_ == nullptr) kept_rows_ = backend_.make_buffer(kKeptRows * vocab_);
  return {kept_rows_->data(), rows, vocab_, vocab_};
}

template <typename Use>
void Readout::with_kept(std::span<const LogitsRow* const> rows, Use use) {
  const Tensor all = kept_tensor(kKeptRows);
  std::vector<std::int32_t> places;
  for (std::size_t begin = 0; begin < rows.size(); begin += places.size()) {
    places.clear();
    std::int32_t uploaded = 0;
    for (std::size_t i = begin; i < rows.size(); ++i) {
      if (i == begin || rows[i] != rows[i - 1]) {
        if (uploaded == kKeptRows) break;
        backend_.upload(all.data + uploaded * all.stride, rows[i]->values);
        ++uploaded;
      }
      places.push_back(uploaded - 1);
    }
    use(all.first_rows(uploaded), begin, places);
  }
}

void Readout::draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) {
  with_kept(rows, [&](Tensor logits, std::size_t begin, std::span<const std::int32_t> places) {
    const std::span<Draw> part = draws.subspan(begin, places.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      part[i].row = places[i];
      part[i].wants_row = false;  // it came from there
    }
    backend_.sampler()->draw(logits, part);
  });
}

std::vector<double> Readout::log_sum_exps(std::span<const LogitsRow* const> rows) {
  std::vector<double> out;
  with_kept(rows, [&](Tensor logits, std::size_t /*begin*/, std::span<const std::int32_t> places) {
    std::vector<TokenQuery> queries;
    for (const std::int32_t row : places) queries.push_back({row, 0});
    backend_.sampler()->log_probs(logits, queries);
    for (const TokenQuery& query : queries) out.push_back(query.lse);
  });
  return out;
}

RowLogprobs Readout::log_probs(const LogitsRow& row, std::span<const Token> tokens,
                               std::size_t top) {
  if (backend_.sampler() == nullptr) return host_log_probs(row.values, tokens, top);
  const Tensor logits = kept_tensor(1);
  backend_.upload(logits.data, row.values);
  std::vector<TokenQuery> queries;
  for (const Token token : tokens) queries.push_back({0, token});
  backend_.sampler()->log_probs(logits, queries);
  RowLogprobs out;
  for (const TokenQuery& query : queries) out.of_tokens.push_back(query.logprob);
  out.lse = queries.front().lse;
  out.likeliest = queries.front().likeliest;
  out.top = top_logprobs(row.values, out.lse, top);
  return out;
}

}  // namespace dendrite
