#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "quant/plain_format.h"

namespace dendrite {

const PlainFormat& f32_format();
const PlainFormat& f16_format();
const PlainFormat& bf16_format();
const Format& mxfp8_format();
const Format& fp8_format();
const Format& int8_format();
const Format& nvfp4_packed_format();
const Format& nvfp4_modelopt_format();
const Format& mxfp4_packed_format();
const Format& int4_packed_format();
const Format& awq_format();
const Format& gptq_format();
const Format& q4_0_format();
const Format& q4_1_format();
const Format& q5_0_format();
const Format& q5_1_format();
const Format& q8_0_format();
const Format& q2_k_format();
const Format& q3_k_format();
const Format& q4_k_format();
const Format& q5_k_format();
const Format& q6_k_format();
const Format& iq4_nl_format();
const Format& iq4_xs_format();
const Format& mxfp4_format();
const Format& nvfp4_format();

/// All formats there are. A matrix is of the first one that finds it.
inline std::span<const Format* const> formats() {
  static const Format* const all[] = {&f32_format(),          &f16_format(),
                                      &bf16_format(),         &mxfp8_format(),
                                      &fp8_format(),          &int8_format(),
                                      &nvfp4_packed_format(), &nvfp4_modelopt_format(),
                                      &mxfp4_packed_format(), &int4_packed_format(),
                                      &awq_format(),          &gptq_format(),
                                      &q4_0_format(),         &q4_1_format(),
                                      &q5_0_format(),         &q5_1_format(),
                                      &q8_0_format(),         &q2_k_format(),
                                      &q3_k_format(),         &q4_k_format(),
                                      &q5_k_format(),         &q6_k_format(),
                                      &iq4_nl_format(),       &iq4_xs_format(),
                                      &mxfp4_format(),        &nvfp4_format()};
  return all;
}

/// The plain format of matrices of these numbers.
const PlainFormat& plain_format(DType number);

/// The first format whose data tensors are of this one's type. Throws Error naming the tensor, its
/// file, its type and the types there are.
const Format& require_format(const TensorInfo& tensor);
[[noreturn]] void throw_stored_type(const TensorInfo& tensor);
/// The same among plain formats.
const PlainFormat& require_plain(const TensorInfo& tensor);

/// All values of a tensor that is in a plain format, widened. Throws Error as require_plain does.
std::vector<float> numbers_of(const TensorInfo& tensor);

/// The matrix [rows, cols] of a source by its name, in whatever format it is stored; none where no
/// format finds it. Throws Error where it is broken, see Format::find.
std::optional<StoredMatrix> find_matrix(const TensorSource& source, std::string_view name,
                                        std::int64_t rows, std::int64_t cols,
                                        std::span<const Format* const> among = formats());

}  // namespace dendrite
