#include "engine/calls/distribution_call.h"

#include <string>
#include <utility>

#include "dendrite/error.h"
#include "sample/distribution.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

const LogitsRow& require(const LogitsRow* row, const char* what) {
  if (row == nullptr) {
    throw Error(std::string(what) +
                ": the distribution is not valid (empty, or budget, pages or cancellation forbade "
                "to compute it); expected a valid one");
  }
  return *row;
}

}  // namespace

std::span<const float> Distribution::logits() const {
  return valid() ? std::span<const float>(row_->values) : std::span<const float>();
}

float Distribution::logprob(Token token) const {
  const std::vector<float>& values = require(row_.get(), "logprob").values;
  if (token < 0 || token >= std::ssize(values)) {
    throw Error("logprob: token is " + std::to_string(token) + "; expected 0 to " +
                std::to_string(std::ssize(values) - 1));
  }
  return static_cast<float>(values[static_cast<std::size_t>(token)] - lse_);
}

std::vector<TokenLogprob> Distribution::top(int n) const {
  const LogitsRow& row = require(row_.get(), "top");
  if (n < 0) throw Error("top: n is " + std::to_string(n) + "; expected >= 0");
  return top_logprobs(row.values, lse_, static_cast<std::size_t>(n));
}

DistributionCall::DistributionCall(SessionCore& session, ConstBranches branches,
                                   std::stop_token cancel)
    : RowsCall(session, std::move(cancel)) {
  add(branches, "distributions");
}

void DistributionCall::read(std::span<const std::shared_ptr<const LogitsRow>> rows) {
  std::vector<const LogitsRow*> known;
  for (const auto& row : rows) {
    if (row != nullptr) known.push_back(row.get());
  }
  std::vector<double> lse(known.size());
  if (engine_.backend->sampler() != nullptr) {
    lse = engine_.stepper->readout().log_sum_exps(known);  // where other log-probs come from
  } else {
    engine_.workers->parallel_for(std::ssize(known), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        lse[i] = log_sum_exp(known[i]->values);
      }
    });
  }
  std::size_t next = 0;
  for (const auto& row : rows) {
    distributions_.push_back(row == nullptr ? Distribution() : Distribution(row, lse[next++]));
  }
}

}  // namespace dendrite
