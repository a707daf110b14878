#include <algorithm>
#include <cstdio>
#include <optional>

#include "machine.h"
#include "models.h"
#include "options.h"

// fork-overhead: what a fork costs by length and by depth of the tree, and what follows from it.
// The model matters only for the first token after a fork; by default it is a tiny one with random
// weights, so that branches of 131072 tokens and chains of 10000 segments are made in seconds.

namespace dendrite::bench {
namespace {

struct ForkOptions {
  CommonOptions common;
  std::vector<std::int64_t> lengths = {16, 1024, 2048, 16384, 131072};
  std::vector<std::int64_t> depths = {1, 100, 10000};
  std::vector<std::int64_t> forks = {1, 8, 32, 1000};  // of one node
  bool measure_latency = false;
  int trials = 400;
};

constexpr int kBatch = 64;  // forks between two looks at the clock

/// A chain of `depth` segments: each branch is forked from the one before and extended by a token.
/// All of its branches stay alive, so that no two segments can be merged. The last one's
/// distribution is asked for, which computes all of them in a few wide steps.
struct Chain {
  std::vector<Branch> branches;
  Branch& tip() { return branches.back(); }
};

class ForkBench {
 public:
  explicit ForkBench(const ForkOptions& options)
      : options_(options), engine_(load(options)), session_(engine_), report_("fork-overhead") {
    report_.describe(engine_, options.common.shape.empty() && options.common.model.empty()
                                  ? "random-tiny"
                                  : options.common.model_name());
    clock_ns_ = clock_cost_ns();
    report_.set_device("clock_read_ns", clock_ns_);
  }

  void run() {
    // Rows are interleaved: all trees exist at once and each trial measures every one of them.
    std::vector<Case> cases;
    for (const std::int64_t length : options_.lengths) {
      cases.push_back({.tokens = length, .depth = 1});
      cases.back().chain.branches.push_back(prefill(length));
    }
    for (const std::int64_t depth : options_.depths) {
      if (depth == 1) continue;
      cases.push_back({.tokens = 16 + depth - 1, .depth = depth, .chain = make_chain(depth)});
    }
    for (int trial = 0; trial < options_.trials; ++trial) {
      for (Case& c : cases) measure(c);
    }
    for (const Case& c : cases) {
      const Json params{{"tokens", c.tokens}, {"depth", c.depth}};
      report_.add("fork", params, "ns", c.fork_ns);
      report_.add("fork+drop", params, "ns", c.pair_ns);
      report_.add("fork single", params, "ns", c.single_ns);
      report_.add("fork single, cold", params, "ns", c.cold_ns);
    }
    const auto fork_ns = [](const Case& c) { return median(c.fork_ns); };
    const auto [least, most] =
        std::minmax_element(cases.begin(), cases.end(),
                            [&](const Case& a, const Case& b) { return fork_ns(a) < fork_ns(b); });
    report_.add_value("slowest / fastest fork", Json::object(), "x",
                      fork_ns(*most) / fork_ns(*least));
    cases.clear();
    for (const std::int64_t count : options_.forks) many_forks(count);
    in_a_search();
    rewinds();
    first_token();
    memory();
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  struct Case {
    std::int64_t tokens = 0;
    std::int64_t depth = 0;
    Chain chain{};
    std::vector<double> fork_ns{};  // a batch of forks that stay alive
    std::vector<double> pair_ns{};  // each dropped before the next
    std::vector<double>
        single_ns{};  // one fork between two looks at the clock, whose cost is taken off
    std::vector<double> cold_ns{};  // the same after other work has used the caches
  };

  static Engine load(const ForkOptions& options) {
    CommonOptions common = options.common;
    if (common.model.empty() && common.shape.empty()) common.shape = "tiny";
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t page = common.engine.page_tokens;
      for (const std::int64_t length : options.lengths)
        common.engine.kv_tokens += length + 2 * page;
      for (const std::int64_t depth : options.depths) common.engine.kv_tokens += (depth + 2) * page;
      const std::int64_t most = *std::ranges::max_element(options.forks);
      common.engine.kv_tokens +=
          (std::max<std::int64_t>(most, 512) + 64) * 2 * page + 8192 + 131072;
    }
    return common.load();
  }

  static double clock_cost_ns() {
    std::vector<double> costs;
    for (int i = 0; i < 1000; ++i) {
      const double begin = now_seconds();
      costs.push_back((now_seconds() - begin) * 1e9);
    }
    return median(costs);
  }

  Branch prefill(std::int64_t length) {
    const std::vector<Token> tokens = random_tokens(length, engine_.info().vocab, seed_++);
    Branch branch = session_.prefill(tokens);
    if (branch.finish() != Finish::kRunning) {
      throw Error("a prompt of " + std::to_string(length) +
                  " tokens did not fit; expected room in " +
                  std::to_string(engine_.info().kv_tokens) + " (--kv-tokens)");
    }
    return branch;
  }

  Chain make_chain(std::int64_t depth) {
    Chain chain;
    chain.branches.push_back(prefill(16));
    const std::vector<Token> tokens = random_tokens(depth, engine_.info().vocab, seed_++);
    for (std::int64_t i = 1; i < depth; ++i) {
      chain.branches.push_back(chain.tip().fork());
      chain.tip().append(std::span(&tokens[static_cast<std::size_t>(i)], 1));
    }
    const std::vector<std::vector<Branch>> next =
        session_.expand(std::span(&chain.tip(), 1), {.top = 1});
    if (next[0].empty()) throw Error("a chain did not fit; expected more --kv-tokens");
    return chain;
  }

  void measure(Case& c) {
    Branch& parent = c.chain.tip();
    std::optional<Branch> children[kBatch];
    double begin = now_seconds();
    for (std::optional<Branch>& child : children) child = parent.fork();
    c.fork_ns.push_back(((now_seconds() - begin) * 1e9 - clock_ns_) / kBatch);
    for (std::optional<Branch>& child : children) child.reset();

    begin = now_seconds();
    for (int i = 0; i < kBatch; ++i) Branch child = parent.fork();
    c.pair_ns.push_back(((now_seconds() - begin) * 1e9 - clock_ns_) / kBatch);

    begin = now_seconds();
    Branch child = parent.fork();
    c.single_ns.push_back((now_seconds() - begin) * 1e9 - clock_ns_);

    for (std::size_t i = 0; i < other_work_.size(); i += 64) ++other_work_[i];
    begin = now_seconds();
    Branch cold = parent.fork();
    c.cold_ns.push_back((now_seconds() - begin) * 1e9 - clock_ns_);
  }

  /// So many forks of one node: in a loop and by one call; what they take of memory; and, where
  /// that is asked for, the time from the call to a first token of each of them.
  void many_forks(std::int64_t count) {
    Branch node = prefill(2048);
    const Json params{{"tokens", 2048}, {"forks", count}};
    const auto forks = static_cast<double>(count);
    std::vector<double> loop_us, call_us, first_ms, bytes;
    for (int i = 0; i < std::max(20, options_.trials / 10); ++i) {
      std::vector<Branch> kids;
      kids.reserve(static_cast<std::size_t>(count));
      double begin = now_seconds();
      for (std::int64_t k = 0; k < count; ++k) kids.push_back(node.fork());
      loop_us.push_back(((now_seconds() - begin) * 1e9 - clock_ns_) * 1e-3 / forks);
      kids.clear();
      begin = now_seconds();
      const std::vector<Branch> more = node.fork(static_cast<int>(count));
      call_us.push_back(((now_seconds() - begin) * 1e9 - clock_ns_) * 1e-3 / forks);
    }
    report_.add("fork_time_us", params, "us", loop_us);
    report_.add("fork_time_us, fork(n)", params, "us", call_us);
    for (int i = 0; options_.measure_latency && i < std::max(20, options_.trials / 10); ++i) {
      const double begin = now_seconds();
      std::vector<Branch> kids = node.fork(static_cast<int>(count));
      session_.decode(kids, {.max_tokens = 1, .ignore_eos = true});
      first_ms.push_back((now_seconds() - begin) * 1e3);
    }
    if (!first_ms.empty()) report_.add("first_token_after_fork_ms", params, "ms", first_ms);
    for (int i = 0; i < 3; ++i) {
      Session fresh(engine_);  // with no recycled branch slots
      Branch root = fresh.prefill(random_tokens(2048, engine_.info().vocab, seed_++));
      const std::int64_t before = heap_bytes();
      const std::vector<Branch> kids = root.fork(static_cast<int>(count));
      bytes.push_back(static_cast<double>(heap_bytes() - before) / forks);
    }
    report_.add_value("memory_overhead_bytes", params, "bytes", median(bytes));
  }

  /// Forks as a tree search makes them: eight branches, each forked into four, after a step that
  /// used the caches. Per fork, by one call a branch; and what Stats::fork_ns says of that session.
  void in_a_search() {
    constexpr int kBranches = 8;
    constexpr int kChildren = 4;
    Session session(engine_);
    Branch root = session.prefill(random_tokens(1024, engine_.info().vocab, seed_++));
    std::vector<double> first_ns, all_ns;
    for (int i = 0; i < std::max(20, options_.trials / 4); ++i) {
      std::vector<Branch> parents = root.fork(kBranches);
      session.decode(parents, {.max_tokens = 2, .temperature = 1, .ignore_eos = true});
      std::vector<std::vector<Branch>> children(kBranches);
      const double begin = now_seconds();
      children[0] = parents[0].fork(kChildren);
      const double between = now_seconds();
      for (std::size_t p = 1; p < kBranches; ++p) children[p] = parents[p].fork(kChildren);
      first_ns.push_back(((between - begin) * 1e9 - clock_ns_) / kChildren);
      all_ns.push_back(((now_seconds() - begin) * 1e9 - clock_ns_) / (kBranches * kChildren));
    }
    const Json params{{"branches", kBranches}, {"children", kChildren}};
    report_.add("fork in a search", params, "ns", all_ns);
    report_.add("fork in a search, first after a step", params, "ns", first_ns);
    report_.add_value("fork in a search, Stats::fork_ns", params, "ns", session.stats().fork_ns);
  }

  /// Branch::at alone, each time a cut where none was: within the last page, after which the longer
  /// branch is dropped and the rewound one goes on; and in the middle, one token further each time.
  void rewinds() {
    for (const std::int64_t length : {std::int64_t{256}, std::int64_t{131072}}) {
      std::vector<double> last_ns, middle_ns;
      Branch branch = prefill(length);
      const auto timed = [&](std::vector<double>& out, std::int64_t at) {
        const double begin = now_seconds();
        Branch upper = branch.at(at);
        out.push_back((now_seconds() - begin) * 1e9 - clock_ns_);
        return upper;
      };
      const std::int64_t trials = std::min<std::int64_t>(options_.trials, length / 4);
      for (std::int64_t i = 0; i < trials; ++i) timed(middle_ns, length / 2 + i);
      for (std::int64_t i = 0; i < trials; ++i) {
        const Token last = branch.last_token();
        branch = timed(last_ns, length - 1);
        branch.append(std::span(&last, 1));
      }
      report_.add("rewind, last page", {{"tokens", length}}, "ns", last_ns);
      report_.add("rewind, middle", {{"tokens", length}}, "ns", middle_ns);
    }
  }

  /// From the fork to the first token that the child computed itself: its parent's distribution
  /// gives one, the step after it the next.
  void first_token() {
    for (const std::int64_t length : {std::int64_t{1024}}) {
      Branch node = prefill(length);
      std::vector<double> known_ms, computed_ms;
      for (int i = 0; i < std::max(20, options_.trials / 10); ++i) {
        double begin = now_seconds();
        Branch child = node.fork();
        session_.decode_step(child, {.ignore_eos = true});
        known_ms.push_back((now_seconds() - begin) * 1e3);
        begin = now_seconds();
        Branch other = node.fork();
        session_.decode(other, {.max_tokens = 2, .ignore_eos = true});
        computed_ms.push_back((now_seconds() - begin) * 1e3);
      }
      const Json params{{"tokens", length}};
      report_.add("first token after fork", params, "ms", known_ms);
      report_.add("second token after fork", params, "ms", computed_ms);
    }
  }

  /// Heap bytes and KV pages of branches that have not diverged.
  void memory() {
    for (const std::int64_t length : {std::int64_t{1024}, std::int64_t{16384}}) {
      Branch node = prefill(length);
      constexpr int kForks = 10000;
      Session fresh(engine_);  // with no recycled branch slots
      const std::vector<Token> tokens = random_tokens(length, engine_.info().vocab, seed_++);
      Branch root = fresh.prefill(tokens);
      std::vector<Branch> kids;
      kids.reserve(kForks);
      const std::int64_t pages = fresh.stats().pages_used;
      const std::int64_t before = heap_bytes();
      for (int i = 0; i < kForks; ++i) kids.push_back(root.fork());
      const double bytes = static_cast<double>(heap_bytes() - before) / kForks;
      const Json params{{"tokens", length}};
      report_.add_value("memory of a fork", params, "bytes", bytes);
      report_.add_value("KV pages of 10000 forks", params, "pages",
                        static_cast<double>(fresh.stats().pages_used - pages));
    }
  }

  const ForkOptions& options_;
  Engine engine_;
  Session session_;
  Report report_;
  double clock_ns_ = 0;
  std::vector<char> other_work_ = std::vector<char>(std::size_t{8} << 20);  // larger than L1 and L2
  std::uint64_t seed_ = 0;
};

}  // namespace

void add_fork_overhead(CLI::App& app) {
  auto options = std::make_shared<ForkOptions>();
  CLI::App* command =
      app.add_subcommand("fork-overhead", "Forks by length and depth, first token, memory");
  options->common.add_to(*command);
  command
      ->add_option("--lengths,--prefix-length", options->lengths, "Tokens of the forked branches")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--depths", options->depths, "Segments above the forked branches")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--num-forks", options->forks, "Forks of one node, a row each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--measure-latency", options->measure_latency,
                    "From the call of so many forks to a first token of each of them, too");
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->callback([options] { ForkBench(*options).run(); });
}

}  // namespace dendrite::bench
