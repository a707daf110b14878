// Several agents use the engine at once: their calls meet in steps as the threads have it.
#include <memory>
#include <optional>
#include <thread>

#include "engine/branches/internals.h"
#include "fuzz/agent.h"
#include "fuzz/operations.h"
#include "fuzz/submitted.h"

namespace dendrite::fuzz {
namespace {

/// Sessions for so many agents; those that were opened for it, of several weights, are in `opened`.
std::vector<Owner*> owners_of(World& world, Draws& draws, std::int64_t agents,
                              std::vector<Owner*>& opened) {
  std::vector<Owner*> out;
  for (const auto& owner : world.owners()) {
    if (owner->session && std::ssize(out) < agents) out.push_back(owner.get());
  }
  while (std::ssize(out) < agents) {
    const auto seed = static_cast<std::uint64_t>(draws.below(100));
    const auto weight = static_cast<double>(draws.in(1, 4));
    out.push_back(
        &world.adopt(Session(world.engine(), {.seed = seed, .weight = weight}), seed, 0, {}));
    opened.push_back(out.back());
  }
  return out;
}

/// Prompts that several agents are given.
std::vector<std::vector<Token>> shared_prompts(World& world, Draws& draws) {
  std::vector<std::vector<Token>> prompts = world.prompts();
  prompts.push_back(draws.tokens(draws.in(1, 100), world.vocab()));
  std::erase_if(prompts, [](const auto& prompt) { return prompt.size() > 300; });
  return prompts;
}

}  // namespace

void overlap(World& world, Draws& draws) {
  const std::int64_t count = draws.in(2, 6);
  std::vector<Owner*> opened;
  const std::vector<Owner*> owners = owners_of(world, draws, count, opened);
  const std::vector<std::vector<Token>> prompts = shared_prompts(world, draws);
  Board board;
  std::vector<std::unique_ptr<Agent>> agents;
  std::vector<std::int64_t> operations;
  for (Owner* owner : owners) {
    const auto key = static_cast<std::uint64_t>(draws.below(1 << 16));
    agents.push_back(std::make_unique<Agent>(world, board, *owner, prompts, key));
    operations.push_back(draws.in(1, 16));
    Budget& budget = core_of(*owner->session)->options.budget;
    if (draws.one_in(8)) budget.tokens = core_of(*owner->session)->spent_tokens() + draws.in(1, 60);
  }
  const bool driven = draws.one_in(3);
  world.say("overlap of ", count, " agents", driven ? ", and a thread that drives" : "");
  {
    std::optional<EngineThread> driver;
    if (driven) driver.emplace(world.engine().start());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < agents.size(); ++i) {
      threads.emplace_back([&, i] { world.guard([&] { agents[i]->run(operations[i]); }); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  while (world.engine().step()) {  // what was dropped, and nobody waited for
  }
  for (std::size_t i = 0; i < agents.size(); ++i) {
    agents[i]->finish(world.reference());
    core_of(*owners[i]->session)->options.budget = {};
  }
  for (Owner* owner : opened) world.close(*owner, draws.one_in(2));
}

}  // namespace dendrite::fuzz
