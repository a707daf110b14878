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

/// A branch's handle is empty: it was moved from, pruned, or abandoned by its call.
class BranchEmpty : public Error {
 public:
  using Error::Error;
};

/// A call that has not ended has the branch; or what would wait was called in a callback.
class BranchBusy : public Error {
 public:
  using Error::Error;
};

/// A Constraint that cannot be compiled: no such grammar, a part that is not supported, nothing
/// that could match it, too large; or one whose text cannot be followed by this model's tokens.
class ConstraintError : public Error {
 public:
  using Error::Error;
};

}  // namespace dendrite
