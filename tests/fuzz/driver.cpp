// A main() for fuzz targets where there is no libFuzzer: runs every file of a corpus, then
// mutations of them for a while. Input i of a seed is always the same, so a failure can be
// repeated:
//
//   TARGET CORPUS_FOLDER [SECONDS] [SEED] [FIRST_ITERATION]
//   TARGET FILE                                               one input, as it is
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fuzz.h"

extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace {

using Random = std::mt19937_64;

// What runs now, for the report of a failure.
struct Current {
  std::string input;
  std::uint64_t seed = 0;
  std::uint64_t iteration = 0;
} current;

void report() {
  static bool reported = false;
  if (std::exchange(reported, true)) return;
  const std::string file =
      "crash-" + std::to_string(current.seed) + "-" + std::to_string(current.iteration);
  std::ofstream(file, std::ios::binary) << current.input;
  std::fprintf(stderr, "fuzz: failed at seed %llu, iteration %llu; the input is in %s\n",
               static_cast<unsigned long long>(current.seed),
               static_cast<unsigned long long>(current.iteration), file.c_str());
}

/// Runs one input; one that takes too long is a failure too.
void run(const std::string& input) {
  current.input = input;
  // A copy of the exact size, so that reading one byte too many is seen.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  const auto start = std::chrono::steady_clock::now();
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  if (std::chrono::steady_clock::now() - start > std::chrono::seconds(DENDRITE_FUZZ_MOST_SECONDS)) {
    std::fprintf(stderr, "fuzz: an input of %zu bytes took over %d seconds\n", input.size(),
                 DENDRITE_FUZZ_MOST_SECONDS);
    report();
    std::exit(1);
  }
}

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

/// Pieces that parsers stumble over.
const std::vector<std::string> kPieces = {"0",
                                          "-1",
                                          "1",
                                          "4294967296",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551615",
                                          "18446744073709551616",
                                          "1e999",
                                          "1e-7",
                                          "0.5",
                                          "-0",
                                          "null",
                                          "true",
                                          "\"\"",
                                          "\"x\"",
                                          "[]",
                                          "{}",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          ",",
                                          ":",
                                          "\"",
                                          "\\",
                                          "\\u0000",
                                          "\\ud800",
                                          std::string(1, '\0'),
                                          "\xff",
                                          "\xc3",
                                          "[[[[[[[[",
                                          "\"a\":1,",
                                          "\"dtype\":\"F32\"",
                                          "\"shape\":[0]",
                                          "\"rope_type\":\"yarn\"",
                                          "\"rope_scaling\":",
                                          "\"../x\"",
                                          "\r\n",
                                          "Content-Length: 3\r\n",
                                          "Transfer-Encoding: chunked\r\n",
                                          "%2e%00",
                                          " "};

void mutate(std::string& text, const std::vector<std::string>& corpus, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  const std::size_t length = below(random, std::min<std::size_t>(text.size() - at, 32) + 1);
  switch (random() % 9) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(at, text.substr(at, length));
      break;
    case 4:
      text.insert(at, kPieces[below(random, kPieces.size())]);
      break;
    case 5:
      text.replace(at, length, kPieces[below(random, kPieces.size())]);
      break;
    case 6:
      text.resize(at);
      break;
    case 7: {  // a stretch of another file
      const std::string& other = corpus[below(random, corpus.size())];
      text.insert(at, other.substr(below(random, other.size()), below(random, 64)));
      break;
    }
    default: {  // a number by another
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      const std::size_t end = std::min(text.find_first_not_of("0123456789.e", digit), text.size());
      text.replace(digit, end - digit, kPieces[below(random, 12)]);
    }
  }
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [SECONDS] [SEED] [FIRST_ITERATION]\n", argv[0]);
    return 2;
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(report);
  std::signal(SIGABRT, [](int) { report(); });  // fuzz_check, an uncaught exception; then it ends
  const std::filesystem::path path = argv[1];
  if (!std::filesystem::is_directory(path)) {
    run(read(path));
    return 0;
  }
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.0;
  current.seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  current.iteration = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;

  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<std::string> corpus;
  for (const auto& file : files) corpus.push_back(read(file));
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: %s holds no files\n", argv[1]);
    return 2;
  }
  for (const std::string& input : corpus) run(input);

  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++current.iteration) {
    Random random(current.seed * 0x9e3779b97f4a7c15u + current.iteration);
    std::string input = corpus[below(random, corpus.size())];
    for (std::size_t i = 1 + below(random, 8); i > 0; --i) mutate(input, corpus, random);
    if (input.size() <= 1u << 20) run(input);
  }
  std::printf("fuzz: %zu files and %llu mutations passed (seed %llu)\n", corpus.size(),
              static_cast<unsigned long long>(current.iteration),
              static_cast<unsigned long long>(current.seed));
  return 0;
}
