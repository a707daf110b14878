#pragma once

#include "io/json_file.h"

namespace dendrite {

/// Looks at what config.json ("quantization_config", "compression_config") and hf_quant_config.json
/// say of the weights. How each matrix is stored its tensors tell (src/quant); here is refused what
/// they can't tell and would be computed wrongly. What they say of K and V is of no effect, and of
/// activations only what keeps_fp8_inputs() and rounds_block_inputs() ask. Throws Error naming file
/// and key.
void check_quantization(const JsonObject& config);

/// Whether config.json has weights in FP8 and nothing that rounds what they are multiplied with
/// (compressed-tensors, a group without "input_activations").
bool keeps_fp8_inputs(const JsonObject& config);

/// Whether config.json, or hf_quant_config.json, has weights in MXFP8 or NVFP4 and all inputs of
/// such are rounded to the same (compressed-tensors, "input_activations" with the groups of
/// "weights"; Model Optimizer, "MXFP8" or "NVFP4", not "W4A16_NVFP4").
bool rounds_block_inputs(const JsonObject& config);

/// The same of hf_quant_config.json.
void check_hf_quant_config(const JsonObject& root);

}  // namespace dendrite
