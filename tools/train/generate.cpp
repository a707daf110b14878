// Writes training data for the puzzle model.
//
//   g++ -O3 -std=c++20 -pthread generate.cpp -o generate
//
//   generate rows --phase 1|2|3 [--seed N] [--threads N] [--blocks N]     packed rows to stdout,
//   endless without --blocks generate docs --task T --mode S|P|J|E [--split train|heldout] [--count
//   N] [--seed N] generate roots --task T [--split train|heldout] [--count N] [--seed N] solvable
//   puzzles, "target: numbers" generate game24-heldout the list shipped beside the model
//
// Rows are 256 little-endian 16-bit tokens: the low 15 bits are the id, the top bit says that the
// token is learnt (carries loss as a target). A row holds whole documents, each behind <bos>, and
// <pad> at its end. The stream depends on phase and seed only: threads write numbered blocks in
// order.
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "documents.h"

namespace train {
namespace {

// ---- tokens: the bytes in the order of GPT-2's alphabet, then the specials (see tokenizer.py)
// ----

inline constexpr std::uint16_t kBos = 256, kEos = 257, kPad = 258;
inline constexpr std::uint16_t kLearnt = 0x8000;

std::array<std::uint16_t, 256> byte_tokens() {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  std::array<std::uint16_t, 256> token{};
  std::uint16_t next = 0;
  for (const bool wanted : {true, false})
    for (int b = 0; b < 256; ++b)
      if (printable(b) == wanted) token[b] = next++;
  return token;
}

// ---- the mixture ----

/// Weights out of 100, by document. The first phase is the simpler tasks; the last asks for twice
/// the judging.
struct Phase {
  int task[kNumTasks];  // in the order of kTasks
  int mode[4];          // S P J E
};
inline constexpr Phase kPhases[] = {
    {{15, 35, 10, 40, 0}, {50, 15, 30, 5}},
    {{12, 33, 5, 30, 20}, {47, 16, 32, 5}},
    {{14, 34, 3, 27, 22}, {42, 14, 42, 2}},
};

int draw_weighted(const int* weights, Rng& rng) {
  int pick = rng.below(100);
  int i = 0;
  while (pick >= weights[i]) pick -= weights[i++];
  return i;
}

// ---- packing ----

inline constexpr int kRowTokens = 256;
inline constexpr int kBlockRows = 256;  // the unit of work of a thread; 128 KiB
inline constexpr int kWaiting = 48;     // documents to choose from when filling the end of a row

class Packer {
 public:
  explicit Packer(const Phase& phase)
      : phase_(phase), author_(Split::kTrain), byte_token_(byte_tokens()) {}

  std::vector<std::uint16_t> block(std::uint64_t seed, std::uint64_t number) {
    Rng rng(seed, number);
    std::deque<std::vector<std::uint16_t>> waiting;
    std::vector<std::uint16_t> tokens;
    tokens.reserve(kBlockRows * kRowTokens);
    for (int row = 0; row < kBlockRows; ++row) {
      std::size_t room = kRowTokens;
      for (;;) {
        while (waiting.size() < kWaiting) waiting.push_back(draw(rng));
        // The oldest if it fits, so that long documents are not put off for ever; else the longest
        // that fits.
        auto best = waiting.begin();
        if (best->size() > room)
          for (auto it = waiting.begin(); it != waiting.end(); ++it)
            if (it->size() <= room && (best->size() > room || it->size() > best->size())) best = it;
        if (best->size() > room) break;
        tokens.insert(tokens.end(), best->begin(), best->end());
        room -= best->size();
        waiting.erase(best);
      }
      tokens.insert(tokens.end(), room, kPad);
    }
    return tokens;
  }

 private:
  /// One document as tokens, behind <bos>. A list of moves too long for a row is drawn again.
  std::vector<std::uint16_t> draw(Rng& rng) {
    for (;;) {
      const int task = draw_weighted(phase_.task, rng);
      const Document document =
          author_.write(task, static_cast<Mode>(draw_weighted(phase_.mode, rng)), rng);
      if (document.text.size() + 2 > kRowTokens) continue;
      std::vector<std::uint16_t> tokens{kBos};
      for (std::size_t i = 0; i < document.text.size(); ++i) {
        const std::uint16_t token = byte_token_[static_cast<unsigned char>(document.text[i])];
        tokens.push_back(i >= document.learnt_from ? token | kLearnt : token);
      }
      if (document.ends) tokens.push_back(kEos | kLearnt);
      return tokens;
    }
  }

  Phase phase_;
  Author author_;
  std::array<std::uint16_t, 256> byte_token_;
};

/// Blocks 0, 1, 2, ... to stdout, made by `threads` threads. A thread whose block is not next
/// waits, so at most one block a thread is held back. Ends after `blocks` (0: never) or when the
/// reader closes the pipe.
void write_rows(const Phase& phase, std::uint64_t seed, int threads, std::uint64_t blocks) {
  std::atomic<std::uint64_t> next_to_make{0};
  std::uint64_t next_to_write = 0;
  bool closed = false;
  std::mutex mutex;
  std::condition_variable turn;
  const auto work = [&] {
    Packer packer(phase);
    for (;;) {
      const std::uint64_t number = next_to_make.fetch_add(1);
      if (blocks > 0 && number >= blocks) return;
      const std::vector<std::uint16_t> tokens = packer.block(seed, number);
      std::unique_lock lock(mutex);
      turn.wait(lock, [&] { return closed || next_to_write == number; });
      if (closed) return;
      closed = std::fwrite(tokens.data(), sizeof tokens[0], tokens.size(), stdout) != tokens.size();
      ++next_to_write;
      turn.notify_all();
      if (closed) return;
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work);
}

// ---- the command line ----

using Options = std::map<std::string, std::string>;

/// The value of `name`, or `fallback`. Throws on an option that this command does not have by
/// leaving it behind.
std::string take(Options& options, const std::string& name, std::string fallback) {
  const auto it = options.find(name);
  if (it == options.end()) return fallback;
  std::string value = it->second;
  options.erase(it);
  return value;
}

int task_named(const std::string& name) {
  for (int i = 0; i < kNumTasks; ++i)
    if (kTasks[i].name == name) return i;
  throw std::invalid_argument("--task: got '" + name +
                              "', expected one of game24 game24wide countdown3..5");
}

Mode mode_named(const std::string& name) {
  const std::size_t at = std::string_view("SPJE").find(name);
  if (name.size() != 1 || at == std::string_view::npos)
    throw std::invalid_argument("--mode: got '" + name + "', expected S, P, J or E");
  return static_cast<Mode>(at);
}

Split split_named(const std::string& name) {
  if (name == "train") return Split::kTrain;
  if (name == "heldout") return Split::kHeldOut;
  throw std::invalid_argument("--split: got '" + name + "', expected train or heldout");
}

/// One document a line: where learning starts, whether <eos> follows, and the text with "\n"
/// escaped.
void print_documents(int task, Mode mode, Split split, int count, std::uint64_t seed) {
  Author author(split);
  Rng rng(seed, 0);
  for (int i = 0; i < count; ++i) {
    const Document document = author.write(task, mode, rng);
    std::string escaped;
    for (const char c : document.text) c == '\n' ? escaped += "\\n" : escaped += c;
    std::printf("%zu\t%d\t%s\n", document.learnt_from, document.ends, escaped.c_str());
  }
}

void print_numbers(const State& state) {
  for (int i = 0; i < state.count; ++i) std::printf(" %d", state.value[i]);
  std::printf("\n");
}

/// `count` different solvable puzzles, or as many as the split holds (Countdown with three numbers
/// has 77 held out).
void print_roots(int task, Split split, int count, std::uint64_t seed) {
  Author author(split);
  Rng rng(seed, 0);
  std::set<std::pair<int, std::array<std::uint16_t, kMaxNumbers>>> seen;
  for (int repeats = 0; static_cast<int>(seen.size()) < count;) {
    const Puzzle puzzle = author.draw(task, true, rng);
    if (!seen.insert({puzzle.target, puzzle.root.value}).second) {
      if (++repeats > 50 * count) return;
      continue;
    }
    std::printf("%d:", puzzle.target);
    print_numbers(puzzle.root);
  }
}

void print_game24_heldout() {
  Solver solver;
  for (const State& root : all_roots(kTasks[0], 24, Split::kHeldOut)) {
    std::printf("%d", solver.solvable(root, 24));
    print_numbers(root);
  }
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  Options options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  if (argc > 2 && argc % 2 == 1)
    throw std::invalid_argument(std::string(argv[argc - 1]) + ": value missing");

  const std::uint64_t seed = std::stoull(take(options, "--seed", "1"));
  const auto check_all_taken = [&] {
    if (!options.empty())
      throw std::invalid_argument(options.begin()->first + ": unknown option for " + command);
  };
  if (command == "rows") {
    const int phase = std::stoi(take(options, "--phase", "2"));
    const int threads = std::stoi(take(options, "--threads", "1"));
    const std::uint64_t blocks = std::stoull(take(options, "--blocks", "0"));
    check_all_taken();
    if (phase < 1 || phase > 3)
      throw std::invalid_argument("--phase: got " + std::to_string(phase) + ", expected 1..3");
    // Phases with one seed are different streams, not the same walks under other weights.
    write_rows(kPhases[phase - 1], seed * 4 + static_cast<std::uint64_t>(phase), threads, blocks);
  } else if (command == "docs" || command == "roots") {
    const int task = task_named(take(options, "--task", "game24"));
    const Split split = split_named(take(options, "--split", "train"));
    const int count = std::stoi(take(options, "--count", "10"));
    const std::string mode = take(options, "--mode", "S");
    check_all_taken();
    if (command == "docs")
      print_documents(task, mode_named(mode), split, count, seed);
    else
      print_roots(task, split, count, seed);
  } else if (command == "game24-heldout") {
    check_all_taken();
    print_game24_heldout();
  } else {
    throw std::invalid_argument(
        "usage: generate rows|docs|roots|game24-heldout [--option value]...; got '" + command +
        "'");
  }
  return 0;
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  std::signal(SIGPIPE,
              SIG_IGN);  // a reader that has enough closes the pipe: that is the normal end
  try {
    return train::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 2;
  }
}
