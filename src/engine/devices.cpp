#include "engine/devices.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "backend/most_ranks.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

Devices one_of(const std::string& device) {
  if (device == "cpu") return {false, {0}};
  if (device == "cuda") return {true, {0}};
  constexpr std::string_view kPrefix = "cuda:";
  if (device.starts_with(kPrefix)) {
    std::uint16_t index = 0;
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + kPrefix.size(), end, index);
    if (error == std::errc() && stop == end) return {true, {index}};
  }
  throw Error("device is \"" + device + "\"; expected cpu, cuda, or cuda:N for the GPU of index N");
}

}  // namespace

Devices devices_of(const EngineOptions& options) {
  Devices devices = one_of(options.device);
  if (options.devices.empty()) return devices;
  if (options.device.find(':') != std::string::npos) {
    throw Error("device is " + options.device +
                " and devices are given, too; expected device cuda with them");
  }
  if (options.devices.size() > kMostRanks) {
    throw Error("devices are " + std::to_string(options.devices.size()) + "; expected at most " +
                std::to_string(kMostRanks));
  }
  for (const int index : options.devices) {
    if (index < 0 || (!devices.gpu && index > 0)) {
      throw Error("devices have " + std::to_string(index) + "; expected indices of " +
                  (devices.gpu ? "GPUs, from 0 on" : "device cpu, which is 0 alone"));
    }
  }
  devices.indices = options.devices;
  return devices;
}

}  // namespace dendrite
