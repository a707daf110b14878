#pragma once

#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/tensor_info.h"

namespace dendrite::test {

/// Tensors of a file that there is not. Their bytes are the caller's.
class Tensors final : public TensorSource {
 public:
  void add(const std::string& name, std::string_view type, std::vector<std::int64_t> shape,
           const std::vector<std::byte>& bytes) {
    tensors_[name] = {name, type, std::move(shape), bytes.data(), std::ssize(bytes), "x.file"};
  }
  const TensorInfo* find(std::string_view name) const override {
    const auto it = tensors_.find(std::string(name));
    return it == tensors_.end() ? nullptr : &it->second;
  }

 private:
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace dendrite::test
