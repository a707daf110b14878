#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "machine.h"
#include "models.h"
#include "options.h"

// memory: what live branches cost beside their pages, what pruning them costs, whether depth costs
// anything in a step, what sharing saves, and what taking a page from one of many costs. By default
// on a tiny model with random weights: host memory and the tree's own work do not depend on the
// model.

namespace dendrite::bench {
namespace {

struct MemoryOptions {
  CommonOptions common;
  std::int64_t forks = 100000;
  std::int64_t context = 8192;
  std::int64_t subtree = 10000;
  std::int64_t depth = 10000;
  std::int64_t idle = 100000;
  int trials = 20;
};

constexpr double kMegabyte = 1 << 20;

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class MemoryBench {
 public:
  explicit MemoryBench(const MemoryOptions& options)
      : options_(options), engine_(load(options)), report_("memory") {
    report_.describe(engine_, options.common.shape.empty() && options.common.model.empty()
                                  ? "random-tiny"
                                  : options.common.model_name());
  }

  void run() {
    live_forks();
    for (const bool at_once : {false, true}) {
      prune(Subtree::kForks, at_once);
      prune(Subtree::kOwnTokens, at_once);
      prune(Subtree::kOwnPages, at_once);
      prune(Subtree::kDistributions, at_once);
    }
    chain_against_flat();
    tree_search();
    shortage();
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  enum class Subtree : std::uint8_t { kForks, kOwnTokens, kOwnPages, kDistributions };

  static Engine load(const MemoryOptions& options) {
    CommonOptions common = options.common;
    if (common.model.empty() && common.shape.empty()) common.shape = "tiny";
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t page = common.engine.page_tokens;
      common.engine.kv_tokens =
          2 * options.context + (options.subtree + options.depth + 4096) * page;
    }
    return common.load();
  }

  std::vector<Token> tokens(std::int64_t count) {
    return random_tokens(count, engine_.info().vocab, seed_++);
  }
  static void check(bool holds, const char* what) {
    if (!holds) throw Error(std::string("memory: ") + what);
  }

  /// Heap and resident bytes of forks that live at once, handles included.
  void live_forks() {
    for (const bool own_token : {false, true}) {
      Session session(engine_);  // with no recycled memory of branches
      Branch root = session.prefill(tokens(options_.context));
      check(root.finish() == Finish::kRunning,
            "the context did not fit; expected more --kv-tokens");
      const std::int64_t pages = session.stats().pages_used;
      const std::int64_t heap = heap_bytes();
      const std::int64_t resident = resident_bytes();
      std::vector<Branch> kids;
      kids.reserve(static_cast<std::size_t>(options_.forks));
      const Token token[] = {1};
      for (std::int64_t i = 0; i < options_.forks; ++i) {
        kids.push_back(root.fork());
        if (own_token) kids.back().append(token);
      }
      check(session.stats().pages_used == pages, "forks took pages; expected none");
      check(session.stats().branches_live == options_.forks + 1, "not all forks live");
      const Json params{{"forks", options_.forks}, {"tokens", options_.context}};
      const std::string what = own_token ? "forks with a token each" : "live forks";
      report_.add_value(what + ", heap", params, "MB",
                        static_cast<double>(heap_bytes() - heap) / kMegabyte);
      report_.add_value(what + ", resident", params, "MB",
                        static_cast<double>(resident_bytes() - resident) / kMegabyte);
      report_.add_value(
          what + ", heap each", params, "bytes",
          static_cast<double>(heap_bytes() - heap) / static_cast<double>(options_.forks));
    }
  }

  /// Branches below one node, eight children each: bare forks; with a pending token each; with a
  /// computed token, and so a page, each, as decoding leaves them; or with a distribution besides.
  std::vector<Branch> make_subtree(Session& session, Branch& root, Subtree kind) {
    std::vector<Branch> nodes;
    nodes.reserve(static_cast<std::size_t>(options_.subtree));
    for (std::int64_t i = 0; i < options_.subtree; ++i) {
      Branch& parent = i < 8 ? root : nodes[static_cast<std::size_t>((i - 8) / 8)];
      nodes.push_back(parent.fork());
      const Token token[] = {static_cast<Token>(i % engine_.info().vocab)};
      if (kind != Subtree::kForks) nodes.back().append(token);
    }
    if (kind == Subtree::kOwnPages) session.decode(nodes, {.max_tokens = 1, .ignore_eos = true});
    if (kind == Subtree::kDistributions) session.expand(nodes, {.top = 1});  // its children go
    return nodes;
  }

  /// One by one, as handles go, or with one call.
  void prune(Subtree kind, bool at_once) {
    Session session(engine_);
    Branch root = session.prefill(tokens(1000));
    const std::int64_t pages = session.stats().pages_used;
    std::vector<double> cpu_ms;
    std::int64_t freed = 0;
    for (int trial = 0; trial < options_.trials; ++trial) {
      std::vector<Branch> nodes = make_subtree(session, root, kind);
      freed = session.stats().pages_used - pages;
      if (kind == Subtree::kOwnPages || kind == Subtree::kDistributions) {
        check(freed >= options_.subtree, "the subtree did not fit; expected more --kv-tokens");
      }
      const double begin = now_seconds(Clock::kCpu);
      if (at_once) session.prune(nodes);
      nodes.clear();
      cpu_ms.push_back((now_seconds(Clock::kCpu) - begin) * 1e3);
      check(session.stats().pages_used == pages, "pages were left behind");
    }
    const char* name = kind == Subtree::kForks       ? "prune a subtree of forks"
                       : kind == Subtree::kOwnTokens ? "prune a subtree, a token each"
                       : kind == Subtree::kOwnPages  ? "prune a subtree, a page each"
                                                     : "prune, a page and distribution each";
    const Json params{{"branches", options_.subtree}, {"pages", freed}, {"at_once", at_once}};
    report_.add(name, params, "ms CPU", cpu_ms);
  }

  /// The same tokens as a chain of segments, each held by a branch of its own, and as one run.
  void chain_against_flat() {
    Session session(engine_);
    std::vector<Branch> chain;
    chain.push_back(session.prefill(tokens(16)));
    for (std::int64_t i = 1; i < options_.depth; ++i) {
      std::vector<std::vector<Branch>> next =
          session.expand(std::span(&chain.back(), 1), {.top = 1});
      check(!next[0].empty(), "the chain did not fit; expected more --kv-tokens");
      chain.push_back(std::move(next[0][0]));
    }
    Branch flat = session.prefill(chain.back().tokens());
    check(flat.finish() == Finish::kRunning, "the chain did not fit; expected more --kv-tokens");
    Branch deep = chain.back().fork();
    const auto step_ms = [&](Branch& branch) {
      const double begin = now_seconds();
      session.decode_step(branch, {.temperature = 0.0, .ignore_eos = true});
      return (now_seconds() - begin) * 1e3;
    };
    const double first_ms = step_ms(deep);  // looks its flat table up
    step_ms(flat);
    std::vector<double> deep_ms, flat_ms, ratios;
    for (int trial = 0; trial < 10 * options_.trials; ++trial) {
      flat_ms.push_back(step_ms(flat));
      deep_ms.push_back(step_ms(deep));
      ratios.push_back(deep_ms.back() / flat_ms.back());
    }
    check(deep.tokens() == flat.tokens(), "chain and flat drew different tokens");
    const Json params{{"depth", options_.depth}, {"tokens", flat.length()}};
    report_.add("step of a chain", params, "ms", deep_ms);
    report_.add("step of a flat branch", params, "ms", flat_ms);
    report_.add_value("first step of a chain", params, "ms", first_ms);
    report_.add_value("chain / flat", params, "x", median(ratios));
  }

  /// Breadth-first search: eight children of each of three nodes, 32 tokens a step, five steps.
  void tree_search() {
    Event last;
    const EventSubscription subscription =
        engine_.on_event(mask_of(EventKind::kStep), [&](const Event& event) { last = event; });
    Session session(engine_);
    std::vector<Branch> frontier;
    frontier.push_back(session.prefill(tokens(512)));
    std::vector<Branch> kids;
    for (int depth = 0; depth < 5; ++depth) {
      kids.clear();
      for (Branch& node : frontier) {
        for (Branch& kid : node.fork(8)) kids.push_back(std::move(kid));
      }
      session.decode(kids, {.max_tokens = 32, .temperature = 1.0, .ignore_eos = true});
      if (depth == 4) break;
      frontier.clear();
      for (std::size_t i = 0; i < kids.size() && frontier.size() < 3; i += 3) {
        frontier.push_back(std::move(kids[i]));
      }
    }
    double pages = 0;
    double shared = 0;
    for (const Branch& kid : kids) {
      pages += static_cast<double>(kid.stats().pages);
      shared += static_cast<double>(kid.stats().shared_pages);
    }
    const Json params{{"prompt", 512}, {"branches", kids.size()}};
    report_.add_value("pages of a leaf that are shared", params, "%", 100 * shared / pages);
    report_.add_value("unique bytes", params, "MB",
                      static_cast<double>(last.unique_bytes) / kMegabyte);
    report_.add_value("naive bytes", params, "MB",
                      static_cast<double>(last.naive_bytes) / kMegabyte);
    report_.add_value(
        "naive / unique", params, "x",
        static_cast<double>(last.naive_bytes) / static_cast<double>(last.unique_bytes));
  }

  /// Decoding a branch when the pool is full and many idle branches hold a page each: one of its
  /// tokens a page needs one of theirs.
  void shortage() {
    CommonOptions common = options_.common;
    if (common.model.empty() && common.shape.empty()) common.shape = "tiny";
    common.engine.prefix_index = false;
    common.engine.kv_tokens = (options_.idle + 64) * common.engine.page_tokens;
    const Engine engine = common.load();
    Session session(engine);
    Branch root = session.prefill(tokens(common.engine.page_tokens));
    std::vector<Branch> idle = root.fork(static_cast<int>(options_.idle));
    for (Branch& branch : idle) branch.append(tokens(1));
    session.decode(idle, {.max_tokens = 1, .ignore_eos = true});
    Branch busy = root.fork();
    std::vector<double> plain_ms, evicting_ms;
    while (std::ssize(evicting_ms) < options_.trials) {
      const std::int64_t evictions = session.stats().evictions;
      const double begin = now_seconds(Clock::kCpu);
      check(session.decode_step(busy, {.temperature = 0.0, .ignore_eos = true}).has_value(),
            "no page was taken from an idle branch");
      const double ms = (now_seconds(Clock::kCpu) - begin) * 1e3;
      (session.stats().evictions > evictions ? evicting_ms : plain_ms).push_back(ms);
    }
    const Json params{{"idle", options_.idle}, {"tokens", busy.length()}};
    const double all_ms = std::accumulate(evicting_ms.begin(), evicting_ms.end(), 0.0);
    report_.add("step of a branch", params, "ms CPU", plain_ms);
    report_.add("step that evicts", params, "ms CPU", evicting_ms);
    report_.add_value("evicting steps, a page that was taken", params, "ms CPU",
                      all_ms / static_cast<double>(session.stats().evictions));
  }

  const MemoryOptions& options_;
  Engine engine_;
  Report report_;
  std::uint64_t seed_ = 0;
};

}  // namespace

void add_memory(CLI::App& app) {
  auto options = std::make_shared<MemoryOptions>();
  CLI::App* command =
      app.add_subcommand("memory", "Host memory of branches, pruning, depth, shared pages");
  options->common.add_to(*command);
  command->add_option("--forks", options->forks, "Forks that live at once")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  command->add_option("--context", options->context, "Tokens of the forked branch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--subtree", options->subtree, "Branches of the pruned subtree")
      ->check(CLI::Range(8, 1000000))
      ->capture_default_str();
  command->add_option("--depth", options->depth, "Segments of the chain")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--idle", options->idle, "Branches that hold a page while others need some")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->callback([options] { MemoryBench(*options).run(); });
}

}  // namespace dendrite::bench
