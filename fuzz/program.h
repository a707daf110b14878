#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fuzz/draws.h"

namespace dendrite::fuzz {

/// The engine that a program runs on.
struct Setting {
  std::uint64_t seed = 1;  // of the sessions
  int page_tokens = 16;
  std::int64_t pool_pages = 64;
  std::string dtype = "f32";
  std::string kv_dtype = "auto";
  std::string kernels{};  // empty: the best of the machine
  int threads = 1;
  bool prefix_index = true;
  std::int64_t step_rows = 0;  // of a step, at most; 0: what the model takes
};

/// One operation of a program: a row of the table in operation_table.h, and what it decides by.
struct Op {
  std::size_t operation = 0;
  std::uint64_t key = 0;
  std::vector<std::uint32_t> given{};  // draws one by one instead of the key's
  bool listed = false;

  Draws draws(Tape& tape) const { return listed ? Draws(given, tape) : Draws(key, tape); }
};

/// A setting and operations. Any subsequence of a program's operations is a program.
struct Program {
  Setting setting{};
  std::vector<Op> ops{};
};

/// What is fixed for all programs of a run; what is unset differs from program to program.
struct Fixed {
  int page_tokens = 0;
  std::int64_t pool_pages = 0;
  std::string dtype{};
  std::string kv_dtype{};
  std::string kernels{};
  int threads = 0;
  std::string often{};  // an operation that comes as often as all others together
};

/// The `number`-th program of a run, a pure function of its arguments: `kernels` are the paths to
/// choose from.
Program make_program(std::uint64_t seed, std::uint64_t number, std::int64_t ops, const Fixed& fixed,
                     std::span<const std::string> kernels);

/// Lines of text: `setting NAME=VALUE ...`, then an operation a line, `NAME @KEY` or
/// `NAME DRAW DRAW ...`; `#` begins a comment.
std::string to_text(const Program& program);
std::string to_text(const Op& op);
/// Throws Error naming `file` and the line.
Program parse_program(const std::string& text, const std::string& file);

}  // namespace dendrite::fuzz
