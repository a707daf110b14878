#pragma once

#include <sys/types.h>

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"

namespace dendrite::bench {

/// Another engine behind a line protocol, in a process of its own that waits while we measure ours:
///   hello               -> its name, version and build, on one line
///   prefill ID ID ...   -> milliseconds from there to the first token's logits
///   decode B N          -> N step times in ms of B branches on that prompt, then " | " and the
///   tokens
///                          of the first branch
///   constrain B N TEXT  -> milliseconds for N tokens of B branches on that prompt under a grammar
///                          (GBNF with tabs for newlines; none: without), then microseconds of
///                          masks
/// and what tree_machine.h adds.
/// Everything else that it writes goes to stderr.
class Peer {
 public:
  /// `command` is run by the shell. Throws Error when it does not answer.
  explicit Peer(const std::string& command);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  double prefill(std::span<const Token> tokens);

  struct Steps {
    std::vector<double> ms;
    std::vector<Token> tokens;
  };
  Steps decode(std::int64_t branches, std::int64_t steps);

  struct Constrained {
    double ms = 0;
    std::vector<double> mask_us;
  };
  Constrained constrain(std::int64_t branches, std::int64_t tokens, const std::string& grammar);

  /// The answer to one line. Throws Error when there is none.
  std::string ask(const std::string& line);
  /// Its two halves, for peers that work at the same time.
  void tell(const std::string& line);
  std::string answer();

 private:
  std::string command_;
  pid_t child_ = 0;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string told_;  // last, for errors
  std::string name_;
};

}  // namespace dendrite::bench
