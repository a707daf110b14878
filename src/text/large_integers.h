#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace dendrite {

/// Carries integers beyond 64 bits through a JSON library that would make floats of them: as
/// strings with a mark in front that none of the texts has.
class LargeIntegers {
 public:
  /// `texts`: all that hide() will be given.
  explicit LargeIntegers(std::initializer_list<std::string_view> texts);
  /// JSON text with each such integer as a marked string. What is no JSON stays so.
  std::string hide(std::string_view json) const;
  /// The marked strings of JSON text, as the integers that they were.
  std::string show(std::string_view json) const;

 private:
  std::string mark_;
};

}  // namespace dendrite
