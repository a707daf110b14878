#include <iostream>

#include "common.h"

namespace dendrite::cli {
namespace {

struct TokenizeFlags {
  CommonFlags common;
  bool no_special = false;
  bool decode = false;
};

int run(const TokenizeFlags& flags) {
  const Engine engine = flags.common.load(/*weights=*/false);
  const std::string input = read_stdin();
  const std::vector<Token> ids =
      flags.decode ? parse_ids(input, "stdin") : engine.encode(input, !flags.no_special);
  const std::string text = engine.decode(ids);
  if (flags.common.json) {
    print_json({{"ids", ids}, {"text", text}});
  } else if (flags.decode) {
    std::cout << text << std::endl;
  } else {
    for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i > 0 ? " " : "") << ids[i];
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, int& status) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      app.add_subcommand("tokenize", "Token ids of the text on stdin, taken byte for byte");
  flags->common.add_to(*command);
  command->add_flag("--no-special", flags->no_special, "Add no special tokens (BOS and the like)");
  command->add_flag("--decode", flags->decode, "The other way: ids on stdin to text");
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
