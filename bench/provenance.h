#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dendrite::bench {

/// The machine, as bench/peers/vllm/run.py tells it, too: {"gpu", "driver" (empty without one),
/// "cpu", "cores", "id"}. The id tells machines of a kind apart without naming them: the start of
/// the GPU's UUID, or without a GPU of the kernel's boot id.
nlohmann::ordered_json machine();

/// How hot and fast it is now, for what speed depends on: {"sm_mhz", "celsius", "throttled" (the
/// driver's mask of reasons), "gpu_mib" (in use)} where there is a GPU, {"cpu_mhz"} (the mean of
/// its cores) where the system tells, {"peak_mib"}: the most memory of the host that this process
/// had.
nlohmann::ordered_json conditions();

/// What this process was started with, without the folder of the program, `--json FILE` and the
/// working directory.
std::string command_line();

/// Like 2026-11-22T14:03:59Z.
std::string utc_now();

}  // namespace dendrite::bench
