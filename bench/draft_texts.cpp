#include "draft_texts.h"

#include <algorithm>

#include "models.h"
#include "puzzles.h"
#include "tool_requests.h"

namespace dendrite::bench {
namespace {

constexpr std::int64_t kPrompts = 512;  // of a kind, at most

/// A temperature at which a trained model, too, draws nearly every token alike.
constexpr double kNoise = 100;

constexpr const char* kMadeUp = "made up";
constexpr const char* kMath = "math";
constexpr const char* kReasoning = "reasoning";
constexpr const char* kExtraction = "extraction/JSON";
constexpr const char* kToolCalling = "tool calling";

class Texts {
 public:
  Texts(const TextOptions& options, const Engine& engine) : options_(options), engine_(engine) {}

  void add_made_up() {
    const std::vector<Token> random =
        random_tokens(options_.prompt_length, engine_.info().vocab, 1);
    DraftText again{"again", kMadeUp, {random}, params(), true};
    again.params.temperature = 0;
    again.params.ignore_eos = true;
    DraftText sampled{"sampled", kMadeUp, {random}, params()};
    sampled.params.ignore_eos = true;
    DraftText astray = sampled;
    astray.name = "astray";
    astray.params.temperature = kNoise;
    constexpr std::size_t kCycle = 16;
    std::vector<Token>& prompt = astray.prompts[0];
    for (std::size_t i = kCycle; i < prompt.size(); ++i) prompt[i] = prompt[i - kCycle];
    texts.insert(texts.end(), {again, sampled, astray});
  }

  void add_puzzles(const std::filesystem::path& file) {
    const std::vector<game24::Puzzle> puzzles = read_puzzles(file.string(), 24, kPrompts);
    const auto add = [&](const char* name, const char* kind, char mode, const char* tail) {
      DraftText& text = texts.emplace_back(DraftText{name, kind, {}, params()});
      for (const game24::Puzzle& puzzle : puzzles) {
        text.prompts.push_back(engine_.encode(game24::prompt(puzzle, mode) + tail));
      }
      if (mode == 'P') text.params.stop = {"\n"};
    };
    add("solve", kMath, 'S', "");
    add("propose", kReasoning, 'P', "");
    add("judge", kReasoning, 'P', "?");
    add("expand", kReasoning, 'E', "");
  }

  void add_tools(const std::filesystem::path& folder) {
    const std::vector<ToolRequest> requests =
        read_tool_requests(folder / "heldout.jsonl", kPrompts);
    DraftText& free = texts.emplace_back(DraftText{"tools", kToolCalling, {}, params()});
    for (const ToolRequest& request : requests) {
      free.prompts.push_back(engine_.encode(tool_prompt(engine_, request), false));
    }
    DraftText held = free;
    held.name = "tools-schema";
    held.kind = kExtraction;
    held.params.constraint = call_constraint(engine_, read_tools(folder / "tools.json"));
    texts.push_back(std::move(held));
  }

  std::vector<DraftText> texts;

 private:
  DecodeParams params() const {
    return {.max_tokens = options_.output_length, .temperature = options_.temperature};
  }

  const TextOptions& options_;
  const Engine& engine_;
};

}  // namespace

void TextOptions::add_to(CLI::App& app) {
  app.add_option(
         "--texts", names,
         "Which texts. Default: all that the model was trained for; of random weights those that "
         "are made up, which any model has: again (heard before, likeliest tokens: every draft "
         "comes true, the most there is to gain), sampled (what branches of one prompt draw), "
         "astray (noise after a prompt that repeats itself: every draft is for nothing). Of "
         "dendrite-24, "
         "held-out puzzles: solve (math), propose, judge and expand (reasoning, of a search's "
         "steps). Of dendrite-tools, held-out requests: tools (tool calling), tools-schema (the "
         "same, held to a JSON schema: extraction). No shipped model writes code, prose or "
         "natural language, or sees images")
      ->delimiter(',');
  app.add_option("--prompt-length", prompt_length, "Tokens of made-up prompts")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--output-length", output_length, "Tokens a branch, at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--temperature", temperature, "Of all but again and astray; 0: greedy")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::vector<DraftText> TextOptions::make(const Engine& engine,
                                         const std::filesystem::path& folder) const {
  Texts all(*this, engine);
  all.add_made_up();
  if (!folder.empty() && std::filesystem::exists(folder / "game24_heldout.txt")) {
    all.add_puzzles(folder / "game24_heldout.txt");
  }
  if (!folder.empty() && std::filesystem::exists(folder / "tools.json")) all.add_tools(folder);
  if (names.empty()) {
    const bool is_trained = !all.texts.back().is_made_up();
    std::erase_if(all.texts,
                  [&](const DraftText& text) { return is_trained && text.is_made_up(); });
    return std::move(all.texts);
  }
  std::vector<DraftText> chosen;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all.texts, name, &DraftText::name);
    if (found == all.texts.end()) {
      std::string known;
      for (const DraftText& text : all.texts) known += (known.empty() ? "" : ", ") + text.name;
      throw Error("--texts has \"" + name + "\"; expected those of this model: " + known);
    }
    chosen.push_back(*found);
  }
  return chosen;
}

std::vector<std::string> kinds_without_text() {
  return {"coding", "prose", "natural language", "vision"};
}

}  // namespace dendrite::bench
