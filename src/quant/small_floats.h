#pragma once

#include "quant/format.h"

// Floats of a byte, as scales that lie in a tensor beside.
namespace dendrite {

const Format& e4m3_scales();
/// E8M0: code e is 2^(e - 127), 255 is NaN. Files call its type U8, too.
const Format& e8m0_scales();
bool is_e8m0(const TensorInfo& tensor);

}  // namespace dendrite
