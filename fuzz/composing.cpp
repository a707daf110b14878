// Compositions: of branches, tokens and chunks, by all calls that make such.
#include <algorithm>

#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "fuzz/operations.h"
#include "fuzz/plan.h"

namespace dendrite::fuzz {
namespace {

constexpr std::size_t kMostChunks = 8;

std::int64_t most_tokens(const World& world) {
  return std::min(world.engine().info().kv_tokens, World::kMostTokens - 200);
}

Sources sources_of(World& world, const Owner& owner) {
  return {world.engine(), world.mirrors().of(owner), world.chunks()};
}

Cut draw_cut_before(Draws& draws) {
  Cut cut = draw_cut(draws);
  if (cut.kind == Cut::Kind::kInside) cut.kind = Cut::Kind::kBefore;
  return cut;
}

/// What a call gave for a plan, with its mirror. Not `alone`: others of the call may have taken its
/// pages.
Mirror& take(World& world, Draws& draws, Owner& owner, Mirror* parent, Composed composed,
             const Plan& plan, const Cut& cut, bool alone = true) {
  const bool is_exact = plan.params().mode == ComposeParams::Mode::kExact;
  require(composed.branch.tokens() == plan.tokens(), "compose: other tokens than its pieces'");
  require(!is_exact || composed.report.exactness == Exactness::kExactPrefix,
          "compose: it was to be exact, and is not");
  require(composed.report.moved <= plan.most_moved(), "compose: less was repaired than was asked");
  const Finish finish = composed.branch.finish();
  const bool whole = computed_of(composed.branch) == composed.branch.length();
  Mirror& mirror = world.mirrors().add_composed(std::move(composed.branch), owner, parent,
                                                plan.tokens(), plan.recipe());
  if (parent != nullptr) mirror.priority = parent->priority;
  world.say("    -> b", mirror.number, " of ", mirror.length(), " tokens, ", composed.report.kept,
            " kept, ", composed.report.moved, " moved, ", composed.report.repaired, " repaired, ",
            name_of(finish));
  ++world.counts().compositions;
  if (finish == Finish::kRunning) {
    require(whole || !alone, "a composition left tokens out and does not say why");
  } else {
    require(finish == Finish::kBudget || (finish == Finish::kCancelled && cut.by_cancel()),
            "a composition ended for no reason");
    if (finish == Finish::kBudget && !cut.by_budget()) world.refused({&mirror});
    world.counts().cut_calls += cut.kind == Cut::Kind::kNone ? 0 : 1;
  }
  if (draws.one_in(4)) world.compare_bits(mirror);
  return mirror;
}

/// Runs `call` with the plan's parameters, cut as drawn; of no tokens it must throw.
template <typename Call>
void run(World& world, Draws& draws, Owner& owner, Mirror* parent, const Plan& plan,
         const Call& call) {
  ComposeParams params = plan.params();
  if (plan.length() == 0) {
    return must_throw("a composition of nothing", [&] { (void)call(params); });
  }
  const Cut cut = draw_cut_before(draws);
  std::optional<Composed> composed;
  {
    CutCall of_call(*core_of(*owner.session), cut);
    params.cancel = of_call.token();
    composed = call(params);
  }
  take(world, draws, owner, parent, std::move(*composed), plan, cut);
}

void must_refuse(World& world, const Mirror& mirror) {
  Session& session = *mirror.owner->session;
  const Branch& branch = mirror.branch;
  must_throw("a span past the end", [&] {
    (void)session.compose(std::vector<Piece>{Piece::span(branch, 0, mirror.length() + 1)});
  });
  must_throw("a repair below 0", [&] {
    (void)session.compose(std::vector<Piece>{Piece::span(branch, 0, 1)}, {.repair = {.first = -1}});
  });
  for (const auto& other : world.branches()) {
    if (other->owner == mirror.owner) continue;
    return must_throw("a span of another session's branch", [&] {
      (void)session.compose(std::vector<Piece>{Piece::span(other->branch, 0, 1)});
    });
  }
}

std::vector<Token> draw_left(World& world, Draws& draws) {
  if (!world.prompts().empty() && draws.one_in(2)) {
    std::vector<Token> prompt = draws.pick(world.prompts());
    if (prompt.size() > 40) prompt.resize(40);
    return prompt;
  }
  return draws.tokens(draws.in(1, 20), world.vocab());
}

/// Its branches' common tokens are shared by the tree, which knows more of that than their tokens.
std::int64_t common_of(const std::vector<Mirror*>& group, std::int64_t texts, std::int64_t length) {
  if (group.size() == 1) return 0;
  std::int64_t sum = texts - length;
  std::int64_t shortest = group.front()->length();
  for (const Mirror* mirror : group) {
    sum += mirror->length();
    shortest = std::min(shortest, mirror->length());
  }
  const std::int64_t common = sum / (std::ssize(group) - 1);
  require(common >= 0 && common <= shortest && sum % (std::ssize(group) - 1) == 0,
          "join: more or fewer tokens than its branches and texts have");
  return common;
}

}  // namespace

void register_chunk(World& world, Draws& draws) {
  std::vector<KnownChunk>& chunks = world.chunks();
  if (chunks.size() == kMostChunks || (!chunks.empty() && draws.one_in(6))) {
    chunks.erase(chunks.begin() + draws.below(std::ssize(chunks)));
  }
  Owner& owner = world.any_session(draws);
  KnownChunk known;
  ChunkParams params;
  const std::int64_t place = draws.below(4);
  params.stub = place != 1;
  if (place >= 2) params.prefix = draw_left(world, draws);
  known.left = params.prefix;
  if (known.left.empty() && params.stub) known.left = core_of(world.engine())->chunk_stub();
  std::string text;
  if (!chunks.empty() && draws.one_in(3)) {
    known.tokens = draws.pick(chunks).tokens;  // perhaps behind something else
  } else if (draws.one_in(4)) {
    text = draw_text(draws, world.engine());
    while (!text.empty() && (text.front() == ' ' || text.back() == '\n')) {
      text = text.front() == ' ' ? text.substr(1) : text.substr(0, text.size() - 1);
    }
    if (!text.empty()) known.tokens = world.engine().encode(text, false);
  }
  if (known.tokens.empty()) {
    known.tokens = draws.tokens(draws.in(1, draws.one_in(6) ? 200 : 40), world.vocab());
  }
  if (std::ssize(known.left) + std::ssize(known.tokens) > most_tokens(world)) return;
  const Cut cut = draw_cut_before(draws);
  world.say("s", owner.number, ": register a chunk of ", known.tokens.size(), " tokens behind ",
            known.left.size());
  {
    CutCall call(*core_of(*owner.session), cut);
    params.cancel = call.token();
    known.chunk = text.empty() ? owner.session->register_chunk(known.tokens, params)
                               : owner.session->register_chunk(text, params);
  }
  require(known.chunk.tokens() == known.tokens, "register_chunk: other tokens than were given");
  chunks.push_back(std::move(known));
}

void compose(World& world, Draws& draws) {
  if (world.full()) return;
  Owner& owner = world.any_session(draws);
  const Sources sources = sources_of(world, owner);
  Plan plan(draw_compose_params(draws, world.engine()));
  Mirror* parent = draw_pieces(plan, draws, sources, most_tokens(world));
  world.say("s", owner.number, ": compose ", plan.pieces().size(), " pieces");
  for (int n = draws.one_in(6) ? 2 : 1; n > 0; --n) {
    run(world, draws, owner, parent, plan,
        [&](const ComposeParams& params) { return owner.session->compose(plan.pieces(), params); });
  }
  if (!sources.branches.empty() && draws.one_in(20)) must_refuse(world, *sources.branches.front());
}

void edit(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr || world.full()) return;
  Owner& owner = *mirror->owner;
  const Sources sources = sources_of(world, owner);
  Plan plan(draw_compose_params(draws, world.engine()));
  std::vector<Edit> edits;
  std::optional<Repair> kept_repair;
  std::int64_t position = 0;
  for (std::int64_t n = draws.below(4); n > 0; --n) {
    const std::int64_t begin = position + draws.below(mirror->length() - position + 1);
    plan.add(*mirror, {position, begin}, kept_repair);
    position = begin + draws.below(std::min<std::int64_t>(mirror->length() - begin, 30) + 1);
    const std::size_t first = plan.pieces().size();
    const std::int64_t most = most_tokens(world) - (mirror->length() - position);
    for (std::int64_t with = draws.below(3); with > 0 && plan.length() < most; --with) {
      draw_piece(plan, draws, sources, most);
    }
    edits.push_back(
        {{begin, position},
         {plan.pieces().begin() + static_cast<std::ptrdiff_t>(first), plan.pieces().end()}});
    if (edits.back().with.empty() || plan.params().repair.last) continue;
    kept_repair = {plan.params().repair.first, 4, plan.params().repair.top};
  }
  plan.add(*mirror, {position, mirror->length()}, kept_repair);
  world.say("b", mirror->number, ": edit, ", edits.size(), " changes");
  if (mirror->length() > most_tokens(world)) return;
  run(world, draws, owner, mirror, plan, [&](const ComposeParams& params) {
    return owner.session->edit(mirror->branch, edits, params);
  });
}

void compact(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr || world.full() || mirror->length() > most_tokens(world) - 40) return;
  Owner& owner = *mirror->owner;
  Plan plan(draw_compose_params(draws, world.engine()));
  const std::string summary = draws.one_in(2) ? draw_text(draws, world.engine()) : "";
  std::optional<Repair> kept_repair;
  bool told = summary.empty();
  const auto tell = [&] {
    if (std::exchange(told, true)) return;
    plan.add(world.engine(), summary);
    if (!plan.params().repair.last)
      kept_repair = {plan.params().repair.first, 4, plan.params().repair.top};
  };
  std::vector<Span> keep;
  std::int64_t kept_from = 0;  // what follows without a gap is one piece
  std::int64_t position = 0;
  for (std::int64_t n = draws.below(4); n > 0; --n) {
    const std::int64_t begin =
        position + draws.below(std::min<std::int64_t>(mirror->length() - position, 30) + 1);
    const std::int64_t end = begin + draws.below(mirror->length() - begin + 1);
    keep.push_back({begin, end});
    if (begin > position) {
      plan.add(*mirror, {kept_from, position}, kept_repair);
      kept_from = begin;
      tell();
    }
    position = end;
  }
  plan.add(*mirror, {kept_from, position}, kept_repair);
  tell();  // the last gap, or the end
  world.say("b", mirror->number, ": compact to ", keep.size(), " spans");
  run(world, draws, owner, mirror, plan, [&](const ComposeParams& params) {
    return owner.session->compact(mirror->branch, keep, summary, params);
  });
}

void join(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr || world.full()) return;
  Owner& owner = *first->owner;
  JoinParams params;
  static_cast<ComposeParams&>(params) = draw_compose_params(draws, world.engine());
  params.before_each = draw_text(draws, world.engine());
  params.after_all = draw_text(draws, world.engine());
  std::vector<std::vector<Mirror*>> groups;
  for (int n = draws.one_in(4) ? 2 : 1; n > 0; --n) {
    std::vector<Mirror*> group = world.company(draws, *first, 4);
    std::int64_t sum = 200;  // with all texts
    std::erase_if(group,
                  [&](const Mirror* m) { return (sum += m->length()) > most_tokens(world); });
    if (!group.empty()) groups.push_back(std::move(group));
  }
  if (groups.empty()) return;
  std::vector<std::vector<const Branch*>> handles;
  for (const auto& group : groups) {
    world.say("s", owner.number, ": join ", names_of(group));
    std::vector<const Branch*>& of = handles.emplace_back();
    for (const Mirror* mirror : group) of.push_back(&mirror->branch);
  }
  const Cut cut = draw_cut_before(draws);
  std::vector<Composed> got;
  {
    CutCall call(*core_of(*owner.session), cut);
    params.cancel = call.token();
    got = owner.session->join_many(handles, params);
  }
  params.cancel = {};
  require(got.size() == groups.size(), "join: not one result a group");
  const std::int64_t each = std::ssize(world.engine().encode(params.before_each, false));
  const std::int64_t last = std::ssize(world.engine().encode(params.after_all, false));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<Mirror*>& group = groups[g];
    const std::int64_t common =
        common_of(group, each * (std::ssize(group) - 1) + last, got[g].branch.length());
    Plan plan(params);
    for (const Mirror* mirror : group) {
      if (mirror != group.front()) plan.add(world.engine(), params.before_each);
      plan.add(*mirror, {mirror == group.front() ? 0 : common, mirror->length()});
      require(std::equal(mirror->tokens.begin(), mirror->tokens.begin() + common,
                         group.front()->tokens.begin()),
              "join: what its branches have in common, they have not");
    }
    plan.add(world.engine(), params.after_all);
    take(world, draws, owner, group.front(), std::move(got[g]), plan, cut, groups.size() == 1);
  }
}

void settle(World& world, Draws& draws) {
  Mirror* mirror = world.any_decodable(draws);
  if (mirror == nullptr || world.full()) return;
  if (mirror->length() > world.engine().info().kv_tokens) return;
  Owner& owner = *mirror->owner;
  if (draws.one_in(2)) {
    ++owner.prompts[mirror->tokens];
    const Estimate estimate = owner.session->audit(mirror->branch);
    world.say("b", mirror->number, ": audit of ", estimate.positions, " positions");
    require(estimate.kl_max == 0 || mirror->branch.composition().moves > 0,
            "audit: nothing was moved, and it is not exact");
    return;
  }
  Branch branch = owner.session->settle(mirror->branch);
  const std::uint64_t before = owner.prompts[mirror->tokens]++;
  Mirror& settled =
      world.mirrors().add_prompt(std::move(branch), owner, mirror->tokens, before, {});
  world.say("b", mirror->number, ": settle -> b", settled.number);
  if (settled.branch.finish() == Finish::kBudget) world.refused({&settled});
  world.compare_bits(settled);
}

}  // namespace dendrite::fuzz
