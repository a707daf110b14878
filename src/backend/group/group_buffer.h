#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/group/places.h"
#include "backend/tensor.h"

namespace dendrite::group {

/// One on every device, of one size. Says where they are while it lives.
class GroupBuffer final : public Buffer {
 public:
  GroupBuffer(std::vector<std::unique_ptr<Buffer>> of_devices, std::shared_ptr<Places> places)
      : of_devices_(std::move(of_devices)), places_(std::move(places)) {
    std::vector<float*> bases;
    for (const auto& buffer : of_devices_) bases.push_back(buffer->data());
    places_->add(std::move(bases), count());
  }
  ~GroupBuffer() override {
    if (count() > 0) places_->remove(data());
  }
  GroupBuffer(const GroupBuffer&) = delete;
  GroupBuffer& operator=(const GroupBuffer&) = delete;

  float* data() override { return of_devices_.front()->data(); }
  std::int64_t count() const override { return of_devices_.front()->count(); }

 private:
  std::vector<std::unique_ptr<Buffer>> of_devices_;
  std::shared_ptr<Places> places_;
};

}  // namespace dendrite::group
