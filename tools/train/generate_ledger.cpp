// Writes training data for the model of ledgers, and held-out ledgers to measure it.
//
//   g++ -O3 -std=c++20 -pthread generate_ledger.cpp -o generate_ledger
//
//   generate_ledger rows [--phase 1|2|3] [--seed N] [--threads N] [--blocks N]
//       packed rows (packing.h) of 512 tokens to stdout, endless without --blocks; ledgers grow
//       with the phase
//   generate_ledger heldout [--count N] [--bytes N] [--seed N]
//       N ledgers of some bytes each, a JSON string a line
#include <string>

#include "ledgers.h"
#include "options.h"

namespace train {
namespace {

void print_held_out(int count, int bytes, Rng& rng) {
  for (int i = 0; i < count; ++i) {
    std::string line;
    for (const char c : draw_ledger(bytes, false, rng).document().text)
      c == '\n' ? line += "\\n" : line += c;
    std::printf("\"%s\"\n", line.c_str());
  }
}

void run(Options options) {
  const std::string& command = options.command();
  const std::uint64_t seed = options.take_uint64("--seed", "1");
  if (command == "rows") {
    const int phase = options.take_phase("1");
    const int threads = options.take_int("--threads", "1");
    const std::uint64_t blocks = options.take_uint64("--blocks", "0");
    options.check_all_taken();
    const LedgerPhase drawn = kLedgerPhases[static_cast<std::size_t>(phase - 1)];
    const Draw draw = [drawn](Rng& rng) {
      return draw_ledger(rng.between(drawn.least, drawn.most), drawn.doubled, rng).document();
    };
    write_rows([&] { return draw; }, seed, threads, blocks, kLedgerRowTokens);
  } else if (command == "heldout") {
    const int count = options.take_int("--count", "25");
    const int bytes = options.take_int("--bytes", "500");
    options.check_all_taken();
    Rng rng(seed ^ 0x8e1d07, 0);  // another stream than those of rows
    print_held_out(count, bytes, rng);
  } else {
    throw std::invalid_argument("usage: generate_ledger rows|heldout [--option value]...; got '" +
                                command + "'");
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  return train::run_generator("generate_ledger", argc, argv, train::run);
}
