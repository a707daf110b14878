#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/ledger.h"

// A ledger as text: one JSON object.
namespace dendrite {

struct LedgerText {
  std::uint64_t last_id = 0;            // that was given to an effect
  std::vector<Effect> effects{};        // by id: parents before children
  std::map<BranchId, EffectId> ends{};  // of branches that have any: the last one
};

std::string write_ledger(const LedgerText& text);
/// Text from outside: nothing in it is believed before it is checked. Throws Error that says what
/// is wrong.
LedgerText parse_ledger(std::string_view text);

}  // namespace dendrite
