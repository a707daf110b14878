#include "fuzz/program.h"

#include <charconv>
#include <iomanip>
#include <sstream>

#include "dendrite/error.h"
#include "fuzz/operation_table.h"

namespace dendrite::fuzz {
namespace {

std::size_t weighted_operation(std::uint64_t bits) {
  std::int64_t total = 0;
  for (const Operation& operation : operations()) total += operation.weight;
  auto place = static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(total));
  std::size_t i = 0;
  while (place >= operations()[i].weight) place -= operations()[i++].weight;
  return i;
}

std::size_t row_of(const std::string& name) {
  std::size_t row = 0;
  while (row < operations().size() && name != operations()[row].name) ++row;
  return row;
}

template <typename T>
T number(const std::string& text, int base, const std::string& where) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc{} || stop != end) {
    throw Error(where + ": \"" + text + "\" is no number of base " + std::to_string(base));
  }
  return value;
}

void read_setting(std::istringstream& words, Setting& setting, const std::string& where) {
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "seed") {
      setting.seed = number<std::uint64_t>(value, 10, where);
    } else if (name == "page_tokens") {
      setting.page_tokens = number<int>(value, 10, where);
    } else if (name == "pool_pages") {
      setting.pool_pages = number<std::int64_t>(value, 10, where);
    } else if (name == "dtype") {
      setting.dtype = value;
    } else if (name == "kv_dtype") {
      setting.kv_dtype = value;
    } else if (name == "kernels") {
      setting.kernels = value;
    } else if (name == "threads") {
      setting.threads = number<int>(value, 10, where);
    } else if (name == "prefix_index") {
      setting.prefix_index = number<int>(value, 10, where) != 0;
    } else if (name == "step_rows") {
      setting.step_rows = number<std::int64_t>(value, 10, where);
    } else {
      throw Error(where + ": no setting is called \"" + name + "\"");
    }
  }
}

Op read_op(const std::string& name, std::istringstream& words, const std::string& where) {
  Op op;
  op.operation = row_of(name);
  if (op.operation == operations().size()) {
    throw Error(where + ": no operation is called \"" + name + "\"");
  }
  op.listed = true;
  for (std::string word; words >> word;) {
    if (word.front() == '@') {
      op.key = number<std::uint64_t>(word.substr(1), 16, where);
      op.listed = false;
    } else {
      op.given.push_back(number<std::uint32_t>(word, 10, where));
    }
  }
  return op;
}

}  // namespace

Program make_program(std::uint64_t seed, std::uint64_t number, std::int64_t ops, const Fixed& fixed,
                     std::span<const std::string> kernels) {
  Program program;
  const std::uint64_t key = philox_u64(seed, number, 0);
  Tape tape;
  Draws draws(philox_u64(key, 0, 1), tape);
  Setting& setting = program.setting;
  setting.seed = static_cast<std::uint64_t>(draws.below(1 << 20));
  setting.page_tokens = 8 << draws.below(3);
  // From pools that are nearly always full to some that rarely are.
  constexpr std::int64_t kPoolTokens[] = {320, 640, 640, 1280, 2560};
  setting.pool_pages = kPoolTokens[draws.below(std::ssize(kPoolTokens))] / setting.page_tokens;
  const char* const kTypes[] = {"f32", "bf16", "f16"};
  setting.dtype = kTypes[draws.below(std::ssize(kTypes))];
  if (!kernels.empty()) {
    setting.kernels = kernels[static_cast<std::size_t>(draws.below(std::ssize(kernels)))];
  }
  setting.threads = static_cast<int>(draws.in(1, 2));
  setting.prefix_index = !draws.one_in(5);
  constexpr std::int64_t kStepRows[] = {0, 0, 0, 40, 5};
  setting.step_rows = kStepRows[draws.below(std::ssize(kStepRows))];
  if (draws.one_in(4)) setting.kv_dtype = "fp8";
  if (fixed.page_tokens > 0) setting.page_tokens = fixed.page_tokens;
  if (fixed.pool_pages > 0) setting.pool_pages = fixed.pool_pages;
  if (!fixed.dtype.empty()) setting.dtype = fixed.dtype;
  if (!fixed.kv_dtype.empty()) setting.kv_dtype = fixed.kv_dtype;
  if (!fixed.kernels.empty()) setting.kernels = fixed.kernels;
  if (fixed.threads > 0) setting.threads = fixed.threads;
  for (std::int64_t i = 0; i < ops; ++i) {
    const auto place = static_cast<std::uint64_t>(i);
    Op op;
    const bool often = i % 2 == 1 && !fixed.often.empty();
    op.operation = often ? row_of(fixed.often) : weighted_operation(philox_u64(key, place, 2));
    op.key = philox_u64(key, place, 3) >> 32;
    program.ops.push_back(std::move(op));
  }
  return program;
}

std::string to_text(const Op& op) {
  std::ostringstream out;
  out << operations()[op.operation].name;
  if (op.listed) {
    for (const std::uint32_t value : op.given) out << ' ' << value;
  } else {
    out << " @" << std::hex << op.key;
  }
  return out.str();
}

std::string to_text(const Program& program) {
  const Setting& s = program.setting;
  std::ostringstream out;
  out << "setting seed=" << s.seed << " page_tokens=" << s.page_tokens
      << " pool_pages=" << s.pool_pages << " dtype=" << s.dtype;
  if (s.kv_dtype != "auto") out << " kv_dtype=" << s.kv_dtype;
  if (!s.kernels.empty()) out << " kernels=" << s.kernels;
  out << " threads=" << s.threads << " prefix_index=" << (s.prefix_index ? 1 : 0)
      << " step_rows=" << s.step_rows << '\n';
  for (const Op& op : program.ops) out << to_text(op) << '\n';
  return out.str();
}

Program parse_program(const std::string& text, const std::string& file) {
  Program program;
  std::istringstream lines(text);
  int line_number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = file + ":" + std::to_string(++line_number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    if (name == "setting") {
      read_setting(words, program.setting, where);
    } else {
      program.ops.push_back(read_op(name, words, where));
    }
  }
  return program;
}

}  // namespace dendrite::fuzz
