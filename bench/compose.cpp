#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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
//   first use   the first composition of a process, which loads kernels and makes tables: processes
//   of their own repeat      the same composition again; and, beside it, a prompt that is known
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
  int first_uses = 0;
  bool is_first_use = false;  // this process is one
  std::vector<std::int64_t> repairs = {0, 16, 32, 64};
};

/// What `command` prints as a number on its last line.
double last_number(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw Error("compose: a process could not be started");
  std::array<char, 512> line{};
  double number = -1;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    number = std::strtod(line.data(), nullptr);
  }
  if (pclose(pipe) != 0 || number <= 0) {
    throw Error("compose: \"" + command + "\" failed; expected a time in ms on its last line");
  }
  return number;
}

/// Times of first compositions, in ms, one a process.
std::vector<double> first_uses(int count) {
  std::error_code ignored;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command =
      "exec '" + std::filesystem::read_symlink("/proc/self/exe", ignored).string() + "'";
  std::string word;
  std::getline(file, word, '\0');  // the program
  while (std::getline(file, word, '\0')) command += " '" + word + "'";
  std::vector<double> ms;
  for (int i = 0; i < count; ++i) ms.push_back(last_number(command + " --is-first-use"));
  return ms;
}

class ComposeBench {
 public:
  explicit ComposeBench(const ComposeOptions& options)
      : options_(options), engine_(options.common.load()), report_("compose") {
    report_.describe(engine_, options.common.model_name());
  }

  /// The default repair alone, once, and its time as the last line.
  void run_first_use() {
    Session session(engine_, {.seed = 1});
    const std::vector<Chunk> registered = register_chunks(session);
    time("first", [&] {
      const Composed composed = session.compose(pieces_of(registered), ComposeParams{});
    });
    std::printf("%.6f\n", times_.at("first")[0]);
  }

  void run(const std::vector<double>& first) {
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
    if (!first.empty()) {
      report_.add("first use", {{"tokens", context}, {"first", ComposeParams{}.repair.first}}, "ms",
                  first);
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
  std::vector<Chunk> register_chunks(Session& session) {
    std::vector<Chunk> registered;
    for (int i = 0; i < options_.chunks; ++i) {
      registered.push_back(session.register_chunk(fresh(options_.chunk_tokens)));
    }
    return registered;
  }
  /// In another order than they were registered in, and a query.
  std::vector<Piece> pieces_of(const std::vector<Chunk>& registered) {
    std::vector<Piece> pieces;
    for (auto chunk = registered.rbegin(); chunk != registered.rend(); ++chunk) {
      pieces.push_back(Piece::chunk(*chunk));
    }
    pieces.push_back(Piece::tokens(fresh(options_.query)));
    return pieces;
  }
  void chunks(Session& session) {
    const std::int64_t all = std::int64_t{options_.chunks} * options_.chunk_tokens + options_.query;
    {
      const std::vector<Token> tokens = fresh(all);
      time("plain", [&] { const Branch branch = session.prefill(tokens); });
      time("known prompt", [&] { const Branch branch = session.prefill(tokens); });
    }
    const std::vector<Chunk> registered = register_chunks(session);
    for (const std::int64_t first : options_.repairs) {
      const std::vector<Piece> pieces = pieces_of(registered);
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
  command
      .add_option("--first-uses", options->first_uses,
                  "processes whose first composition is timed; each loads the model")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command.add_flag("--is-first-use", options->is_first_use)->group("");  // for such processes
  command.callback([options] {
    if (options->is_first_use) return ComposeBench(*options).run_first_use();
    const std::vector<double> first =
        first_uses(options->first_uses);  // before this one has a model
    ComposeBench(*options).run(first);
  });
}

}  // namespace dendrite::bench
