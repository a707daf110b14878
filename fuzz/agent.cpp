// Agents, and what they do with the tree.
#include "fuzz/agent.h"

#include <algorithm>
#include <chrono>

#include "fuzz/draw_calls.h"
#include "fuzz/submitted.h"

namespace dendrite::fuzz {
namespace {

void fork(Agent& agent) {
  Mirror* parent = agent.any_idle();
  if (parent == nullptr || agent.full()) return;
  agent.say("fork b", parent->number);
  for (Branch& child : parent->branch.fork(static_cast<int>(agent.draws().in(1, 3)))) {
    agent.mirrors().add_fork(std::move(child), *parent, parent->tokens, parent->logprob);
  }
}

void rewind(Agent& agent) {
  Mirror* parent = agent.any_idle();
  if (parent == nullptr || agent.full()) return;
  const std::int64_t length = parent->length() - agent.draws().below(parent->length());
  agent.say("b", parent->number, " at ", length);
  std::vector<Token> tokens(parent->tokens.begin(), parent->tokens.begin() + length);
  agent.mirrors().add_fork(parent->branch.at(length), *parent, std::move(tokens), 0);
}

void append(Agent& agent) {
  Mirror* mirror = agent.any_idle();
  if (mirror == nullptr || mirror->length() > World::kMostTokens - 200) return;
  const std::int64_t most = agent.draws().one_in(6) ? 150 : 6;
  std::vector<Token> tokens =
      agent.draws().tokens(agent.draws().in(1, most), agent.engine().info().vocab);
  if (mirror->spans.constraint() != nullptr && !agent.draws().one_in(3)) {
    tokens = draw_allowed(*mirror, agent.draws().in(1, 12), agent.draws());
  }
  agent.say("append ", tokens.size(), " tokens to b", mirror->number);
  agent.counts().refused_tokens += mirror->append(tokens) ? 0 : 1;
}

void constrain(Agent& agent) {
  Mirror* mirror = agent.any_idle();
  if (mirror == nullptr || !agent.engine().info().has_tokenizer) return;
  const std::optional<Constraint> constraint = draw_constraint(agent.draws());
  agent.say(constraint ? "constrain b" : "unconstrain b", mirror->number);
  mirror->constrain(constraint);
}

void prune(Agent& agent) {
  const Mirror* mirror = agent.any_idle();
  if (mirror == nullptr) return;
  agent.say("prune b", mirror->number);
  agent.mirrors().drop(*mirror);
}

void set_priority(Agent& agent) {
  Mirror* mirror = agent.any_idle();
  if (mirror == nullptr) return;
  mirror->priority = static_cast<int>(agent.draws().in(-2, 2));
  mirror->branch.set_priority(mirror->priority);
}

void hold(Agent& agent) {
  Mirror* mirror = agent.any_idle();
  if (mirror == nullptr) return;
  if (agent.draws().one_in(2)) {
    mirror->branch.release();
  } else {
    mirror->branch.hold(std::chrono::milliseconds(1));
  }
}

void use(Agent& agent) {
  if (agent.submitted().empty()) return;
  const auto place = agent.submitted().begin() + agent.draws().below(std::ssize(agent.submitted()));
  if ((*place)->use(agent)) agent.submitted().erase(place);
}

void cut_somebody(Agent& agent) {
  agent.board().cut_somebody(agent.draws());
}

void take_turns(Agent& agent) {
  for (std::int64_t n = agent.draws().in(1, 6); n > 0; --n) {
    if (!agent.engine().step()) return;
  }
}

void look(Agent& agent) {
  require(agent.session().stats().branches_live > 0 || agent.mirrors().all().empty(),
          "a session with branches counts none");
  const EngineStats stats = agent.engine().stats();
  require(stats.pages_used + stats.pages_free == stats.pool_pages, "pages are lost");
  if (const Mirror* mirror = agent.any_idle()) mirror->check();
}

struct AgentOperation {
  int weight;  // how often, next to the others
  void (*run)(Agent& agent);
};

constexpr AgentOperation kOperations[] = {
    {6, wait_for_prefill},
    {10, wait_for_decode},
    {4, wait_for_decode_step},
    {5, wait_for_score},
    {3, wait_for_expand},
    {6, submit_prefill},
    {10, submit_decode},
    {5, submit_score},
    {24, use},
    {8, fork},
    {6, rewind},
    {6, append},
    {5, prune},
    {2, set_priority},
    {2, hold},
    {5, cut_somebody},
    {3, take_turns},
    {3, look},
    {8, constrain},
    {5, wait_for_compose},
};

const AgentOperation& draw_operation(Draws& draws) {
  std::int64_t total = 0;
  for (const AgentOperation& operation : kOperations) total += operation.weight;
  std::int64_t place = draws.below(total);
  const AgentOperation* operation = kOperations;
  while (place >= operation->weight) place -= (operation++)->weight;
  return *operation;
}

}  // namespace

void Board::add(Cut cut) {
  const std::lock_guard lock(mutex_);
  if (cuts_.size() < kMost) cuts_.emplace_back();
  cuts_[next_] = std::move(cut);
  next_ = (next_ + 1) % kMost;
}

void Board::cut_somebody(Draws& draws) {
  Cut cut;
  {
    const std::lock_guard lock(mutex_);
    if (!cuts_.empty()) cut = draws.pick(cuts_);
  }
  if (cut) cut();
}

AgentLane::AgentLane(Mirror& of)
    : mirror(&of), before(of.history()), logprob(of.branch.logprob()) {}

Agent::Agent(World& world, Board& board, Owner& owner, std::span<const std::vector<Token>> prompts,
             std::uint64_t key)
    : world_(world),
      board_(board),
      owner_(owner),
      prompts_(prompts),
      draws_(key, tape_),
      mirrors_(counts_, world.mirrors().next_number()) {
  for (const Mirror* mirror : world.mirrors().of(owner)) {
    mirrors_.put(world.mirrors().take(*mirror));
  }
}

Agent::~Agent() = default;

void Agent::run(std::int64_t operations) {
  for (; operations > 0; --operations) {
    draw_operation(draws_).run(*this);
    ++counts_.agent_operations;
  }
  while (!submitted_.empty()) {
    if (submitted_.back()->use(*this)) {
      submitted_.pop_back();
    } else if (draws_.one_in(2)) {
      submitted_.back()->end(*this);
      submitted_.pop_back();
    }
  }
}

void Agent::finish(Reference& reference) {
  for (auto& mirror : mirrors_.all()) world_.mirrors().put(std::move(mirror));
  mirrors_.all().clear();
  for (const auto& check : checks_) check(reference);
  checks_.clear();
  world_.counts() += counts_;
}

bool Agent::full() const {
  return std::ssize(mirrors_.all()) + std::ssize(submitted_) >= World::kMostBranches / 4;
}

std::vector<Mirror*> Agent::idle() {
  std::vector<Mirror*> idle;
  for (const auto& mirror : mirrors_.all()) {
    if (mirror->branch.valid()) idle.push_back(mirror.get());
  }
  return idle;
}

Mirror* Agent::any_idle() {
  std::vector<Mirror*> some = idle();
  return some.empty() ? nullptr : draws_.pick(some);
}

std::vector<Mirror*> Agent::company(std::int64_t most) {
  std::vector<Mirror*> out;
  for (std::int64_t n = draws_.in(1, most); n > 0; --n) {
    Mirror* mirror = any_idle();
    if (mirror != nullptr && std::ranges::count(out, mirror) == 0) out.push_back(mirror);
  }
  std::erase_if(out, [](const Mirror* m) { return m->length() > World::kMostTokens - 100; });
  return out;
}

std::vector<Token> Agent::prompt() {
  std::vector<Token> prompt;
  if (!draws_.one_in(4)) {
    const auto& known = prompts_[static_cast<std::size_t>(draws_.below(std::ssize(prompts_)))];
    prompt = known;
    if (draws_.one_in(2)) return prompt;
    prompt.resize(static_cast<std::size_t>(draws_.below(std::ssize(prompt))));
  }
  const std::vector<Token> rest = draws_.tokens(draws_.in(1, 40), engine().info().vocab);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  const std::int64_t most = std::min(engine().info().kv_tokens, World::kMostTokens);
  if (std::ssize(prompt) > most) prompt.resize(static_cast<std::size_t>(most));
  return prompt;
}

std::uint64_t Agent::count_prompt(const std::vector<Token>& prompt,
                                  const std::optional<std::uint64_t>& stream) {
  return stream ? 0 : owner_.prompts[prompt]++;
}

}  // namespace dendrite::fuzz
