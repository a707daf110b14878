#include "draft_modes.h"

#include <algorithm>

#include "engine/branches/internals.h"

namespace dendrite::bench {
namespace {

constexpr const char* kOracleChain = "oracle-chain";
constexpr const char* kOracleTree = "oracle-tree";

std::string check_mode(const std::string& name) {
  if (name == kOracleChain || name == kOracleTree) return "";
  try {
    if (speculate_of(name) != Speculate::kOff) return "";
  } catch (const Error&) {
  }
  return "\"" + name +
         "\"; expected oracle-chain, oracle-tree, or what DecodeParams::speculate may be but off";
}

}  // namespace

DraftMode::DraftMode(const Engine& engine, const KnownTexts& texts, const OracleOptions& oracle,
                     std::int64_t budget, bool is_free)
    : name_(oracle.tree ? kOracleTree : kOracleChain),
      speculate_(Speculate::kDraftModel),
      budget_(budget),
      is_free_(is_free),
      engine_(engine),
      oracle_(std::make_unique<OracleDrafter>(*core_of(engine), texts, oracle)),
      told_(oracle) {}

Json DraftMode::params() const {
  Json params{{"mode", name_}};
  if (oracle_ != nullptr) params["right"] = told_.first;
  if (told_.claims > 0) params["claims"] = told_.claims;
  params["budget"] = budget_;
  if (is_free_) params["free"] = true;
  return params;
}

bool DraftMode::is_chain_of(const DraftMode& tree) const {
  if (is_oracle()) {
    return tree.is_oracle() && !told_.tree && tree.told_.tree && told_.first == tree.told_.first;
  }
  return speculate_ == Speculate::kDFlash && tree.speculate_ == Speculate::kDFlashTree;
}

void DraftOptions::add_to(CLI::App& app, CommonOptions& common) {
  app.add_option("--modes", modes,
                 "Who drafts, in turns with plain decoding: suffix (what the session has said), "
                 "draft_model (--draft-model), dflash and dflash_ddtree (--drafter; chains and "
                 "trees), mtp (--drafter mtp), oracle-chain and oracle-tree (a drafter of set "
                 "acceptance, --oracle). "
                 "Default: all that there are")
      ->delimiter(',')
      ->check(check_mode);
  app.add_option("--draft-model", common.engine.draft_model, "A smaller model, which drafts")
      ->type_name("DIR_OR_ID");
  app.add_option("--drafter", common.engine.drafter,
                 "A block drafter of the model (DFlash), or mtp: the model's own head")
      ->type_name("DIR_OR_ID");
  app.add_option("--budget", budget, "Drafted tokens a branch and step")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--tree-budget", tree_budget, "... where trees are drafted; 0: the same")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--free", is_free,
               "Draft whatever time it takes: what the engine's own measure of it keeps from");
  app.add_flag("--cpu-clock", cpu_clock,
               "Time the thread's own work (--threads 1): others on the machine disturb less. What "
               "the engine goes by is its own clock");
  app.add_option(
         "--oracle", acceptances,
         "Chances that an oracle's first choice for a place is what comes, where all before "
         "it were right; a curve's points")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--oracle-beside", oracle.beside,
                 "Chance that one of its other choices is, where the first is not")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option(
         "--oracle-claims", oracle.claims,
         "Chance that it says its first choice has, whatever it has: a drafter that is sure "
         "and wrong; 0: the truth")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--oracle-depth", oracle.depth, "Tokens one after the other that it drafts")
      ->check(CLI::Range(std::size_t{1}, kDraftDepth))
      ->capture_default_str();
  app.add_option("--oracle-ms", oracle.ms,
                 "Time that its pass takes, for all branches together; published block drafters "
                 "take about 0.11 of a step of one branch")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::vector<DraftMode> DraftOptions::make(const Engine& engine, const CommonOptions& common,
                                          const KnownTexts& texts) const {
  if (cpu_clock && engine.info().threads != 1) {
    throw Error("--cpu-clock with " + std::to_string(engine.info().threads) +
                " threads; expected --threads 1");
  }
  std::vector<std::string> names = modes;
  if (names.empty()) {
    names = {"suffix", kOracleChain, kOracleTree};
    if (!common.engine.draft_model.empty()) names.emplace_back("draft_model");
    if (common.engine.drafter == "mtp") {
      names.emplace_back("mtp");
    } else if (!common.engine.drafter.empty()) {
      names.insert(names.end(), {"dflash", "dflash_ddtree"});
    }
  }
  const std::int64_t for_trees = tree_budget > 0 ? tree_budget : budget;
  std::vector<DraftMode> made;
  for (const std::string& name : names) {
    if (name != kOracleChain && name != kOracleTree) {
      const Speculate speculate = speculate_of(name);
      made.emplace_back(speculate, speculate == Speculate::kDFlashTree ? for_trees : budget,
                        is_free);
      continue;
    }
    OracleOptions told = oracle;
    told.tree = name == kOracleTree;
    for (const double first : acceptances) {
      told.first = first;
      made.emplace_back(engine, texts, told, told.tree ? for_trees : budget, is_free);
    }
  }
  return made;
}

}  // namespace dendrite::bench
