// Ledgers: texts in which facts are noted, events are counted, and both are asked for.
//
//   ab=472     a fact: a name and its number
//   +B         an event of one of four kinds; -B: what was counted of it is nothing again
//   ab?472     the number of a name, however long ago it was noted
//   B?3        how many events of a kind have come since it was nothing
//   ?A0B3C1D7  the same of all kinds
//
// What follows a question mark is learnt, with its line break. A name has one number; no count goes
// beyond 9.
#pragma once

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "packing.h"

namespace train {

inline constexpr int kLedgerRowTokens = 512;
inline constexpr std::string_view kEventKinds = "ABCD";

/// What a phase draws: bytes of a ledger at least and at most, and whether names are a letter
/// twice, so that one letter finds a fact.
struct LedgerPhase {
  int least, most;
  bool doubled;
};
inline constexpr std::array<LedgerPhase, 3> kLedgerPhases = {
    {{40, 120, true}, {80, 250, false}, {120, kLedgerRowTokens - 4, false}}};

class Ledger {
 public:
  Document document() && { return {std::move(text_), 0, false, false, std::move(marks_)}; }
  int size() const { return static_cast<int>(text_.size()); }
  bool has_facts() const { return !facts_.empty(); }

  void note(bool doubled, Rng& rng) {
    std::string name;
    do {
      const char first = letter(rng);
      name = {first, doubled ? first : letter(rng)};
    } while (!names_.insert(name).second);
    std::string number;
    for (int i = 0; i < 3; ++i) number += static_cast<char>('0' + rng.below(10));
    add(name + '=' + number + '\n');
    facts_.emplace_back(std::move(name), std::move(number));
  }

  void count(Rng& rng) {
    const int kind = rng.below(static_cast<int>(kEventKinds.size()));
    int& so_far = counts_[static_cast<std::size_t>(kind)];
    const bool resets = so_far == 9 || rng.chance(0.08);
    so_far = resets ? 0 : so_far + 1;
    add({resets ? '-' : '+', kEventKinds[static_cast<std::size_t>(kind)], '\n'});
  }

  void ask_for_fact(Rng& rng) {
    const auto& [name, number] = facts_[static_cast<std::size_t>(rng.below(size_of(facts_)))];
    add(name + '?');
    add(number + '\n', true);
  }

  void ask_for_count(Rng& rng) {
    const auto kind = static_cast<std::size_t>(rng.below(size_of(kEventKinds)));
    add({kEventKinds[kind], '?'});
    add({static_cast<char>('0' + counts_[kind]), '\n'}, true);
  }

  void ask_for_all() {
    add("?");
    std::string all;
    for (std::size_t kind = 0; kind < counts_.size(); ++kind)
      all += {kEventKinds[kind], static_cast<char>('0' + counts_[kind])};
    add(all + '\n', true);
  }

 private:
  static char letter(Rng& rng) { return static_cast<char>('a' + rng.below(26)); }
  template <typename T>
  static int size_of(const T& list) {
    return static_cast<int>(list.size());
  }
  void add(const std::string& text, bool learnt = false) {
    text_ += text;
    marks_.resize(text_.size(), learnt ? kLearnt : std::uint16_t{0});
  }

  std::string text_;
  std::vector<std::uint16_t> marks_;
  std::set<std::string> names_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::array<int, kEventKinds.size()> counts_{};
};

/// A ledger of some `bytes`. In half of them facts are noted at the beginning alone.
inline Ledger draw_ledger(int bytes, bool doubled, Rng& rng) {
  Ledger ledger;
  const int noted_until = rng.chance(0.5) ? bytes / 3 : bytes;
  const int longest_line = 10;
  while (ledger.size() + longest_line <= bytes) {
    const int action = rng.below(100);
    if (action < 30 && ledger.size() <= noted_until)
      ledger.note(doubled, rng);
    else if (action < 60 || !ledger.has_facts())
      ledger.count(rng);
    else if (action < 82)
      ledger.ask_for_fact(rng);
    else if (action < 94)
      ledger.ask_for_count(rng);
    else
      ledger.ask_for_all();
  }
  return ledger;
}

}  // namespace train
