#pragma once

#include <stdexcept>

namespace dendrite {

/// What the caller cannot mend where it happens: a bad file, a wrong shape, an unsupported
/// setting. The text says what was got and what was expected, and names the file, key or flag.
/// What is normal in a search (no free page, an exhausted budget) is a status, never an Error.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace dendrite
