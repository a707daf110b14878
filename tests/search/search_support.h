#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dendrite/search.h"
#include "support/engine_support.h"

// What tests of strategies share: steps and judgements from a script, over a real engine.
namespace dendrite::test {

/// The steps of a scripted branch: "ab" after "a\n" and "b\n".
inline std::string path_of(const Branch& branch) {
  std::string path = branch.text();
  std::erase(path, '\n');
  return path;
}

/// Proposes "a\n", "b\n", ... from each node.
inline std::function<Proposals(Session&, std::span<Branch>)> letters(int children) {
  return [children](Session&, std::span<Branch> nodes) {
    Proposals out;
    for (Branch& node : nodes) {
      std::vector<Branch>& mine = out.children.emplace_back();
      for (int i = 0; i < children; ++i) {
        mine.push_back(node.fork());
        mine.back().append(std::string(1, static_cast<char>('a' + i)) + "\n");
      }
    }
    return out;
  };
}

/// A strategy over letters, judged by a table of paths: "ab" is the second step of the first.
class ScriptedSearch : public ::testing::Test {
 protected:
  template <typename Strategy>
  Strategy script(int children) {
    Strategy strategy;
    strategy.steps.propose = letters(children);
    strategy.steps.judgement.judge = [this](Session&, std::span<Branch> candidates) {
      std::vector<double> out;
      for (const Branch& branch : candidates) out.push_back(values[path_of(branch)]);
      return out;
    };
    strategy.on_event = [this](const SearchEvent& event) {
      ++events[event.kind];
      const std::string path = path_of(event.thought->branch);
      if (event.kind == SearchEvent::Kind::kKept) kept.push_back(path);
      if (event.kind == SearchEvent::Kind::kPruned) pruned.push_back(path);
      if (event.kind == SearchEvent::Kind::kJudged) judged.push_back(path);
    };
    return strategy;
  }

  Engine engine = load("llama2", {.prefix_index = false});
  Session session{engine};
  std::map<std::string, double> values;
  std::map<SearchEvent::Kind, int> events;
  std::vector<std::string> kept, pruned, judged;
};

using Paths = std::vector<std::string>;

/// All that a search tells and returns, but for branch ids: what must not depend on threads.
class Transcript {
 public:
  std::function<void(const SearchEvent&)> reader() {
    return [this](const SearchEvent& event) {
      text_ += std::string(name_of(event.kind)) + " " + line(*event.thought) + "\n";
    };
  }
  std::string with(const SearchResult& result) const {
    std::string text = text_ + name_of(result.finish) + (result.solved ? " solved" : "") + "\n";
    for (const ThoughtRecord& record : result.path) text += line(record) + "\n";
    if (result.branch.valid()) text += result.branch.text();
    for (const Vote& vote : result.votes) text += vote.answer + std::to_string(vote.count) + "\n";
    return text;
  }

 private:
  static std::string line(const ThoughtRecord& t) {
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "%lld of %lld depth %d: %lld tokens %a value %a of %lld",
                  static_cast<long long>(t.node), static_cast<long long>(t.parent), t.depth,
                  static_cast<long long>(t.tokens), t.logprob, t.value,
                  static_cast<long long>(t.visits));
    return numbers + (" " + t.text);
  }

  std::string text_;
};

}  // namespace dendrite::test
