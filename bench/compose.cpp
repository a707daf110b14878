#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"
#include "models.h"
#include "options.h"

// compose: the time to the first distribution of a long context of which K and V exist in parts,
// beside computing it. In each trial all texts are new, and the parts are computed before the clock
// starts:
//   plain       prefill of all tokens, nothing of them known
//   compose     chunks in another order than they were registered in, and a query, by repair
//   repeat      the same composition again; and, beside it, a prompt that is known
//   edit        a quarter of a branch is dropped; half of it is behind; and the same exactly
//   join        branches of one trunk, one after the other; and the same exactly, trunk known
// and, counted once, what chats on one system prompt save of the bytes of their K and V.

namespace dendrite::bench {
namespace {

struct ComposeOptions {
  CommonOptions common;
  int chunks = 16;
  int chunk_tokens = 2048;
  int query = 64;
  int siblings = 8;
  int trunk = 4096;
  int own = 1024;
  int chats = 4;
  int system = 1024;
  int turn = 256;
  int trials = 5;
  std::vector<std::int64_t> repairs = {0, 16, 32, 64};
};

class ComposeBench {
 public:
  explicit ComposeBench(const ComposeOptions& options)
      : options_(options), engine_(options.common.load()), report_("compose") {
    report_.describe(engine_, options.common.model_name());
  }

  void run() {
    for (int i = 0; i <= options_.trials; ++i) {
      // (What is measured first is not counted: kernels are loaded, tables are made.)
      if (i == 1) times_.clear();
      trial();
    }
    const auto& plain = times_.at("plain");
    const std::int64_t context =
        std::int64_t{options_.chunks} * options_.chunk_tokens + options_.query;
    add("plain", {{"tokens", context}});
    for (const std::int64_t first : options_.repairs) {
      const std::string name = "compose " + std::to_string(first);
      add(name, {{"tokens", context}, {"first", first}});
      ratio("compose", {{"first", first}}, name, plain);
    }
    add("repeat", {{"tokens", context}});
    add("known prompt", {{"tokens", context}});
    ratio("repeat by known prompt", Json::object(), "known prompt", times_.at("repeat"));
    add("edit", {{"behind", context / 2}});
    add("edit exact", {{"behind", context / 2}});
    ratio("edit", Json::object(), "edit", times_.at("edit exact"));
    add("join",
        {{"trunk", options_.trunk}, {"siblings", options_.siblings}, {"own", options_.own}});
    add("join exact",
        {{"trunk", options_.trunk}, {"siblings", options_.siblings}, {"own", options_.own}});
    ratio("join", Json::object(), "join", times_.at("join exact"));
    chats();
    if (!options_.common.json.empty()) report_.write_json(options_.common.json);
  }

 private:
  std::vector<Token> fresh(std::int64_t count) {
    return random_tokens(count, engine_.info().vocab, ++seed_);
  }
  void time(const std::string& name, const std::function<void()>& what) {
    const double begin = now_seconds();
    what();
    times_[name].push_back((now_seconds() - begin) * 1e3);
  }
  void add(const std::string& name, const Json& params) {
    report_.add(name, params, "ms", times_.at(name));
  }
  /// How many times as long the other takes.
  void ratio(const std::string& name, const Json& params, const std::string& ours,
             const std::vector<double>& theirs) {
    const std::vector<double>& times = times_.at(ours);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < times.size(); ++i) ratios.push_back(theirs[i] / times[i]);
    report_.add_ratio(name, params, ratios, median(times), median(theirs));
  }

  void trial() {
    Session session(engine_, {.seed = 1});
    chunks(session);
    edits(session);
    joins(session);
  }
  void chunks(Session& session) {
    const std::int64_t all = std::int64_t{options_.chunks} * options_.chunk_tokens + options_.query;
    {
      const std::vector<Token> tokens = fresh(all);
      time("plain", [&] { const Branch branch = session.prefill(tokens); });
      time("known prompt", [&] { const Branch branch = session.prefill(tokens); });
    }
    std::vector<Chunk> registered;
    for (int i = 0; i < options_.chunks; ++i) {
      registered.push_back(session.register_chunk(fresh(options_.chunk_tokens)));
    }
    for (const std::int64_t first : options_.repairs) {
      std::vector<Piece> pieces;
      for (auto chunk = registered.rbegin(); chunk != registered.rend(); ++chunk) {
        pieces.push_back(Piece::chunk(*chunk));
      }
      pieces.push_back(Piece::tokens(fresh(options_.query)));
      const ComposeParams params{.repair = {.first = first}};
      time("compose " + std::to_string(first),
           [&] { const Composed composed = session.compose(pieces, params); });
      if (first == options_.repairs.front()) {
        time("repeat", [&] { const Composed composed = session.compose(pieces, params); });
      }
    }
  }
  void edits(Session& session) {
    const std::int64_t all = std::int64_t{options_.chunks} * options_.chunk_tokens;
    const std::vector<Token> tokens = fresh(all);
    const Branch branch = session.prefill(tokens);
    const std::vector<Edit> edit = {{{all / 4, all / 2}, {}}};
    time("edit", [&] { const Composed composed = session.edit(branch, edit); });
    time("edit exact", [&] {
      const Composed composed = session.edit(branch, edit, {.mode = ComposeParams::Mode::kExact});
    });
  }
  void joins(Session& session) {
    Branch trunk = session.prefill(fresh(options_.trunk));
    std::vector<Branch> siblings = trunk.fork(options_.siblings);
    std::vector<const Branch*> handles;
    for (Branch& sibling : siblings) {
      sibling.append(fresh(options_.own));
      handles.push_back(&sibling);
    }
    session.distributions(siblings);
    time("join", [&] { const Composed joined = session.join(handles); });
    JoinParams exact;
    exact.mode = ComposeParams::Mode::kExact;
    time("join exact", [&] { const Composed joined = session.join(handles, exact); });
  }

  /// Prompts of their own that begin alike, as of clients that know nothing of each other.
  void chats() {
    Session session(engine_, {.seed = 1});
    const std::vector<Token> system = fresh(options_.system);
    std::vector<Branch> chats;
    for (int i = 0; i < options_.chats; ++i) {
      std::vector<Token> prompt = system;
      const std::vector<Token> turn = fresh(options_.turn);
      prompt.insert(prompt.end(), turn.begin(), turn.end());
      chats.push_back(session.prefill(prompt));
    }
    session.decode(chats, {.max_tokens = 1, .ignore_eos = true});
    const Stats stats = session.stats();
    const auto unique = static_cast<double>(stats.kv_bytes_unique);
    const auto naive = static_cast<double>(stats.kv_bytes_naive);
    report_.add_value(
        "chats", {{"chats", options_.chats}, {"system", options_.system}, {"turn", options_.turn}},
        "of K and V saved", 1 - unique / naive,
        {{"bytes_unique", stats.kv_bytes_unique}, {"bytes_naive", stats.kv_bytes_naive}});
  }

  ComposeOptions options_;
  Engine engine_;
  Report report_;
  std::uint64_t seed_ = 0;
  std::map<std::string, std::vector<double>> times_;
};

}  // namespace

void add_compose(CLI::App& app) {
  auto options = std::make_shared<ComposeOptions>();
  CLI::App& command = *app.add_subcommand(
      "compose", "time to the first token of contexts composed of chunks, edited and joined");
  options->common.add_to(command);
  add_count(command, "--chunks", options->chunks, "chunks of a context");
  add_count(command, "--chunk-tokens", options->chunk_tokens, "tokens of each");
  add_count(command, "--query", options->query, "tokens behind them");
  add_count(command, "--siblings", options->siblings, "branches of a join");
  add_count(command, "--trunk", options->trunk, "tokens that they have in common");
  add_count(command, "--own", options->own, "tokens of each one's own");
  add_count(command, "--chats", options->chats, "prompts that begin alike");
  add_count(command, "--system", options->system, "tokens that they begin with");
  add_count(command, "--turn", options->turn, "tokens of each one's own");
  add_count(command, "--trials", options->trials, "trials, after one that is not counted");
  command.add_option("--repairs", options->repairs, "first tokens of each chunk that are computed")
      ->delimiter(',')
      ->capture_default_str();
  command.callback([options] { ComposeBench(*options).run(); });
}

}  // namespace dendrite::bench
