#include <string>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_tree.h"
#include "machine.h"
#include "options.h"
#include "report.h"

// page-tables: what finding a branch's pages costs by the number of segments it is made of: once,
// when its flat table is built from the chain, and at every step, when the table is at hand. Says
// from which depth on a step that walked the chain would cost more than one with a flat table.

namespace dendrite::bench {
namespace {

struct TableOptions {
  std::string json;
  std::vector<std::int64_t> depths = {1, 10, 100, 1000, 10000};
  std::int64_t tokens = 16384;
  int trials = 200;
};

class TableBench {
 public:
  explicit TableBench(const TableOptions& options) : options_(options), report_("page-tables") {}

  void run() {
    for (const std::int64_t depth : options_.depths) measure(depth);
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  static constexpr std::int64_t kPageTokens = 16;
  static constexpr int kLooks = 64;  // between two looks at the clock

  void measure(std::int64_t depth) {
    // A fork inside a page copies it: at most one more page a segment.
    const std::int64_t pages = options_.tokens / kPageTokens + depth + 2;
    const std::unique_ptr<Backend> backend = make_cpu_backend(Numerics::kF32, 1);
    const std::unique_ptr<KvStore> store =
        backend->make_kv_store({1, 1, 16, pages, kPageTokens, KvFormat::kF32});
    KvTree tree(*store);
    std::vector<Tip> chain;  // all alive, so that no two segments are merged
    chain.push_back(tree.root());
    std::vector<Segment*> missing;
    for (std::int64_t i = 0; i < depth; ++i) {
      if (i > 0) chain.push_back(tree.fork(chain.back()));
      Tip& tip = chain.back();
      const std::int64_t wanted = options_.tokens * (i + 1) / depth;
      const std::vector<Token> tokens(static_cast<std::size_t>(wanted - tree.length(tip)), 7);
      tree.append(tip, tokens);
      if (!tree.reserve(tip)) throw Error("page-tables: the pool is too small");
      tree.missing_chain(tip, missing);
      for (Segment* segment : missing) tree.set_computed(*segment, segment->end());
    }
    std::vector<double> built;
    std::vector<double> cached;
    for (int trial = 0; trial < options_.trials; ++trial) {
      Tip tip = tree.fork(chain.back());  // without a table: nobody asked for this chain's
      double begin = now_seconds(Clock::kCpu);
      std::size_t entries = tree.table(tip).size();
      built.push_back((now_seconds(Clock::kCpu) - begin) * 1e9);
      begin = now_seconds(Clock::kCpu);
      for (int i = 0; i < kLooks; ++i) entries += tree.table(tip).size();
      cached.push_back((now_seconds(Clock::kCpu) - begin) * 1e9 / kLooks);
      if (entries == 0) throw Error("page-tables: a table is empty");
      tree.drop(tip);
    }
    const Json params{{"segments", depth}, {"tokens", options_.tokens}};
    report_.add("walk the chain", params, "ns", built);
    report_.add("flat table at hand", params, "ns", cached);
    for (Tip& tip : chain) tree.drop(tip);
  }

  TableOptions options_;
  Report report_;
};

}  // namespace

void add_page_tables(CLI::App& app) {
  auto options = std::make_shared<TableOptions>();
  CLI::App* command =
      app.add_subcommand("page-tables", "Finding a branch's pages, by the depth of its chain");
  command->add_option("--json", options->json, "Write the results there as JSON; -: stdout");
  command->add_option("--segments", options->depths, "Depths of the chain")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Length of the branch")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->callback([options] { TableBench(*options).run(); });
}

}  // namespace dendrite::bench
