#pragma once

#include <dendrite/dendrite.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Arguments of public calls. What does not fit is a TypeError in Python's words, which names the
// argument, what was got and what was expected: "at: length: got a str; expected an int". (What
// nanobind says of types lists signatures; a function whose arguments are checked here takes them
// as handles.)
namespace dendrite::python {

namespace nb = nanobind;

/// TypeError: "judge: got a NoneType; expected ..."
[[noreturn]] void fail_type(const std::string& what, nb::handle got, const std::string& expected);

/// An int, or what stands for one (numpy's). Throws OverflowError beyond what the type holds.
std::int64_t to_int(nb::handle value, const char* what);
/// The same, of what C++ counts with less.
int to_small_int(nb::handle value, const char* what);
/// The same for what only grows: seeds and streams. None where `optional`.
std::uint64_t to_unsigned(nb::handle value, const char* what);
std::optional<std::uint64_t> to_optional_unsigned(nb::handle value, const char* what);
/// A float, an int, or what stands for one.
double to_number(nb::handle value, const char* what);
bool to_bool(nb::handle value, const char* what);
std::string to_text(nb::handle value, const char* what);
/// A sequence of str that is no str itself.
std::vector<std::string> to_texts(nb::handle value, const char* what);
/// What `for` takes.
nb::object items_of(nb::handle value, const std::string& what, const std::string& expected);

/// A sequence or an array of ids. `what`: as errors call it.
std::vector<Token> to_tokens(nb::handle ids, const char* what);

}  // namespace dendrite::python
