#pragma once

#include "io/json_file.h"

namespace dendrite {

/// Looks at what config.json ("quantization_config", "compression_config") and hf_quant_config.json
/// say of the weights. How each matrix is stored its tensors tell (src/quant); here is refused what
/// they can't tell and would be computed wrongly. Activations are never quantised: what these files
/// say of them, and of K and V, is of no effect. Throws Error naming file and key.
void check_quantization(const JsonObject& config);

/// The same of hf_quant_config.json.
void check_hf_quant_config(const JsonObject& root);

}  // namespace dendrite
