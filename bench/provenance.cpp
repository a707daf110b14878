#include "provenance.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

namespace dendrite::bench {
namespace {

constexpr std::size_t kIdDigits = 8;

/// The first line that a command writes; empty where it fails.
std::string first_line(const char* command) {
  std::FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return "";
  std::array<char, 512> buffer{};
  const bool read = std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr;
  const int status = pclose(pipe);
  std::string line = read && status == 0 ? buffer.data() : "";
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string without(std::string text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
  return text;
}

}  // namespace

nlohmann::ordered_json machine() {
  // "NVIDIA H200, 580.159.04, GPU-01234567-89ab-..."
  std::istringstream gpu(first_line(
      "nvidia-smi --query-gpu=name,driver_version,uuid --format=csv,noheader 2> /dev/null"));
  std::string name, driver, id;
  std::getline(gpu >> std::ws, name, ',');
  std::getline(gpu >> std::ws, driver, ',');
  std::getline(gpu >> std::ws, id);
  if (id.starts_with("GPU-")) id.erase(0, 4);
  if (id.empty()) {
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    std::getline(boot, id);
  }
  return {{"gpu", name},
          {"driver", driver},
          {"cpu", cpu_name()},
          {"cores", std::thread::hardware_concurrency()},
          {"id", id.substr(0, kIdDigits)}};
}

nlohmann::ordered_json conditions() {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  // "1980, 45, 0x0000000000000000, 20480"
  std::istringstream gpu(first_line(
      "nvidia-smi --query-gpu=clocks.sm,temperature.gpu,clocks_event_reasons.active,memory.used "
      "--format=csv,noheader,nounits 2> /dev/null"));
  std::string mhz, celsius, throttled, used;
  if (std::getline(gpu >> std::ws, mhz, ',') && std::getline(gpu >> std::ws, celsius, ',') &&
      std::getline(gpu >> std::ws, throttled, ',') && std::getline(gpu >> std::ws, used)) {
    out = {{"sm_mhz", std::atoi(mhz.c_str())},
           {"celsius", std::atoi(celsius.c_str())},
           {"throttled", throttled},
           {"gpu_mib", std::atoi(used.c_str())}};
  }
  std::ifstream cpu("/proc/cpuinfo");
  double sum = 0;
  int cores = 0;
  for (std::string line; std::getline(cpu, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    sum += std::atof(line.c_str() + line.find(':') + 1);
    ++cores;
  }
  if (cores > 0) out["cpu_mhz"] = std::lround(sum / cores);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) out["peak_mib"] = std::atoll(line.c_str() + 6) / 1024;
  }
  return out;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::string line = words.empty() ? "" : std::filesystem::path(words[0]).filename().string();
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--json") {
      ++i;
    } else if (!words[i].starts_with("--json=")) {
      const bool plain = words[i].find_first_of(" ;\"") == std::string::npos;
      line += plain ? " " + words[i] : " '" + words[i] + "'";
    }
  }
  std::error_code ignored;
  return without(line, std::filesystem::current_path(ignored).string() + "/");
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> buffer{};
  std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return buffer.data();
}

}  // namespace dendrite::bench
