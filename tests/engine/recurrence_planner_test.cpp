// Where recurrent layers go on from: whatever a tree goes through, with whatever memory, each row
// gets the state of exactly the tokens before it. A state is a hash of tokens here.
#include "step/recurrence_planner.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "step/step_plan.h"
#include "tests/kv/host_kv_store.h"

namespace dendrite {
namespace {

constexpr std::uint64_t kRoot = 0x243F6A8885A308D3u;

std::uint64_t behind(std::uint64_t before, Token token) {
  std::uint64_t x = (before ^ static_cast<std::uint64_t>(token + 1)) * 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

/// Only what a tree asks of it.
class NoStates final : public StateStore {
 public:
  explicit NoStates(const StateShape& shape) : shape_(shape) {}
  const StateShape& shape() const override { return shape_; }
  void read_anchor(std::int32_t, std::span<float>) const override {}
  void write_anchor(std::int32_t, std::span<const float>) override {}
  void read_journal(std::int32_t, std::span<float>) const override {}
  void write_journal(std::int32_t, std::span<const float>) override {}

 private:
  StateShape shape_;
};

struct Memory {
  std::int64_t pages = 64;
  std::int64_t anchors = 8;
  std::int64_t journals = 128;
};

/// A tree, and steps that do to anchors and journals what a pass does.
class Recurrence {
 public:
  explicit Recurrence(const Memory& memory)
      : kv_({.layers = 1,
             .kv_heads = 1,
             .head_dim = 2,
             .pages = memory.pages,
             .format = KvFormat::kF32}),
        states_({.layers = 1,
                 .anchor_values = 1,
                 .journal_values = 1,
                 .anchors = memory.anchors,
                 .journals = memory.journals}),
        anchors_(static_cast<std::size_t>(memory.anchors), 1),
        journals_(static_cast<std::size_t>(memory.journals)),
        tree(PathStores(kv_, nullptr, &states_)),
        plan_(kChunkTokens) {}
  ~Recurrence() {
    for (auto& tip : tips) tree.drop(*tip);
  }

  Tip& keep(Tip tip) {
    tips.push_back(std::make_unique<Tip>(std::move(tip)));
    return *tips.back();
  }
  void drop(std::size_t i) {
    tree.drop(*tips[i]);
    tips.erase(tips.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void append(Tip& tip, std::int64_t count) {
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(next_token_++);
    tree.append(tip, tokens);
  }

  /// A path of its own, computed.
  Tip& prompt(std::int64_t length, std::int64_t rows = 1000) {
    Tip& tip = keep(tree.root());
    append(tip, length);
    run_to_end(tip, rows);
    return tip;
  }

  /// A step for these tips; returns its rows. `meanwhile`: before its pass.
  std::int64_t step(const std::vector<Tip*>& run, std::int64_t rows = 1000,
                    const std::function<void()>& meanwhile = {}) {
    std::vector<StepRequest> requests;
    for (Tip* tip : run) {
      requests.push_back({.tip = tip, .optional = optional, .keep_logits = keep_logits});
    }
    std::vector<StepOutcome> outcomes(requests.size());
    StepGroup group;
    plan_.build(tree, requests, outcomes,
                {.rows = rows,
                 .logit_rows = 100,
                 .moves = 0,
                 .groups = {&group, 1},
                 .windows = {0},
                 .widest = [rows](std::int64_t) { return rows; }},
                [](std::int64_t, std::size_t, bool) {});
    std::vector<std::vector<Token>> paths;
    for (const StepPlan::Run& planned : plan_.runs) {
      paths.push_back(tree.tokens(*planned.owner, 0, planned.rows_end));
    }
    if (meanwhile) meanwhile();
    pass();
    for (std::size_t i = 0; i < plan_.runs.size(); ++i) check_rows(plan_.runs[i], paths[i]);
    std::vector<StepPlan::Run> done = plan_.runs;
    std::ranges::sort(done, {}, &StepPlan::Run::begin);
    for (const StepPlan::Run& planned : done) {
      // (Somebody may have cut the segment meanwhile.)
      std::vector<Segment*> parts;
      for (Segment* s = planned.segment; s != nullptr && s->end() > planned.begin; s = s->parent) {
        parts.insert(parts.begin(), s);
      }
      for (Segment* part : parts) {
        tree.set_computed(*part, std::max(part->computed, std::min(planned.end, part->end())));
      }
    }
    std::vector<const Tip*> all;
    for (const auto& tip : tips) all.push_back(tip.get());
    tree.check_invariants(all);
    return plan_.batch.rows();
  }
  /// Rows of each run of the last step.
  std::vector<int> runs() const {
    std::vector<int> rows;
    for (const RecurrencePlan::Run& run : plan_.batch.recurrence.runs) {
      rows.push_back(run.row_end - run.row_begin);
    }
    return rows;
  }
  void run_to_end(Tip& tip, std::int64_t rows = 1000) {
    for (int i = 0; tree.computed(tip) < tree.length(tip); ++i) {
      ASSERT_LT(i, 1000) << "no end";
      step({&tip}, rows);
    }
  }

 private:
  struct Journal {
    Token token = -1;
    std::uint64_t hash = 1;
  };

  /// Runs may be under way at the same time but for those that go on from others: no slot is
  /// written twice, nor after it was read.
  void check_slots() {
    const RecurrencePlan& plan = plan_.batch.recurrence;
    std::set<std::int32_t> anchors;  // read or written so far
    std::set<std::int32_t> journals;
    for (const RecurrencePlan::Run& run : plan.runs) {
      if (run.anchor >= 0) anchors.insert(run.anchor);
      for (std::int32_t i = 0; i < run.known; ++i) {
        journals.insert(plan.known[static_cast<std::size_t>(run.known_begin + i)]);
      }
      for (std::int64_t i = 0; i < RecurrencePlan::chunks_ended(run); ++i) {
        const std::int32_t slot = plan.anchors[static_cast<std::size_t>(run.anchors_begin + i)];
        ASSERT_TRUE(slot < 0 || anchors.insert(slot).second) << "anchor " << slot;
      }
      for (std::int32_t row = run.row_begin; row < run.row_end; ++row) {
        const std::int32_t slot = plan.journals[static_cast<std::size_t>(row)];
        ASSERT_TRUE(slot < 0 || journals.insert(slot).second) << "journal " << slot;
      }
    }
  }

  void pass() {
    check_slots();
    const RecurrencePlan& plan = plan_.batch.recurrence;
    hashes_.assign(static_cast<std::size_t>(plan_.batch.rows()), 0);
    for (const RecurrencePlan::Run& run : plan.runs) {
      std::int64_t position = run.first_position - run.known;
      ASSERT_EQ(position % kChunkTokens, 0);
      ASSERT_LE(run.known, kChunkTokens);
      ASSERT_EQ(run.anchor < 0, position == 0);
      std::uint64_t hash = run.anchor < 0 ? kRoot : anchors_[static_cast<std::size_t>(run.anchor)];
      auto anchor = static_cast<std::size_t>(run.anchors_begin);
      const auto go_on = [&] {
        if (++position % kChunkTokens != 0) return;
        const std::int32_t slot = plan.anchors.at(anchor++);
        if (slot >= 0) anchors_[static_cast<std::size_t>(slot)] = hash;
      };
      for (std::int32_t i = 0; i < run.known; ++i) {
        const std::int32_t slot = plan.known[static_cast<std::size_t>(run.known_begin + i)];
        ASSERT_GE(slot, 0);
        const Journal& journal = journals_[static_cast<std::size_t>(slot)];
        hash = behind(hash, journal.token);
        ASSERT_EQ(hash, journal.hash) << "another path's journal";
        go_on();
      }
      for (std::int32_t row = run.row_begin; row < run.row_end; ++row) {
        const Token token = plan_.batch.tokens[static_cast<std::size_t>(row)];
        hash = behind(hash, token);
        hashes_[static_cast<std::size_t>(row)] = hash;
        const std::int32_t slot = plan.journals[static_cast<std::size_t>(row)];
        if (slot >= 0) journals_[static_cast<std::size_t>(slot)] = {token, hash};
        go_on();
      }
    }
  }

  void check_rows(const StepPlan::Run& planned, const std::vector<Token>& path) {
    std::uint64_t hash = kRoot;
    for (std::int64_t p = 0; p < planned.rows_end; ++p) {
      hash = behind(hash, path[static_cast<std::size_t>(p)]);
      if (p < planned.rows_begin) continue;
      const std::int64_t row = planned.first_row + p - planned.begin;
      ASSERT_EQ(hashes_[static_cast<std::size_t>(row)], hash) << "position " << p;
      ASSERT_EQ(plan_.batch.positions[static_cast<std::size_t>(row)], p);
      ASSERT_EQ(plan_.batch.slots[static_cast<std::size_t>(row)] < 0,
                p < planned.begin || !planned.store);
    }
  }

  testing::HostKvStore kv_;
  NoStates states_;
  std::vector<std::uint64_t> anchors_;
  std::vector<Journal> journals_;
  std::vector<std::uint64_t> hashes_;  // behind each row of the last pass
  Token next_token_ = 0;

 public:
  KvTree tree;
  std::vector<std::unique_ptr<Tip>> tips;
  bool keep_logits = false;  // wanted in each step
  bool optional = false;     // and so is all else

 private:
  StepPlan plan_;
};

TEST(RecurrencePlanner, GoesOnWithoutRowsTwice) {
  Recurrence r({});
  Tip& tip = r.keep(r.tree.root());
  r.append(tip, 100);
  EXPECT_EQ(r.step({&tip}), 100);
  for (int i = 0; i < 40; ++i) {  // over borders
    r.append(tip, 1);
    EXPECT_EQ(r.step({&tip}), 1);
  }
  Tip& fork = r.keep(r.tree.fork(tip));
  r.append(fork, 3);
  r.append(tip, 20);
  EXPECT_EQ(r.step({&fork, &tip}), 23);
}

TEST(RecurrencePlanner, ARunThatGoesOnInItsChunkIsOneWithTheRunBefore) {
  for (const std::int64_t length : {40, 47}) {
    Recurrence r({});
    Tip& tip = r.prompt(length);
    r.append(tip, 1);  // a token, and two drafts behind it
    Tip& draft = r.keep(r.tree.fork(tip));
    r.append(draft, 3);
    Tip& beside = r.keep(r.tree.fork(tip));
    r.append(beside, 2);
    EXPECT_EQ(r.step({&tip, &draft, &beside}), 6);
    const bool ends_chunk = (length + 1) % kChunkTokens == 0;
    EXPECT_EQ(r.runs(), ends_chunk ? std::vector({1, 3, 2}) : std::vector({4, 2})) << length;
  }
}

TEST(RecurrencePlanner, ManyForksReadOneAnchor) {
  Recurrence r({.pages = 128, .anchors = 4, .journals = 400});
  Tip& tip = r.prompt(40);
  std::vector<Tip*> forks;
  for (int i = 0; i < 20; ++i) {
    forks.push_back(&r.keep(r.tree.fork(tip)));
    r.append(*forks.back(), 1);
  }
  EXPECT_EQ(r.step(forks), 20);
  EXPECT_EQ(r.tree.states()->anchors_used(), 1);
}

TEST(RecurrencePlanner, ComesBackToAnyTokenFromTheAnchorBefore) {
  Recurrence r({.pages = 400, .anchors = 8, .journals = 128});
  Tip& tip = r.prompt(2100, 512);
  Tip& back = r.keep(r.tree.at(tip, 1200));
  r.append(back, 1);
  EXPECT_EQ(r.step({&back}), 1200 - 1024 + 1);
  Tip& again = r.keep(r.tree.at(tip, 1200));  // known since
  r.append(again, 1);
  EXPECT_EQ(r.step({&again}), 1);
  Tip& border = r.keep(r.tree.at(tip, 1024));
  r.append(border, 1);
  EXPECT_EQ(r.step({&border}), 1);
}

TEST(RecurrencePlanner, SeveralComeBackToOnePlaceInOneStep) {
  Recurrence r({.pages = 400, .anchors = 8, .journals = 128});
  Tip& tip = r.prompt(300);
  std::vector<Tip*> back;
  for (int i = 0; i < 5; ++i) {
    back.push_back(&r.keep(r.tree.at(tip, 70)));
    r.append(*back.back(), 1);
  }
  EXPECT_EQ(r.step(back), 75);  // the first one goes over 70 tokens again
}

TEST(RecurrencePlanner, AnAnchorThatIsThereIsNotWrittenAgain) {
  Recurrence r({});
  Tip& tip = r.prompt(32);
  Tip& on = r.keep(r.tree.fork(tip));
  r.append(on, 1);
  r.keep_logits = true;                    // of the 32nd token, too, behind which the other goes on
  EXPECT_EQ(r.step({&on, &tip}), 1 + 32);  // (of that one no journals are kept)
}

TEST(RecurrencePlanner, StepsOfFewRowsComeToAnEnd) {
  Recurrence r({.pages = 100, .anchors = 4, .journals = 64});
  Tip& tip = r.prompt(300, 7);
  Tip& back = r.keep(r.tree.at(tip, 250));
  r.append(back, 5);
  r.run_to_end(back, 7);
}

TEST(RecurrencePlanner, ManyThatComeBackFarGetThereWithFewStates) {
  for (const bool optional : {false, true}) {
    SCOPED_TRACE(optional ? "optional" : "required");
    Recurrence r({.pages = 400, .anchors = 4, .journals = 64});
    std::vector<Tip*> back;
    for (int i = 0; i < 8; ++i) {
      back.push_back(&r.prompt(250 + 17 * i));
      r.append(*back.back(), 2);
    }
    r.tree.states()->clear();
    r.optional = optional;
    const auto is_there = [&](const Tip* of) { return r.tree.computed(*of) == r.tree.length(*of); };
    for (int step = 0; !std::ranges::all_of(back, is_there); ++step) {
      ASSERT_LT(step, 400) << "no end";
      std::ranges::rotate(back, back.begin() + 1);  // another one comes first, and takes all rows
      r.step(back, 20);
    }
  }
}

/// Rows of all steps until each of `tips` has so many tokens more, one after the other, in steps of
/// `rows`, when another one comes first in each.
std::int64_t rows_of_decoding(Recurrence& r, std::vector<Tip*> tips, int tokens,
                              std::int64_t rows) {
  std::map<Tip*, int> left;
  for (Tip* tip : tips) {
    r.append(*tip, 1);
    left[tip] = tokens;
  }
  std::int64_t all = 0;
  for (int step = 0; !tips.empty(); ++step) {
    if (step == 50000) {
      ADD_FAILURE() << "no end";
      break;
    }
    std::ranges::rotate(tips, tips.begin() + 1);
    all += r.step(tips, rows);
    std::erase_if(tips, [&](Tip* tip) {
      if (r.tree.computed(*tip) < r.tree.length(*tip)) return false;
      if (--left[tip] == 0) return true;
      r.append(*tip, 1);
      return false;
    });
  }
  return all;
}

TEST(RecurrencePlanner, OnesThatComeBackFinishBeforeOthersTakeTheirStates) {
  for (const std::int64_t rows : {3, 20, 1000}) {
    SCOPED_TRACE("steps of " + std::to_string(rows) + " rows");
    Recurrence r({.pages = 400, .anchors = 4, .journals = 64});
    std::vector<Tip*> back;
    std::int64_t lengths = 0;
    for (int i = 0; i < 8; ++i) {
      back.push_back(&r.prompt(250 + 17 * i));
      lengths += 250 + 17 * i;
    }
    r.tree.states()->clear();
    constexpr int kTokens = 40;
    // Each comes back once.
    EXPECT_EQ(rows_of_decoding(r, back, kTokens, rows), lengths + 8 * kTokens);
  }
}

TEST(RecurrencePlanner, NobodyKeepsItsStatesForLongerThanComingBackTook) {
  Recurrence r({.pages = 400, .anchors = 4, .journals = 64});
  std::vector<Tip*> back;
  std::int64_t lengths = 0;
  for (int i = 0; i < 6; ++i) {
    back.push_back(&r.prompt(50 + i));
    lengths += 50 + i;
  }
  r.tree.states()->clear();
  constexpr int kTokens = 300;
  const std::int64_t all = rows_of_decoding(r, back, kTokens, 20);
  EXPECT_GT(all, lengths + 6 * kTokens);  // others came meanwhile
  // Twice the rows that it is all about, and once more to where one ended soon.
  EXPECT_LT(all, 2 * 6 * kTokens + 6 * (56 + kTokens));
}

TEST(RecurrencePlanner, NobodyWaitsForOneThatDoesNotComeAgain) {
  Recurrence r({.pages = 100, .anchors = 4, .journals = 64});
  Tip& tip = r.prompt(300);
  Tip& first = r.keep(r.tree.at(tip, 200));
  Tip& second = r.keep(r.tree.at(tip, 250));
  r.append(first, 1);
  r.append(second, 1);
  r.tree.states()->clear();
  r.step({&first}, 20);
  r.run_to_end(second, 20);
  r.run_to_end(first, 20);
}

TEST(RecurrencePlanner, WhatAFailedPassDidNotWriteIsForgotten) {
  Recurrence r({});
  Tip& tip = r.prompt(50);
  r.tree.states()->clear();
  EXPECT_EQ(r.tree.states()->anchors_used() + r.tree.states()->journals_used(), 0);
  r.append(tip, 1);
  EXPECT_EQ(r.step({&tip}), 51);
}

class RecurrencePlannerAtRandom : public ::testing::TestWithParam<Memory> {};

TEST_P(RecurrencePlannerAtRandom, EveryRowHasTheStateOfItsTokens) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&random](auto n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(n));
    };
    Recurrence r(GetParam());
    r.append(r.keep(r.tree.root()), 20);
    const auto any = [&] { return static_cast<std::size_t>(below(r.tips.size())); };
    const auto change = [&] {
      switch (below(7)) {
        case 0:
          if (r.tips.size() < 12) r.keep(r.tree.fork(*r.tips[any()]));
          break;
        case 1:
        case 2: {
          const std::size_t i = any();
          const std::int64_t length = r.tree.length(*r.tips[i]);
          const std::int64_t most = below(2) == 0 ? length : std::min<std::int64_t>(length, 12);
          r.keep(r.tree.at(*r.tips[i], length - below(most + 1)));
          if (r.tips.size() > 12 || below(2) == 0) r.drop(i);  // it goes on in place
          break;
        }
        case 3:
          if (r.tips.size() > 3) r.drop(any());
          break;
        default: {
          Tip& tip = *r.tips[any()];
          if (r.tree.length(tip) < 200) r.append(tip, 1 + below(below(4) == 0 ? 60 : 3));
        }
      }
    };
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      for (std::int64_t n = below(4); n > 0; --n) change();
      if (below(8) == 0) {
        r.tree.begin_eviction();
        const Tip& tip = *r.tips[any()];
        r.tree.evict(tip, r.tree.claim(tip), r.tree.pool().free_pages() + 1 + below(4));
      }
      std::vector<Tip*> run;
      for (const auto& tip : r.tips) {
        if (below(2) == 0) run.push_back(tip.get());
      }
      // (What runs stays meanwhile, as a call's branches do.)
      const bool forks = below(2) == 0;
      r.step(run, below(3) == 0 ? 1 + below(40) : 1000, [&] {
        if (forks && r.tips.size() < 12) r.keep(r.tree.fork(*r.tips[any()]));
      });
    }
    if (::testing::Test::HasFailure()) return;
    while (!r.tips.empty()) r.drop(r.tips.size() - 1);
    EXPECT_EQ(r.tree.states()->anchors_used() + r.tree.states()->journals_used(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, RecurrencePlannerAtRandom,
                         ::testing::Values(Memory{}, Memory{64, 1, 16}, Memory{64, 0, 0},
                                           Memory{64, 40, 1000}, Memory{24, 4, 64}));

}  // namespace
}  // namespace dendrite
