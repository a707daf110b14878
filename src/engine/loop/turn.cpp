#include "engine/loop/turn.h"

#include <algorithm>
#include <limits>

#include "engine/calls/lane_grammar.h"
#include "engine/calls/lane_sampler.h"
#include "step/shares.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

/// So many lanes hardly ever end with one and the same token, so a step that is begun before their
/// tokens are read is of use; where fewer may end it might be one too many for each call.
constexpr std::int64_t kManyLanes = 4;

/// A request that lacks more tokens than so many is long: beside others' it is computed in pieces.
/// (Prompts of a few tokens add up, too, where many come at once.)
constexpr std::int64_t kLong = 8;

/// What is computed behind may make a step so many times longer.
constexpr double kBehindSlack = 1.05;

}  // namespace

void EngineTurn::run() {
  const StepLimits limits = ask();
  const StepReport report = engine_.stepper->step(requests_, outcomes_, limits);
  const EngineTime step_begin = report.early ? memory_.last_end : begin_;
  memory_.last_end = std::chrono::steady_clock::now();
  stepped_ms_ = now_ms();
  const std::chrono::duration<double, std::milli> step_took = memory_.last_end - step_begin;
  {
    const TreeLock lock(engine_.tree_mutex);
    account(report, step_took.count());
    hand_out();
  }
  sample_lanes(engine_, ready_.open);
  advance_matchers(engine_, ready_.drawn, false);
  const double drawn_ms = now_ms() - asked_ms_;
  {
    const TreeLock lock(engine_.tree_mutex);
    for (Call* call : calls_) {
      if (!call->has_ended()) call->commit();
    }
    if (draft_wishes_.empty()) learn(report, drawn_ms, now_ms());
  }
  for (Call* call : calls_) {
    if (!call->has_ended()) call->conclude();
  }
  const double took_ms = now_ms();
  // Only now it is known who has ended, and which drafts came true.
  const bool ended = std::ranges::any_of(wishes_, [](const Wish& wish) {
    return wish.lane != nullptr && wish.lane->out.finish != Finish::kRunning;
  });
  if (ended || !draft_wishes_.empty()) {
    const TreeLock lock(engine_.tree_mutex);
    if (ended) memory_.admission.learn_lengths(wishes_);
    if (!draft_wishes_.empty()) learn(report, drawn_ms, took_ms);
  }
  for (DraftProvider* provider : providers_) provider->end_turn(took_ms);
}

double EngineTurn::now_ms() const {
  const std::chrono::duration<double, std::milli> since = std::chrono::steady_clock::now() - begin_;
  return since.count();
}

StepLimits EngineTurn::ask() {
  const bool drafts = std::ranges::any_of(calls_, &Call::wants_drafts);
  if (drafts) {
    {
      const TreeLock lock(engine_.tree_mutex);
      ask_calls();
    }
    draft();
  }
  const TreeLock lock(engine_.tree_mutex);
  if (!drafts) ask_calls();
  behind_.emplace(engine_, wishes_);
  asked_ms_ = now_ms();
  return arrange();
}

void EngineTurn::ask_calls() {
  for (Call* call : calls_) {
    firsts_.push_back(wishes_.size());
    if (!call->has_ended()) call->ask(wishes_);
  }
  firsts_.push_back(wishes_.size());
}

StepLimits EngineTurn::arrange() {
  StepLimits limits{.slack = std::numeric_limits<double>::infinity()};
  for (const Call* call : calls_) limits.slack = std::min(limits.slack, call->slack());
  if (behind_->state() != nullptr) limits.slack = std::min(limits.slack, kBehindSlack);
  memory_.admission.choose(wishes_);
  for (Wish& wish : wishes_) {
    wish.outside = wish.outside || (wish.is_draft && wish.branch->outside);
    if (wish.outside) continue;
    Part& part = part_of(*wish.branch->session);
    wish.request.group = static_cast<std::int32_t>(&part - parts_.data());
    if (wish.request.optional) {
      part.optional.push_back(&wish);
      continue;
    }
    part.required.push_back(&wish);
    wish.request.priority = wish.turn.priority;
    const std::int64_t rows = missing_rows(*engine_.tree, wish.request);
    part.wanted += rows;
    wish.turn.is_long = in_progress_ > 1 && rows > kLong;
    (wish.turn.is_long ? long_rows_ : short_rows_) += rows;
  }
  if (std::ssize(wishes_) < kManyLanes) {
    for (Wish& wish : wishes_) {
      if (wish.may_stop) wish.request.next = nullptr;
    }
  }
  limits.rows = rows_of_step();
  split_rows(limits.rows);
  order_requests();
  limits.groups = groups_;
  return limits;
}

EngineTurn::Part& EngineTurn::part_of(SessionCore& session) {
  const auto found = std::ranges::find(parts_, &session, &Part::session);
  return found != parts_.end() ? *found : parts_.emplace_back(session);
}

/// What is long takes as many rows beside the others as there is time for.
std::int64_t EngineTurn::rows_of_step() const {
  if (long_rows_ == 0) return engine_.step_rows;
  const std::int64_t in_time = memory_.pacer.rows(engine_.step_target_ms);
  // (The others' rows are wanted however long they take, and a long one is not to stand still.)
  constexpr std::int64_t kLeast = 16;
  return std::min(engine_.step_rows, std::max(in_time, short_rows_ + kLeast));
}

void EngineTurn::split_rows(std::int64_t rows) {
  std::vector<Share> shares;
  for (const Part& part : parts_) {
    SessionCore& session = *part.session;
    StepGroup group{.owner = session.number};
    if (const std::int64_t budget = session.options.budget.tokens; budget > 0) {
      group.budget = std::max<std::int64_t>(0, budget - session.spent_tokens());
    }
    groups_.push_back(group);
    shares.push_back({.weight = session.options.weight,
                      .wanted = std::min(part.wanted, group.budget),
                      .credit = session.row_credit});
  }
  if (parts_.size() < 2) return;
  share_rows(shares, rows);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    groups_[i].share = shares[i].rows;
    parts_[i].session->row_credit = shares[i].credit;
  }
}

void EngineTurn::order_requests() {
  order_.reserve(wishes_.size());
  requests_.reserve(wishes_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t rows = std::min(groups_[i].share, engine_.step_rows);
    parts_[i].first = order_.size();
    for (auto* wishes : {&parts_[i].required, &parts_[i].optional}) {
      order_turns(*wishes, rows);
      order_.insert(order_.end(), wishes->begin(), wishes->end());
    }
    parts_[i].end = order_.size();
  }
  for (const Wish* wish : order_) requests_.push_back(wish->request);
  outcomes_.resize(requests_.size());
}

void EngineTurn::prepare_draws() {
  for (Call* call : calls_) call->prepare_draft_draws();
  std::vector<Lane*> lanes;
  std::vector<DraftDraw*> drafts;
  for (const Wish& wish : wishes_) {
    if (wish.lane != nullptr) lanes.push_back(wish.lane);
    for (DraftDraw& draft : wish.masked) drafts.push_back(&draft);
  }
  prepare_masks(engine_, lanes, drafts);
}

void EngineTurn::note_runs() {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    std::int64_t rows = 0;
    bool ran = false;
    for (std::size_t wish = firsts_[i]; wish < firsts_[i + 1]; ++wish) {
      rows += of_wishes_[wish].rows;
      ran = ran || of_wishes_[wish].ran;
    }
    if (ran) calls_[i]->note_run(rows);
  }
}

/// `drawn_ms`: from the calls' wishes to their tokens. (Nothing is learned of the time of steps
/// that moved K and V, too.)
void EngineTurn::learn(const StepReport& report, double drawn_ms, double took_ms) {
  memory_.admission.keep_room(wishes_);
  engine_.record_turn(took_ms, report.rows > 0);
  if (report.rows == 0 || report.moved > 0) return;
  // What optional rows are let in by, and a long prompt's pieces are cut by: a step of so many rows
  // with all that its callers wait for.
  if (!report.early) {
    const std::int64_t rows = report.rows + report.kept;
    const bool is_alone = report.awaited && !memory_.pacer.under_way();
    if (is_alone) engine_.stepper->times->record(rows, drawn_ms);
    memory_.pacer.record(rows, drawn_ms, report.awaited);
  }
  learn_of_drafts(report.rows, took_ms);
}

void EngineTurn::hand_out() {
  of_wishes_.assign(wishes_.size(),
                    StepOutcome{.waited = true});  // who was outside waits for pages
  for (std::size_t i = 0; i < order_.size(); ++i) {
    of_wishes_[static_cast<std::size_t>(order_[i] - wishes_.data())] = outcomes_[i];
    if (order_[i]->branch == behind_->state() && outcomes_[i].waited) behind_->note_waited();
  }
  note_runs();
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i]->has_ended()) continue;
    calls_[i]->take(std::span(of_wishes_).subspan(firsts_[i], firsts_[i + 1] - firsts_[i]), ready_);
  }
}

}  // namespace dendrite
