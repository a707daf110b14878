#include "fuzz/world.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "dendrite/error.h"
#include "engine/branches/internals.h"
#include "fuzz/model.h"
#include "fuzz/operation_table.h"
#include "fuzz/slow_matcher.h"
#include "fuzz/verify.h"

namespace dendrite::fuzz {
namespace {

/// Of the lineage and all that it is moved from.
std::int64_t pages_of(const dendrite::Lineage& lineage, std::int64_t page) {
  std::int64_t pages = (lineage.length() + page - 1) / page;
  for (const MovedSpan& span : lineage.moved()) pages += 1 + pages_of(*span.source, page);
  return pages;
}

/// `info`: of the model, whoever loaded it.
Engine load(const Ground& ground, const Setting& setting, const EngineInfo& info) {
  EngineOptions options = ground.engine;
  options.page_tokens = setting.page_tokens;
  options.kv_tokens = setting.pool_pages * setting.page_tokens;
  options.threads = setting.threads;
  options.draft_model = ground.model;
  const bool reads_along = options.kv_dtype != "fp8" && options.devices.size() < 2;
  if (const auto drafter = drafter_of(ground.model);
      reads_along && std::filesystem::exists(drafter)) {
    options.drafter = drafter.string();
  }
  // Hybrids have a head of their own, in every other setting.
  if (info.mtp_layers > 0 && setting.seed % 2 == 0) options.drafter = "mtp";
  options.draft_kv_tokens = (setting.pool_pages + 1) / 2 * setting.page_tokens;
  options.prefix_index = setting.prefix_index;
  options.chunk_tokens = options.kv_tokens / 2;  // some are forgotten while handles live
  // States of four branches.
  if (info.recurrent_layers > 0 && setting.pool_pages % 2 == 0) {
    options.state_bytes = 4 * (info.state_bytes + 16 * info.state_token_bytes);
  }
  Engine engine = Engine::load(ground.model, options);
  if (setting.step_rows > 0) core_of(engine)->step_rows = setting.step_rows;
  return engine;
}

}  // namespace

World::World(Ground ground, const Setting& setting, Reference& reference)
    : ground_(std::move(ground)),
      setting_(setting),
      reference_(reference),
      engine_(load(ground_, setting, reference_.engine().info())) {
  set_clock();
  open_session(setting.seed);
}

World::~World() {
  chunks_.clear();
  branches().clear();
  owners_.clear();
}

/// A millisecond an operation.
void World::set_clock() {
  core_of(engine_)->now = [this] { return EngineTime(std::chrono::milliseconds(done_)); };
}

void World::print(const std::string& line) const {
  std::printf("%4lld  %s\n", static_cast<long long>(done_), line.c_str());
  std::fflush(stdout);
}

// --- choosing

Mirror* World::any_branch(Draws& draws) {
  return branches().empty() ? nullptr : draws.pick(branches()).get();
}

Mirror* World::any_decodable(Draws& draws) {
  std::vector<Mirror*> some;
  for (const auto& mirror : branches()) {
    if (mirror->owner->session) some.push_back(mirror.get());
  }
  return some.empty() ? nullptr : draws.pick(some);
}

std::vector<Mirror*> World::company(Draws& draws, Mirror& first, std::int64_t most) {
  std::vector<Mirror*> others = mirrors_.of(*first.owner);
  std::erase(others, &first);
  std::vector<Mirror*> chosen{&first};
  for (std::int64_t n = draws.below(most); n > 0 && !others.empty(); --n) {
    const auto place = others.begin() + draws.below(std::ssize(others));
    chosen.insert(chosen.begin() + draws.below(std::ssize(chosen) + 1), *place);
    others.erase(place);
  }
  return chosen;
}

Owner& World::any_session(Draws& draws) {
  std::vector<Owner*> open;
  for (const auto& owner : owners_) {
    if (owner->session) open.push_back(owner.get());
  }
  return open.empty() ? open_session(static_cast<std::uint64_t>(draws.below(100)))
                      : *draws.pick(open);
}

Owner& World::open_session(std::uint64_t seed, std::uint64_t stream) {
  return adopt(Session(engine_, {.seed = seed, .stream = stream}), seed, stream, {});
}

Owner& World::adopt(Session session, std::uint64_t seed, std::uint64_t stream,
                    std::map<std::vector<Token>, std::uint64_t> prompts) {
  auto owner = std::make_unique<Owner>();
  const Stats& stats = core_of(session)->stats;
  owner->preemptions_counted = stats.preemptions;
  owner->regenerated_counted = stats.tokens_regenerated;
  owner->taken_counted = stats.tokens_taken;
  owner->accepted_counted = stats.tokens_accepted;
  owner->moved_counted = stats.tokens_moved;
  owner->compositions = stats.compositions;
  owner->session.emplace(std::move(session));
  owner->seed = seed;
  owner->stream = stream;
  owner->prompts = std::move(prompts);
  owner->number = next_session_++;
  owners_.push_back(std::move(owner));
  return *owners_.back();
}

void World::drop(Mirror& mirror) {
  mirrors_.drop(mirror);
  // A session without a handle and without branches is gone.
  std::erase_if(owners_, [this](const auto& owner) {
    return !owner->session && mirrors_.of(*owner).empty();
  });
}

void World::close(Owner& owner, bool with_branches) {
  owner.session.reset();
  if (with_branches) std::erase_if(branches(), [&](const auto& m) { return m->owner == &owner; });
  std::erase_if(owners_,
                [this](const auto& each) { return !each->session && mirrors_.of(*each).empty(); });
}

// --- checks after every operation

void World::run(const Op& op, Draws& draws) {
  ++done_;
  const Operation& operation = operations()[op.operation];
  operation.run(*this, draws);
  ++counts().operations[op.operation];
  check();
}

void World::check() {
  EngineCore& core = *core_of(engine_);
  tips_.clear();
  for (const auto& mirror : branches()) {
    mirror->check();
    tips_.push_back(&state_of(mirror->branch)->tip);
    const BranchState& state = *state_of(mirror->branch);
    if (state.ahead != nullptr) tips_.push_back(&state.ahead->state->tip);
    if (state.exact != nullptr) tips_.push_back(&state.exact->tip);
  }
  if (core.prefix_index != nullptr) {
    core.prefix_index->check_invariants();
  }
  core.chunks->check_invariants();
  core.memories().collect_tips(tips_);
  core.tree->check_invariants(tips_);
  const PagePool& pool = core.tree->pool();
  require(pool.used_pages() + pool.free_pages() == pool.size(), "pages are lost");
  for (const auto& owner : owners_) {
    const std::vector<Mirror*> mine = mirrors_.of(*owner);
    if (mine.empty()) continue;
    const SessionCore& session = mine.front()->core();
    require(session.stats.branches_live == std::ssize(mine),
            "a session counts other branches than those that live");
    std::int64_t naive = 0;
    for (const Mirror* mirror : mine) {
      naive += (mirror->length() + core.tree->page_tokens() - 1) / core.tree->page_tokens();
    }
    require(session.stats.compositions == owner->compositions,
            "a session counts other compositions than it made");
    require(session.naive_pages == naive, "a session's count of naive pages is wrong");
  }
  count_events();
}

void World::count_events() {
  const auto count = [](std::int64_t& total, std::int64_t& counted, std::int64_t now) {
    total += now - counted;
    counted = now;
  };
  const KvTreeStats stats = core_of(engine_)->tree->stats();
  count(counts().copies_on_write, copies_counted_, stats.copies_on_write);
  count(counts().evictions, evictions_counted_, stats.evicted_segments);
  for (const auto& owner : owners_) {
    if (!owner->session) continue;
    const Stats& session = core_of(*owner->session)->stats;
    count(counts().preemptions, owner->preemptions_counted, session.preemptions);
    count(counts().regenerated_tokens, owner->regenerated_counted, session.tokens_regenerated);
    count(counts().tokens_taken, owner->taken_counted, session.tokens_taken);
    count(counts().moved_tokens, owner->moved_counted, session.tokens_moved);
    count(counts().tokens_accepted, owner->accepted_counted, session.tokens_accepted);
  }
}

// --- comparing

void World::compare_bits(Mirror& mirror) {
  const std::string name = "branch b" + std::to_string(mirror.number);
  std::optional<Replay> replay = reference_.replay(mirror.history());
  const std::vector<float> expected = reference_.logits(*replay);
  const std::int64_t computed = computed_of(mirror.branch);
  const std::vector<float> kv = kv_of(mirror.branch, computed);
  require_same_bits(kv, kv_of(replay->branch, computed),
                    name + ", K and V of " + std::to_string(computed) + " positions");
  const std::vector<float> logits = logits_of(mirror.branch);
  if (!logits.empty()) require_same_bits(logits, expected, name + ", logits");
  const Composition composition = mirror.branch.composition();
  compare_composition(composition, replay->branch.composition(), name);
  replay.reset();  // the reference makes one at a time
  if (composition.moves > 0) compare_first_keys(mirror, kv, computed);
  ++counts().comparisons;
  counts().compared_values += std::ssize(kv) + std::ssize(logits);
}

void World::compare_composition(const Composition& got, const Composition& expected,
                                const std::string& name) {
  if (got.exactness == expected.exactness && got.moves == expected.moves &&
      got.moved == expected.moved && got.repaired == expected.repaired) {
    return;
  }
  throw Violation(name + ": " + std::to_string(got.moved) + " moved " + std::to_string(got.moves) +
                  " times, " + std::to_string(got.repaired) + " repaired; of the replay " +
                  std::to_string(expected.moved) + ", " + std::to_string(expected.moves) + ", " +
                  std::to_string(expected.repaired));
}

/// In the first layer K depends on the token and its position alone, however it came there; moved K
/// was rounded once more for each move.
void World::compare_first_keys(const Mirror& mirror, std::span<const float> kv,
                               std::int64_t positions) {
  History plain = mirror.history();
  plain.prompt_length = mirror.length();
  plain.spans = {};
  plain.composed = nullptr;
  Replay replay = reference_.replay(plain);
  (void)reference_.logits(replay);
  const std::vector<float> expected = kv_of(replay.branch, positions);
  const KvShape& shape = core_of(reference_.engine())->store->shape();
  const std::int64_t layers = shape.layers;
  // Of squares; a rounding to E4M3 alone is 0.026 of K's size, and there are some in a row.
  const double most = shape.format == KvFormat::kFP8 ? 0.04 : 1e-3;
  const std::int64_t width = std::ssize(kv) / std::max<std::int64_t>(1, 2 * layers * positions);
  for (std::int64_t position = 0; position < positions; ++position) {
    double error = 0;
    double size = 0;
    for (std::int64_t i = position * width; i < (position + 1) * width; ++i) {
      const double value = expected[static_cast<std::size_t>(i)];
      error += std::pow(static_cast<double>(kv[static_cast<std::size_t>(i)]) - value, 2);
      size += value * value;
    }
    if (error <= most * size) continue;
    throw Violation("branch b" + std::to_string(mirror.number) + ": the first layer's K at " +
                    std::to_string(position) + " is off by " +
                    std::to_string(std::sqrt(error / size)) + " of its size");
  }
}

void World::compare_stream(const Mirror& mirror) {
  if (reference_.stream_of(mirror.lineage) == mirror.stream) return;
  throw Violation("branch b" + std::to_string(mirror.number) +
                  " has another random stream than where discarded branches never were");
}

bool World::compare_whole(Mirror& mirror) {
  const bool there = computed_of(mirror.branch) == mirror.length();
  if (!there || logits_of(mirror.branch).empty()) {
    const std::vector<Score> scores = mirror.branch.score_tokens({{0}});
    if (scores.front().tokens.empty()) refused({&mirror});
  }
  compare_bits(mirror);
  return !logits_of(mirror.branch).empty();
}

void World::compare_mask(Mirror& mirror) {
  auto matcher = SlowMatcher::of(*core_of(reference_.engine()), mirror.history());
  if (!matcher) return;
  const std::string name = "branch b" + std::to_string(mirror.number);
  const bool accepted = matcher->is_accepting();
  if (mirror.branch.is_accepted() != accepted) {
    throw Violation(name + (accepted ? " may end, and says no" : " may not end, and says yes"));
  }
  if (!mirror.owner->session) return;
  const auto got = mirror.owner->session->next_tokens(std::span<const Branch>(&mirror.branch, 1),
                                                      {.top = static_cast<int>(vocab())});
  const Finish finish = mirror.branch.finish();
  if (got.front().empty() && finish == Finish::kBudget) return;
  std::vector<Token> ids;
  for (const TokenLogprob& token : got.front()) ids.push_back(token.id);
  std::ranges::sort(ids);
  const std::vector<Token> expected = tokens_of(matcher->allowed());
  ++counts().masks_asked;
  if (ids != expected) {
    throw Violation(name + ": its constraint allows" + text_of(ids) +
                    "; asked about each it allows" + text_of(expected));
  }
  require(!ids.empty() || finish == (accepted ? Finish::kStop : Finish::kDeadEnd),
          "next_tokens: none, and another finish than its constraint gives");
}

/// Pages that the segments of its chain need, all computed: at least one a fork inside a page more
/// than its tokens do; and those of what was moved to it, which must be there at once.
std::int64_t World::chain_pages(const Mirror& mirror) const {
  const KvTree& tree = *core_of(engine_)->tree;
  const std::int64_t page = tree.page_tokens();
  std::int64_t pages = 0;
  std::set<const Segment*> counted;
  const auto add = [&](const auto& self, const Tip& tip) -> void {
    for (const Segment* s = tree.segment(tip); s != nullptr; s = s->parent) {
      if (!counted.insert(s).second) return;
      pages += (s->end() + page - 1) / page - s->begin / page;
      if (!s->moved()) continue;
      if (s->source->tip.empty()) {  // nobody has made it yet
        pages += pages_of(*s->source->lineage, page);
      } else {
        self(self, s->source->tip);
      }
    }
  };
  add(add, state_of(mirror.branch)->tip);
  return pages;
}

void World::refused(const std::vector<Mirror*>& mirrors, std::int64_t tokens, std::int64_t forks) {
  ++counts().refusals;
  const KvTree& tree = *core_of(engine_)->tree;
  const SessionCore& session = mirrors.front()->core();
  require(session.shortage.has_value(), "a call got no pages, and the session does not say why");
  const KvShortage& shortage = *session.shortage;
  require(shortage.pages_held + shortage.pages_of_branches + shortage.pages_of_chunks +
                  shortage.pages_of_sources + shortage.pages_of_calls + shortage.pages_free ==
              tree.pool().size(),
          "a shortage counts other pages than there are");
  const std::int64_t pages = tree.pool().size() - session.shortage->pages_on_hold;
  // As it was then; meanwhile on_token may have dropped branches, and chains become shorter.
  if (session.shortage->pages_held + session.shortage->pages_needed > pages) return;
  std::int64_t widest = 0;
  for (const Mirror* mirror : mirrors) widest = std::max(widest, chain_pages(*mirror));
  const std::int64_t page = tree.page_tokens();
  if (widest + (tokens + page - 1) / page + forks > pages) return;
  throw Violation("a call got no pages, although each branch fits alone: " +
                  session.shortage->message());
}

void World::finish() {
  ++done_;
  say("every branch is compared with its replay and dropped");
  for (const auto& mirror : branches()) mirror->branch.release();
  for (const auto& mirror : branches()) {
    compare_bits(*mirror);
    compare_stream(*mirror);
    compare_mask(*mirror);
  }
  while (!branches().empty()) {
    const auto whole = std::find_if(branches().begin(), branches().end(),
                                    [this](const auto& mirror) { return compare_whole(*mirror); });
    Mirror& gone = whole != branches().end() ? **whole : *branches().front();
    drop(gone);  // and its pages help the others
    check();
  }
  check_emptied();
}

void World::check_emptied() {
  branches().clear();
  owners_.clear();
  chunks_.clear();
  EngineCore& core = *core_of(engine_);
  core.memories().clear();
  require(core.tree->pool().used_pages() == 0, "pages are held by nobody");
  require(core.tree->stats().segments == 0, "segments are held by nobody");
}

void World::restart() {
  check_emptied();
  engine_ = load(ground_, setting_, reference_.engine().info());
  set_clock();
  copies_counted_ = 0;
  evictions_counted_ = 0;
}

}  // namespace dendrite::fuzz
