#pragma once

#include "quant/format.h"

namespace dendrite {

/// A format of one number a value.
class PlainFormat : public Format {
 public:
  std::optional<DType> number() const override { return number_; }
  /// The inverse of widen: round to nearest even, NaN stays NaN.
  virtual void narrow(std::span<const float> values, std::byte* out) const = 0;

 protected:
  PlainFormat(DType number, std::string_view stored_type)
      : Format(name_of(number), stored_type, 1, size_of(number)), number_(number) {}

 private:
  DType number_;
};

}  // namespace dendrite
