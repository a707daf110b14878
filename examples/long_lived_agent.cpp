// An agent that says more than its context holds. Near the limit its oldest turns are dropped: K
// and V of the system prompt are kept, those of later turns moved to where they are now, and only a
// few tokens of them are computed.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

namespace {
using namespace dendrite;

constexpr std::int64_t kLimit = 240;  // tokens

/// The first span, and of the others the last ones that leave half of the limit.
std::vector<Span> newest(const std::vector<Span>& turns) {
  std::size_t first = turns.size();
  std::int64_t length = turns[0].end;
  while (first > 1 && length + turns[first - 1].end - turns[first - 1].begin <= kLimit / 2) {
    --first;
    length += turns[first].end - turns[first].begin;
  }
  std::vector<Span> kept = {turns[0]};
  kept.insert(kept.end(), turns.begin() + static_cast<std::ptrdiff_t>(first), turns.end());
  return kept;
}

}  // namespace

int main(int argc, char** argv) try {
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine);
  Branch agent = session.prefill("E 24: 24 ok\n");
  std::vector<Span> turns = {{0, agent.length()}};  // the system prompt, then one a turn
  for (const int number : {4, 2, 3, 7, 8, 9, 1, 6, 5, 4, 3, 2}) {
    const std::int64_t begin = agent.length();
    agent.append("S 24: " + std::to_string(number) + " 5 6 10\n");
    session.decode(agent, {.max_tokens = 24, .temperature = 0, .ignore_eos = true});
    agent.append("\n");
    turns.push_back({begin, agent.length()});
    if (agent.length() + 48 <= kLimit) continue;
    const std::vector<Span> kept = newest(turns);
    Composed compacted = session.compact(agent, kept);
    const Composition& r = compacted.report;
    std::printf("%d turns kept, %d dropped; tokens: %d kept, %d moved, %d computed, %d dropped\n",
                static_cast<int>(kept.size() - 1), static_cast<int>(turns.size() - kept.size()),
                static_cast<int>(r.kept), static_cast<int>(r.moved),
                static_cast<int>(r.repaired + r.computed), static_cast<int>(r.dropped));
    agent = std::move(compacted.branch);
    turns.clear();
    for (std::int64_t at = 0; const Span& span : kept) {
      turns.push_back({at, at + span.end - span.begin});
      at = turns.back().end;
    }
  }
  std::printf("%d tokens in %d rows\n", static_cast<int>(agent.length()),
              static_cast<int>(session.stats().tokens_computed));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
