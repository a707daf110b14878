#include "peer.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

namespace dendrite::bench {

Peer::Peer(const std::string& command) : command_(command) {
  int in[2];
  int out[2];
  // Closed in what later peers execute, or the end of input would not end this one.
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
    throw Error("peer: no pipe could be made");
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended shows as a missing answer
  child_ = fork();
  if (child_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  to_ = fdopen(in[1], "w");
  from_ = fdopen(out[0], "r");
  name_ = ask("hello");
}

Peer::~Peer() {
  if (to_ != nullptr) std::fclose(to_);  // end of input ends it
  if (from_ != nullptr) std::fclose(from_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
}

std::string Peer::ask(const std::string& line) {
  tell(line);
  return answer();
}

void Peer::tell(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  told_ = line.substr(0, 20);
}

std::string Peer::answer() {
  char* buffer = nullptr;
  std::size_t capacity = 0;
  const ssize_t size = getline(&buffer, &capacity, from_);
  std::string answer(
      buffer != nullptr && size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : "");
  std::free(buffer);
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  if (answer.empty()) {
    throw Error("peer: no answer to \"" + told_ + "\" from: " + command_);
  }
  return answer;
}

double Peer::prefill(std::span<const Token> tokens) {
  std::string line = "prefill";
  for (const Token token : tokens) line += ' ' + std::to_string(token);
  return std::strtod(ask(line).c_str(), nullptr);
}

Peer::Steps Peer::decode(std::int64_t branches, std::int64_t steps) {
  std::istringstream answer(
      ask("decode " + std::to_string(branches) + " " + std::to_string(steps)));
  Steps out;
  std::string word;
  while (answer >> word && word != "|") out.ms.push_back(std::strtod(word.c_str(), nullptr));
  for (Token token = 0; answer >> token;) out.tokens.push_back(token);
  if (static_cast<std::int64_t>(out.ms.size()) != steps) {
    throw Error("peer: " + std::to_string(out.ms.size()) + " step times; expected " +
                std::to_string(steps));
  }
  return out;
}

Peer::Constrained Peer::constrain(std::int64_t branches, std::int64_t tokens,
                                  const std::string& grammar) {
  std::istringstream answer(
      ask("constrain " + std::to_string(branches) + " " + std::to_string(tokens) + " " + grammar));
  Constrained out;
  answer >> out.ms;
  for (double us = 0; answer >> us;) out.mask_us.push_back(us);
  return out;
}

}  // namespace dendrite::bench
