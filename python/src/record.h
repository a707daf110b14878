#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace dendrite::python {

/// Binds a record field by field, and lists their names for asdict(), repr and pickle.
template <typename T>
class Record {
 public:
  Record(nb::module_& module, const char* name, const char* doc) : type_(module, name, doc) {}

  template <typename V>
  Record& field(const char* name, V T::*member, const char* doc) {
    type_.def_ro(name, member, doc);
    names_.append(name);
    return stored(
        name, [member](const T& self) { return nb::cast(self.*member); },
        [member](T& self, nb::handle value) { self.*member = nb::cast<V>(value); });
  }

  /// A member that pickles know, and that is a field under no or another form.
  template <typename Get, typename Set>
  Record& stored(const char* name, Get&& get, Set&& set) {
    stored_.push_back({name, std::forward<Get>(get), std::forward<Set>(set)});
    return *this;
  }

  template <typename Function, typename... Extra>
  Record& property(const char* name, Function&& function, const char* doc, const Extra&... extra) {
    type_.def_prop_ro(name, std::forward<Function>(function), doc, extra...);
    names_.append(name);
    return *this;
  }

  void finish() {
    type_.attr("_fields") = nb::tuple(names_);
    type_.def(
        "asdict",
        [](nb::handle self) {
          nb::dict all;
          for (const nb::handle name : self.attr("_fields")) {
            const nb::object value = nb::getattr(self, name);
            all[name] = nb::hasattr(value, "asdict") ? value.attr("asdict")() : value;
          }
          return all;
        },
        "All fields, in their order; records in them as dictionaries, too.",
        nb::sig("def asdict(self) -> dict[str, Any]"));
    type_.def("__repr__", [](nb::handle self) {
      std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
      const char* separator = "";
      for (const nb::handle name : self.attr("_fields")) {
        text += separator + nb::cast<std::string>(name) + "=" +
                nb::cast<std::string>(nb::repr(nb::getattr(self, name)));
        separator = ", ";
      }
      return text + ")";
    });
    type_.def(
        "__getstate__",
        [stored = stored_](const T& self) {
          nb::dict state;
          for (const Stored& each : stored) state[each.name] = each.get(self);
          return state;
        },
        nb::sig("def __getstate__(self) -> dict[str, Any]"));
    type_.def(
        "__setstate__",
        [stored = stored_](T& self, const nb::dict& state) {
          new (&self) T{};
          for (const Stored& each : stored) each.set(self, state[each.name]);
        },
        nb::arg("state"), nb::sig("def __setstate__(self, state: dict[str, Any]) -> None"));
  }

  nb::class_<T>& type() { return type_; }

 private:
  struct Stored {
    const char* name;
    std::function<nb::object(const T&)> get;
    std::function<void(T&, nb::handle)> set;
  };

  nb::class_<T> type_;
  nb::list names_;
  std::vector<Stored> stored_;
};

/// For Record::stored: a text, whatever its bytes.
template <typename T>
auto text_getter(std::string T::*member) {
  return [member](const T& self) -> nb::object {
    return nb::bytes((self.*member).data(), (self.*member).size());
  };
}
template <typename T>
auto text_setter(std::string T::*member) {
  return [member](T& self, nb::handle value) {
    const auto bytes = nb::cast<nb::bytes>(value);
    self.*member = std::string(bytes.c_str(), bytes.size());
  };
}

/// For Record::stored: an enumerator, as its number.
template <typename T, typename E>
auto enum_getter(E T::*member) {
  return [member](const T& self) -> nb::object { return nb::int_(static_cast<int>(self.*member)); };
}
template <typename T, typename E>
auto enum_setter(E T::*member) {
  return
      [member](T& self, nb::handle value) { self.*member = static_cast<E>(nb::cast<int>(value)); };
}

}  // namespace dendrite::python
