#include "tree_machine.h"

#include <sstream>

#include "core/rng.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "step/stepper.h"

namespace dendrite::bench {
namespace {

std::string joined(std::string line, std::span<const Token> tokens) {
  for (const Token token : tokens) line += ' ' + std::to_string(token);
  return line;
}

}  // namespace

const char* name_of(Sharing sharing) {
  switch (sharing) {
    case Sharing::kTree:
      return "tree";
    case Sharing::kRadix:
      return "radix";
    case Sharing::kBlock:
      return "block";
    case Sharing::kReprefill:
      return "reprefill";
  }
  return "";
}

OwnMachine::~OwnMachine() {
  core_of(engine_)->stepper->share_reads(true);
}

TreeMachine::Node OwnMachine::begin(std::span<const Token> prompt) {
  core_of(engine_)->stepper->share_reads(sharing_ == Sharing::kTree);
  nodes_.clear();
  digest_ = 0;
  session_.emplace(engine_);
  nodes_.emplace(++next_, session_->prefill(prompt));
  return next_;
}

/// Tokens that a request finds of a path of so many. At least one, as a branch begins with a
/// prompt.
std::int64_t OwnMachine::found_of(std::int64_t length) const {
  if (sharing_ == Sharing::kReprefill) return 1;
  const std::int64_t unit = sharing_ == Sharing::kBlock ? engine_.info().page_tokens : 1;
  return std::max<std::int64_t>(1, (length - 1) / unit * unit);
}

TreeMachine::Node OwnMachine::child(Node parent, std::span<const Token> tokens) {
  Branch& from = nodes_.at(parent);
  Branch child;
  if (sharing_ == Sharing::kTree) {
    child = from.fork();
  } else {
    const std::int64_t found = found_of(from.length());
    const std::vector<Token> path = from.tokens();
    child = from.at(found);
    child.append(std::span(path).subspan(static_cast<std::size_t>(found)));
  }
  child.append(tokens);
  nodes_.emplace(++next_, std::move(child));
  return next_;
}

std::vector<Token> OwnMachine::generate(std::span<const Node> nodes, std::int64_t tokens,
                                        double temperature) {
  std::vector<Branch> branches;
  for (const Node node : nodes) branches.push_back(std::move(nodes_.at(node)));
  DecodeParams params;
  params.max_tokens = tokens;
  params.temperature = temperature;
  params.ignore_eos = true;
  const auto decode = [&](const DecodeParams& with) { return session_->decode(branches, with); };
  std::vector<Token> last;
  for (const Generation& generation : mode_ ? mode_->with(params, decode) : decode(params)) {
    if (std::ssize(generation.ids) < tokens) {
      throw Error("KV pages ran out after " + std::to_string(generation.ids.size()) + " of " +
                  std::to_string(tokens) + " tokens; expected a larger --kv-tokens");
    }
    last.push_back(generation.ids.back());
    for (const Token token : generation.ids) {
      digest_ = philox_u64(digest_, static_cast<std::uint64_t>(token), 0);
    }
  }
  if (record_ != nullptr) {
    for (const Branch& branch : branches) record_->add(branch);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes_.at(nodes[i]) = std::move(branches[i]);
  return last;
}

TreeMachine::Node PeerMachine::begin(std::span<const Token> prompt) {
  return std::stoll(peer_.ask(joined("begin", prompt)));
}

TreeMachine::Node PeerMachine::child(Node parent, std::span<const Token> tokens) {
  return std::stoll(peer_.ask(joined("child " + std::to_string(parent), tokens)));
}

std::vector<Token> PeerMachine::generate(std::span<const Node> nodes, std::int64_t tokens,
                                         double temperature) {
  std::string line = "generate " + std::to_string(tokens) + " " + std::to_string(temperature);
  for (const Node node : nodes) line += ' ' + std::to_string(node);
  std::istringstream answer(peer_.ask(line));
  std::vector<Token> last;
  for (Token token = 0; answer >> token;) last.push_back(token);
  if (last.size() != nodes.size()) {
    throw Error("peer: " + std::to_string(last.size()) + " tokens; expected " +
                std::to_string(nodes.size()));
  }
  return last;
}

void PeerMachine::drop(Node node) {
  peer_.ask("drop " + std::to_string(node));
}

}  // namespace dendrite::bench
