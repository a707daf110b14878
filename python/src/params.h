#pragma once

#include <dendrite/dendrite.h>

#include "gil.h"

namespace dendrite::python {

/// DecodeParams without callables: what dendrite.DecodeParams keeps, made once.
struct NativeParams {
  DecodeParams params;
};

/// The functions of one decode call.
struct DecodeCallables {
  Callable on_token{nb::none()};
  Callable on_step{nb::none()};
  Callable enough{nb::none()};
};

/// `params` with these. Each is called with the GIL.
DecodeParams with_callables(const DecodeParams& params, const DecodeCallables& callables);

}  // namespace dendrite::python
