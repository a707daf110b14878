#include <chrono>
#include <iostream>
#include <utility>

#include "common.h"
#include "constraint_flags.h"
#include "observe.h"

namespace dendrite::cli {
namespace {

constexpr const char* kFooter =
    "Text that must be something: no token is drawn that could not be part of it.\n"
    "  dendrite generate --prompt TEXT --json-schema person.json\n"
    "  dendrite generate --prompt TEXT --regex '[0-9]{4}-[0-9]{2}-[0-9]{2}'\n"
    "  dendrite generate --prompt TEXT --choice yes --choice no\n"
    "  dendrite generate --prompt TEXT --grammar sum.lark, of a file like\n"
    "      start: NUMBER (\" + \" NUMBER)* \"\\n\"\n"
    "      NUMBER: /[0-9]+/\n"
    "A branch ends (finish: stop) when its text is whole and nothing more can follow, or with an\n"
    "end-of-sequence token where it may; --max-tokens can cut it short (length), and --stop "
    "inside\n"
    "of what it must be (stop_inside; with stop what is left is whole). It is dead_end where no\n"
    "token of the model can follow, or none that --logit-bias ID:-inf has not forbidden. What is\n"
    "not supported of a schema is an error. JSON has no spaces unless the schema has "
    "\"x-guidance\": {\"whitespace_flexible\": true}.\n"
    "\n"
    "Stop here and go on elsewhere, with the same tokens as without the stop:\n"
    "  dendrite generate --prompt TEXT --n 4 --max-tokens 100 --save tree.snap\n"
    "  dendrite generate --resume tree.snap --max-tokens 100\n"
    "A snapshot goes with the model that made it. Sampling flags are not in it: give them\n"
    "again. A constraint is, and how far each branch has come in it: --resume goes on inside.\n"
    "Given with --resume, one of its flags begins a new one where the branches are.";

struct GenerateFlags {
  CommonFlags common;
  ObserveFlags observe;
  PromptFlags prompt;
  ConstraintFlags constraint;
  DecodeParams decode;
  std::vector<std::string> logit_bias;
  int branches = 1;
  int top_logprobs = 0;
  std::string save;
  std::string resume;
};

/// What is decoded: the branches of a fresh prompt, or those of a snapshot.
struct Work {
  Session session;
  std::vector<Branch> branches;
};

Work start(const Engine& engine, const GenerateFlags& flags,
           const std::optional<Constraint>& constraint, const Interrupt& interrupt) {
  const std::vector<Token> prompt = flags.prompt.tokens(engine);
  Work work{Session(engine, {.seed = flags.common.seed}), {}};
  work.branches.push_back(
      work.session.prefill(std::span<const Token>(prompt), {.cancel = interrupt.token()}));
  // Of the branches, not of the call alone: --save keeps how far they have come in it.
  if (constraint) work.branches.front().constrain(*constraint);
  if (flags.branches > 1) {
    Branch root = std::move(work.branches.front());
    work.branches = root.fork(flags.branches);
  }
  return work;
}

Work resume(const Engine& engine, const std::string& file,
            const std::optional<Constraint>& constraint) {
  Restored restored = engine.restore(file);
  if (!restored.note.empty()) std::cerr << "note: " << restored.note << "\n";
  if (restored.branches.empty()) {
    throw Error(file + ": holds no branches; expected at least one to go on with");
  }
  if (constraint) {
    for (Branch& branch : restored.branches) branch.constrain(*constraint);
  }
  return {std::move(restored.session), std::move(restored.branches)};
}

std::pair<Token, float> parse_bias(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::size_t used = 0;
  try {
    const long id = std::stol(text, &used);
    if (colon != std::string::npos && used == colon) {
      const float value = std::stof(text.substr(colon + 1), &used);
      if (used == text.size() - colon - 1) return {static_cast<Token>(id), value};
    }
  } catch (const std::logic_error&) {
  }
  throw Error("--logit-bias: got \"" + text + "\"; expected ID:VALUE like 42:-1.5");
}

Json generation_json(const Generation& generation) {
  Json logprobs = Json::array();
  for (const ChosenToken& chosen : generation.logprobs) {
    Json top = Json::array();
    for (const TokenLogprob& entry : chosen.top) top.push_back({entry.id, entry.logprob});
    logprobs.push_back({{"id", chosen.id}, {"logprob", chosen.logprob}, {"top", std::move(top)}});
  }
  Json json{{"ids", generation.ids},
            {"text", generation.text},
            {"finish", name_of(generation.finish)},
            {"logprobs", std::move(logprobs)}};
  if (!generation.stop.empty()) json["stop"] = generation.stop;
  return json;
}

int run(const GenerateFlags& flags) {
  const Engine engine = flags.common.load();
  const Observer observer(engine, flags.observe);
  const std::optional<Constraint> constraint = flags.constraint.constraint(engine);
  DecodeParams params = flags.decode;
  for (const std::string& bias : flags.logit_bias) params.logit_bias.push_back(parse_bias(bias));
  params.top_logprobs = flags.common.json ? flags.top_logprobs : -1;

  const Interrupt interrupt;
  params.cancel = interrupt.token();
  const auto begin = std::chrono::steady_clock::now();
  auto [session, branches] = flags.resume.empty() ? start(engine, flags, constraint, interrupt)
                                                  : resume(engine, flags.resume, constraint);
  const bool stream = !flags.common.json && branches.size() == 1 && engine.info().has_tokenizer;
  std::size_t shown = 0;
  if (stream) {
    params.on_token = [&shown](const TokenEvent& event) {
      std::cout << event.text << std::flush;
      shown += event.text.size();
    };
  }
  const std::vector<Generation> generations = session.decode(branches, params);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  // (Where a branch ends without a token, what was held back of its last one has not been told.)
  if (stream) std::cout << generations.front().text.substr(shown) << std::endl;
  if (const auto shortage = session.shortage()) std::cerr << shortage->message() << "\n";
  if (!flags.save.empty()) session.save(flags.save, branches);

  if (flags.common.json) {
    std::vector<Token> prompt = branches.front().tokens();
    prompt.resize(static_cast<std::size_t>(branches.front().prompt_length()));
    Json out{{"prompt_ids", prompt}, {"branches", Json::array()}};
    for (const Generation& generation : generations)
      out["branches"].push_back(generation_json(generation));
    out["stats"] = to_json(session.stats(), took.count());
    if (engine.info().dummy_weights) out["dummy_weights"] = true;
    print_json(out);
  } else if (!stream) {
    for (std::size_t i = 0; i < generations.size(); ++i) {
      if (generations.size() > 1) std::cout << "--- branch " << i + 1 << "\n";
      if (engine.info().has_tokenizer) {
        std::cout << generations[i].text << "\n";
      } else {
        for (const Token id : generations[i].ids) std::cout << id << " ";
        std::cout << "\n";
      }
    }
  }
  if (!flags.common.json) note_unfinished(branches);
  return interrupt.requested() ? kExitInterrupted : 0;
}

}  // namespace

void add_generate(CLI::App& app, int& status) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt, on one branch or many");
  command->footer(kFooter);
  flags->common.add_to(*command);
  flags->observe.add_to(*command);
  flags->prompt.add_to(*command);
  flags->constraint.add_to(*command);
  DecodeParams& d = flags->decode;
  command->add_option("--max-tokens", d.max_tokens, "New tokens a branch")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", d.temperature, "0: greedy (default: the model's, else 0)");
  command->add_option("--top-k", d.top_k, "Keep the k likeliest; 0: all");
  command->add_option("--top-p", d.top_p, "Keep the likeliest up to this probability");
  command->add_option("--min-p", d.min_p, "Keep p >= min-p * largest p");
  command->add_option("--repetition-penalty", d.repetition_penalty, "1: none");
  command
      ->add_option("--logit-bias", flags->logit_bias,
                   "Add to a token's logit; -inf: never draw it (repeatable)")
      ->type_name("ID:V")
      ->take_all()
      ->expected(1);
  command->add_option("--stop", d.stop, "End when this text appears (repeatable)")
      ->take_all()
      ->expected(1);
  command->add_option("--n", flags->branches, "Branches that share the prompt")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--top-logprobs", flags->top_logprobs, "Likeliest tokens to list (--json)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option_function<std::string>(
          "--speculate", [&d](const std::string& name) { d.speculate = speculate_of(name); },
          "Draft tokens, for the same text in fewer steps. suffix: what followed in these branches "
          "where their text ended alike; draft_model: what --draft-model says; dflash, "
          "dflash_ddtree: what --drafter says, its likeliest chain or a tree; suffix_dflash: for "
          "each branch what promises more of suffix and dflash_ddtree; mtp, suffix_mtp: the same "
          "with --drafter mtp; off")
      ->type_name("METHOD");
  flags->common.add_drafting_to(*command, d.speculate_budget);
  command
      ->add_option("--speculate-tokens", d.speculate_tokens,
                   "One after the other, at most; 0: as many as the method proposes")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--speculate-top-k", d.speculate_top_k,
                   "dflash_ddtree: tokens that are looked at for each place")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--speculate-temperature", d.speculate_temperature,
                   "dflash_ddtree: divides the drafter's logits; for the tree's shape alone")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--speculate-chain-seed", d.speculate_chain_seed,
                      "dflash_ddtree: true: the likeliest chain comes first (default: as needed)");
  command->add_flag("--ignore-eos", d.ignore_eos, "Do not stop at end-of-sequence tokens");
  command
      ->add_option("--save", flags->save,
                   "Afterwards, save the branches (tokens, K and V, random streams) there")
      ->type_name("FILE");
  auto* resume = command
                     ->add_option("--resume", flags->resume,
                                  "Go on with the branches that --save left there, instead of a "
                                  "prompt; their seed goes on, too")
                     ->type_name("FILE");
  for (const char* flag : {"--prompt", "--prompt-ids", "--messages", "--n"}) {
    resume->excludes(command->get_option(flag));
  }
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
