#include "draft/acceptance.h"

#include <algorithm>
#include <cmath>

namespace dendrite {
namespace {

/// Of what was learnt, with each test: some thirty tests decide.
constexpr double kForgotten = 0.03;
/// What is believed before anything was seen counts as so many tests.
constexpr double kBelieved = 4;
/// Of the first token of a draft.
constexpr double kFirstComes = 0.7;

}  // namespace

double AcceptanceRate::value() const {
  return std::clamp(came / tried, 0.01, 0.99);
}

void AcceptanceRate::learn(bool it_came) {
  came += (it_came ? 1 : 0) - kForgotten * came;
  tried += 1 - kForgotten * tried;
}

AcceptanceRate AcceptanceRate::believed(double chance) {
  return {.came = kBelieved * chance, .tried = kBelieved};
}

Acceptance::Acceptance(const std::vector<double>& beliefs) {
  for (const double belief : beliefs) {
    float begin = 0;
    for (const float end : kEnds) {
      rates_.push_back(AcceptanceRate::believed(belief < 0 ? (begin + end) / 2 : belief));
      begin = end;
    }
  }
}

std::int32_t Acceptance::kind_of(std::int32_t of_class, float logprob) {
  const auto end = std::ranges::lower_bound(kEnds, std::min(std::exp(logprob), 1.0F));
  return of_class * static_cast<std::int32_t>(kEnds.size()) +
         static_cast<std::int32_t>(end - kEnds.begin());
}

float Acceptance::logw(std::int32_t kind) const {
  return static_cast<float>(std::log(rates_[static_cast<std::size_t>(kind)].value()));
}

void Acceptance::learn(const Draft& draft, std::int32_t node, std::int32_t came) {
  for (std::size_t i = 0; i < draft.nodes.size(); ++i) {
    const DraftNode& child = draft.nodes[i];
    if (child.parent != node) continue;
    rates_[static_cast<std::size_t>(child.kind)].learn(static_cast<std::int32_t>(i) == came);
  }
}

void Acceptance::learn_length(std::int64_t drafted, std::int64_t taken, bool ended) {
  const std::int64_t tests = std::min({ended ? taken : taken + 1, drafted, kDepths});
  for (std::int64_t i = 0; i < tests; ++i) {
    AcceptanceRate& rate = depths_[static_cast<std::size_t>(i)];
    if (rate.tried == 0) rate = AcceptanceRate::believed(taken_at(i + 1));
    rate.learn(i < taken);
  }
}

/// What was never seen is believed to be as what is before it.
double Acceptance::taken_at(std::int64_t depth) const {
  for (std::int64_t i = std::min(depth, kDepths) - 1; i >= 0; --i) {
    const AcceptanceRate& rate = depths_[static_cast<std::size_t>(i)];
    if (rate.tried > 0) return rate.value();
  }
  return kFirstComes;
}

}  // namespace dendrite
