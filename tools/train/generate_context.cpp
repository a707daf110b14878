// Writes training data for the models of composition, and what is measured with them.
//
//   g++ -O3 -std=c++20 -pthread generate_context.cpp -o generate_context
//
//   generate_context rows [--phase 1|2|3] [--alone P] [--seed N] [--threads N] [--blocks N]
//       packed rows of 4096 (packing.h) to stdout, endless without --blocks. Of the contexts of
//       documents a share P has documents that see the system line and themselves only.
//   generate_context docs [--phase 1|2|3] [--count N] [--seed N]
//   generate_context questions [--count N] [--most N] [--seed N]
//       N held-out questions of each class, as JSON lines; contexts of up to --most documents
#include <string>
#include <string_view>

#include "contexts.h"
#include "options.h"
#include "packing.h"
#include "transcripts.h"

namespace train {
namespace {

constexpr int kContextRowTokens = 4096;

// ---- the mixture ----

Shape draw_shape(int phase, bool join, Rng& rng) {
  Shape shape{.fewest = 2, .most = 3, .longer = 0, .join = join};
  const double kind = rng.below(100);
  if (phase == 1 || kind < 50) {
    shape.most = phase == 1 ? 3 : 4;
  } else if (phase == 2 || kind < 80) {
    shape = {.fewest = 4, .most = 8, .longer = phase == 2 ? 0.1 : 0.2, .join = join};
  } else {
    shape = {.fewest = 8, .most = 16, .longer = 0.3, .join = join};
  }
  // The common document and 2 to 8 continuations.
  if (join) shape.fewest = std::max(shape.fewest, 3), shape.most = std::min(shape.most, 9);
  return shape;
}

Draw mixture(int phase, double alone) {
  return [phase, alone](Rng& rng) {
    if (rng.chance(0.3)) {
      const TranscriptShape shape{.fewest = 8,
                                  .most = phase == 1   ? 9
                                          : phase == 2 ? 14
                                                       : 30,
                                  .longest_result = phase == 1 ? 5 : 9};
      return draw_transcript_lesson(shape, rng);
    }
    const bool join = phase > 1 && rng.chance(0.15);
    return draw_context_lesson(draw_shape(phase, join, rng), rng.chance(alone), rng);
  };
}

// ---- what is measured, as JSON: all texts are printable ASCII and newlines, without quotes ----

std::string json(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) c == '\n' ? quoted += "\\n" : quoted += c;
  return quoted + '"';
}

/// `write(i)` of each i below count, in brackets.
template <typename Write>
std::string json_list(std::size_t count, Write write) {
  std::string list = "[";
  for (std::size_t i = 0; i < count; ++i) (list += i > 0 ? ", " : "") += write(i);
  return list + ']';
}

std::string asked_json(const Question& question) {
  return "\"question\": " + json(question.text + '\n') + ", \"answer\": " + json(question.answer);
}

void print_context_questions(std::string_view name, int count, int most, Rng& rng) {
  while (count > 0) {
    const bool join = name == "join";
    const Shape shape{.fewest = join ? 3 : 2,
                      .most = std::min(most, join ? 9 : 16),
                      .longer = most < 16 ? 0.0 : 0.25,
                      .join = join};
    const Context context = ContextWriter(shape, rng).write();
    const std::string text = context.text();
    if (text.size() + 64 > kContextRowTokens) continue;
    std::optional<Question> question;
    for (int tries = 0; tries < 20 && !question; ++tries) {
      question = ask(context, name, rng);
      if (question && !held_out(*question, text)) question.reset();
    }
    if (!question) continue;
    const std::size_t common = join ? 1 : 0;
    std::printf("{\"class\": \"%s\", \"system\": %s, ", std::string(name).c_str(),
                json(context.system).c_str());
    if (join) std::printf("\"common\": %s, ", json(context.documents[0]).c_str());
    const auto document = [&](std::size_t i) { return json(context.documents[common + i]); };
    std::printf("\"documents\": %s, %s}\n",
                json_list(context.documents.size() - common, document).c_str(),
                asked_json(*question).c_str());
    --count;
  }
}

void print_transcript_questions(std::string_view name, int count, int most, Rng& rng) {
  while (count > 0) {
    const Transcript transcript =
        draw_transcript({.fewest = 8, .most = std::min(2 * most, 30)}, rng);
    const std::optional<Target> target = draw_target(transcript, name, rng);
    if (!target) continue;
    const Question question = question_of(*target, transcript);
    if (!held_out(question, transcript.text())) continue;
    std::string edits;
    for (const std::string_view kind : kEdits) {
      const std::optional<EditedTranscript> edited = edit(transcript, kind, *target, rng);
      if (!edited) continue;
      const std::vector<Turn> turns = edited->turns();
      const auto turn = [&](std::size_t i) {
        return turns[i].number < 0 ? json(turns[i].text) : std::to_string(turns[i].number);
      };
      if (!edits.empty()) edits += ", ";
      edits += "{\"kind\": " + json(kind) + ", \"turns\": " + json_list(turns.size(), turn) +
               ", \"answer\": " + json(answer(*target, edited->visits())) + '}';
    }
    const std::vector<Turn> turns = EditedTranscript(transcript).turns();
    const auto turn = [&](std::size_t i) { return json(turns[i].text); };
    std::printf("{\"class\": \"%s\", \"system\": %s, \"turns\": %s, %s, \"edits\": [%s]}\n",
                std::string(name).c_str(), json(transcript.system).c_str(),
                json_list(turns.size(), turn).c_str(), asked_json(question).c_str(), edits.c_str());
    --count;
  }
}

void run(Options options) {
  const std::string& command = options.command();
  const std::uint64_t seed = options.take_uint64("--seed", "1");
  if (command == "rows") {
    const int phase = options.take_phase("1");
    const double alone = std::stod(options.take("--alone", "0"));
    const int threads = options.take_int("--threads", "1");
    const std::uint64_t blocks = options.take_uint64("--blocks", "0");
    options.check_all_taken();
    write_rows([=] { return mixture(phase, alone); }, seed, threads, blocks, kContextRowTokens);
  } else if (command == "docs") {
    const int phase = options.take_phase("3");
    const int count = options.take_int("--count", "10");
    options.check_all_taken();
    print_documents(mixture(phase, 0), count, seed);
  } else if (command == "questions") {
    const int count = options.take_int("--count", "500");
    const int most = options.take_int("--most", "16");
    options.check_all_taken();
    if (most < 4 || most > 16)
      throw std::invalid_argument("--most: got " + std::to_string(most) + ", expected 4 to 16");
    std::uint64_t stream = 0;  // of each class, so that one does not depend on the others
    for (const std::string_view name : kContextClasses) {
      Rng rng(seed, stream++);
      print_context_questions(name, count, most, rng);
    }
    Rng join(seed, stream++);
    print_context_questions("join", count, most, join);
    for (const std::string_view name : kTranscriptClasses) {
      Rng rng(seed, stream++);
      print_transcript_questions(name, count, most, rng);
    }
  } else {
    throw std::invalid_argument(
        "usage: generate_context rows|docs|questions [--option value]...; got '" + command + "'");
  }
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  return train::run_generator("generate_context", argc, argv, train::run);
}
