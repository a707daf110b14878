#include "arguments.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>

namespace dendrite::python {
namespace {

std::string type_of(nb::handle value) {
  return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

/// Of an array's or a tensor's elements: "int32", "float64", "torch.int64"; "" for what has none.
std::string dtype_of(nb::handle value) {
  const nb::object dtype = nb::getattr(value, "dtype", nb::none());
  return dtype.is_none() ? "" : nb::cast<std::string>(nb::str(dtype));
}

/// The int that a value stands for; none where it is something else.
nb::object index_of(nb::handle value) {
  if (PyLong_Check(value.ptr())) return nb::borrow(value);
  PyObject* index = PyIndex_Check(value.ptr()) ? PyNumber_Index(value.ptr()) : nullptr;
  if (index == nullptr) PyErr_Clear();
  return nb::steal(index);
}

[[noreturn]] void fail_range(const char* what, nb::handle value, const std::string& expected) {
  const std::string got = nb::cast<std::string>(nb::str(value));
  PyErr_Clear();
  PyErr_SetString(PyExc_OverflowError,
                  (std::string(what) + " is " + got + "; expected " + expected).c_str());
  throw nb::python_error();
}

std::vector<Token> to_ids(nb::handle ids, const char* what) {
  constexpr const char* kExpected = "token ids: a sequence of ints, or an array of them";
  std::vector<Token> tokens;
  for (const nb::handle id : items_of(ids, what, kExpected)) {
    const nb::object index = index_of(id);
    if (!index.is_valid()) {
      fail_type(std::string(what) + "[" + std::to_string(tokens.size()) + "]", id,
                "a token id, an int");
    }
    // (One that is too large for its type is outside of every vocabulary, which is told later.)
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
    const long shown = overflow == 0 ? value : overflow > 0 ? INT32_MAX : INT32_MIN;
    tokens.push_back(static_cast<Token>(std::clamp<long>(shown, INT32_MIN, INT32_MAX)));
  }
  return tokens;
}

}  // namespace

void fail_type(const std::string& what, nb::handle got, const std::string& expected) {
  const std::string type = type_of(got);
  const char* article =
      std::string_view("aeiouAEIOU").find(type[0]) == std::string::npos ? "a" : "an";
  const std::string is = got.is_none() ? "None" : std::string(article) + " " + type;
  throw nb::type_error((what + ": got " + is + "; expected " + expected).c_str());
}

std::int64_t to_int(nb::handle value, const char* what) {
  const nb::object index = index_of(value);
  if (!index.is_valid()) fail_type(what, value, "an int");
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred()) fail_range(what, value, "at most 2**63 - 1");
  return number;
}

int to_small_int(nb::handle value, const char* what) {
  const std::int64_t number = to_int(value, what);
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  if (number < -kMost || number > kMost) fail_range(what, value, "at most 2**31 - 1");
  return static_cast<int>(number);
}

std::uint64_t to_unsigned(nb::handle value, const char* what) {
  const nb::object index = index_of(value);
  if (!index.is_valid()) fail_type(what, value, "an int");
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    fail_range(what, value, "0 to 2**64 - 1");
  }
  return number;
}

std::optional<std::uint64_t> to_optional_unsigned(nb::handle value, const char* what) {
  if (value.is_none()) return std::nullopt;
  return to_unsigned(value, what);
}

double to_number(nb::handle value, const char* what) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    fail_type(what, value, "a number");
  }
  return number;
}

bool to_bool(nb::handle value, const char* what) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (dtype_of(value) != "bool") fail_type(what, value, "a bool");  // (else numpy's)
  return nb::cast<bool>(nb::bool_(nb::borrow(value)));
}

std::string to_text(nb::handle value, const char* what) {
  if (!nb::isinstance<nb::str>(value)) fail_type(what, value, "a str");
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::vector<std::string> to_texts(nb::handle value, const char* what) {
  if (nb::isinstance<nb::str>(value)) fail_type(what, value, "a sequence of str");
  std::vector<std::string> texts;
  for (const nb::handle text : items_of(value, what, "a sequence of str")) {
    texts.push_back(
        to_text(text, (std::string(what) + "[" + std::to_string(texts.size()) + "]").c_str()));
  }
  return texts;
}

nb::object items_of(nb::handle value, const std::string& what, const std::string& expected) {
  PyObject* iterator = PyObject_GetIter(value.ptr());
  if (iterator == nullptr) {
    PyErr_Clear();
    fail_type(what, value, expected);
  }
  return nb::steal(iterator);
}

std::vector<Token> to_tokens(nb::handle ids, const char* what) {
  if (nb::isinstance<nb::list>(ids) || nb::isinstance<nb::tuple>(ids)) return to_ids(ids, what);
  constexpr const char* kExpected = "token ids: a sequence of ints, or an array of them";
  if (nb::isinstance<nb::str>(ids) || PyBytes_Check(ids.ptr()) || PyByteArray_Check(ids.ptr()) ||
      nb::isinstance<nb::dict>(ids)) {
    fail_type(what, ids, kExpected);
  }
  const std::string dtype = dtype_of(ids);
  if (dtype.empty()) return to_ids(ids, what);
  const bool is_ints = dtype.find("int") != std::string::npos;
  const nb::object dimensions = nb::getattr(ids, "ndim", nb::none());
  if (!is_ints || (!dimensions.is_none() && nb::cast<int>(dimensions) != 1)) {
    const std::string shape = nb::cast<std::string>(nb::str(nb::getattr(ids, "shape", nb::none())));
    throw nb::type_error((std::string(what) + ": got an array of " + dtype + ", shape " + shape +
                          "; expected token ids: ints in one dimension")
                             .c_str());
  }
  nb::ndarray<const Token, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (dtype.find("int32") != std::string::npos && dtype.find("uint") == std::string::npos &&
      nb::try_cast(ids, array)) {
    return {array.data(), array.data() + array.size()};
  }
  return to_ids(ids.attr("tolist")(), what);
}

}  // namespace dendrite::python
