// Writes training data for the model of echoes, and held-out requests to measure it.
//
//   g++ -O3 -std=c++20 -pthread generate_echo.cpp -o generate_echo
//
//   generate_echo rows [--phase 1|2|3] [--seed N] [--threads N] [--blocks N]
//       packed rows (packing.h) of 4096 tokens to stdout, endless without --blocks; contents and
//       chats grow with the phase
//   generate_echo heldout [--count N] [--system N] [--seed N]
//       heldout.jsonl: of each kind and length N requests, behind system messages of up to so many
//       bytes
#include <string>

#include "echoes.h"
#include "options.h"

namespace train {
namespace {

constexpr std::array<EchoSizes, 4> kLengths = {
    {{1, 16}, {17, 64}, {65, 256}, {257, kLongestContent}}};

constexpr int kTries = 2000;  // a call is never short

/// As JSON has it, with special tokens by name.
std::string quoted(const std::string& text) {
  static constexpr std::array<std::string_view, 11> names = {
      "<|bos|>",  "<|eos|>",     "<|pad|>",      "<|im_start|>",    "<|im_end|>",      "<think>",
      "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"};
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= kSpecialByte) {
      json += names[static_cast<std::size_t>(byte - kSpecialByte)];
    } else if (byte < 32) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      json += escape.data();
    } else {
      (json += c == '"' || c == '\\' ? "\\" : "") += c;
    }
  }
  return json + '"';
}

/// One JSON object a line: the kind of content, the range of its length, the system message (empty:
/// none), the message with its marks, whether that is a tool's result, whether the model is to
/// think, and the answer.
void print_held_out(int count, int system, Rng& rng) {
  for (std::size_t kind = 0; kind < kContentKinds.size(); ++kind)
    for (const auto& [shortest, longest] : kLengths)
      for (int made = 0, tries = 0; made < count && tries < kTries; ++tries) {
        const Echo echo =
            draw_echo(kind, log_between(shortest, longest, rng), Split::kHeldOut, rng);
        const int length = static_cast<int>(echo.content.size());
        if (length > longest || length < shortest) continue;
        const std::string around =
            rng.chance(0.7) ? draw_system(log_between(8, system, rng), rng) : "";
        std::printf(
            "{\"kind\": \"%s\", \"longest\": %d, \"system\": %s, \"message\": %s, \"from_tool\": "
            "%s, "
            "\"thinks\": %s, \"answer\": %s}\n",
            echo.kind.c_str(), longest, quoted(cut(around, system)).c_str(),
            quoted(echo.before + kBegin + echo.content + kEnd + echo.after).c_str(),
            echo.from_tool ? "true" : "false", rng.chance(0.7) ? "true" : "false",
            quoted(echo.content).c_str());
        ++made;
      }
}

void run(Options options) {
  const std::string& command = options.command();
  const std::uint64_t seed = options.take_uint64("--seed", "1");
  if (command == "rows") {
    const int phase = options.take_int("--phase", "1");
    const int threads = options.take_int("--threads", "1");
    const std::uint64_t blocks = options.take_uint64("--blocks", "0");
    options.check_all_taken();
    if (phase < 1 || phase > 3)
      throw std::invalid_argument("--phase: got " + std::to_string(phase) + ", expected 1, 2 or 3");
    const Draw draw = [phase](Rng& rng) { return draw_echoes(phase, rng); };
    write_rows([&] { return draw; }, seed, threads, blocks, kEchoRowTokens);
  } else if (command == "heldout") {
    const int count = options.take_int("--count", "25");
    const int system = options.take_int("--system", "2800");
    options.check_all_taken();
    Rng rng(seed, 0);
    print_held_out(count, system, rng);
  } else {
    throw std::invalid_argument("usage: generate_echo rows|heldout [--option value]...; got '" +
                                command + "'");
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  return train::run_generator("generate_echo", argc, argv, train::run);
}
