#include "backend/cuda/base/passes.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backend/cuda/base/fetch.h"

namespace dendrite::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
/// Of an array's place, and of what all are fetched from: a step of few rows grows to its first
/// real plan without being recorded anew.
constexpr std::int64_t kLeastPlace = std::int64_t{16} << 10;
constexpr std::int64_t kLeastSlot = std::int64_t{1} << 20;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Passes::~Passes() {
  const DeviceScope here = device_.last_scope();
  forget();
  for (Slot& slot : slots_) {
    if (slot.fetched != nullptr) cudaEventDestroy(slot.fetched);
  }
}

void Passes::drop_graph(Recording& recording) {
  if (recording.graph != nullptr) cudaGraphExecDestroy(recording.graph);
  recording.graph = nullptr;
  recording.warm = false;
}

void Passes::forget() {
  for (auto& [key, recording] : recordings_) drop_graph(recording);
}

bool Passes::fits(const Recording& recording, std::span<const PassArrays::Array> arrays) {
  if (recording.capacities.size() != arrays.size()) return false;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].target == nullptr && arrays[i].size_bytes > recording.capacities[i]) return false;
  }
  return true;
}

/// Gives every array a place of twice its size, at least, and slots room for as much: a pass that
/// is replayed allocates nothing, as kernels of a group may then wait for what the host has yet to
/// enqueue.
void Passes::place(Recording& recording, std::span<const PassArrays::Array> arrays) {
  device_.synchronize("run_pass");
  drop_graph(recording);
  std::vector<std::int64_t> capacities;
  std::int64_t bytes = 0;
  std::int64_t uploads = 0;
  for (const PassArrays::Array& array : arrays) {
    if (array.target != nullptr) uploads += aligned(array.size_bytes);
    capacities.push_back(
        array.target != nullptr ? 0 : aligned(std::max(kLeastPlace, 2 * array.size_bytes)));
    bytes += capacities.back();
  }
  for (Slot& slot : slots_) {
    if (slot.host.size_bytes() >= bytes + uploads) continue;
    slot.host = HostMemory(std::max(kLeastSlot, bytes + uploads), "arrays of a pass");
  }
  // Throws before any capacity is believed.
  if (host_tables_) {
    recording.host = HostMemory(bytes, "arrays of a pass");
  } else {
    recording.memory = Memory(bytes, "arrays of a pass");
  }
  recording.capacities = std::move(capacities);
}

void Passes::fetch(const Recording& recording, std::span<const PassArrays::Array> arrays) {
  // The last pass may still read its places.
  if (host_tables_) device_.synchronize("run_pass");
  Slot& slot = slots_[next_slot_];
  next_slot_ = 1 - next_slot_;
  constexpr const char* kOp = "run_pass";
  if (slot.fetched == nullptr) {
    check(cudaEventCreateWithFlags(&slot.fetched, cudaEventDisableTiming), kOp);
  } else {
    check(cudaEventSynchronize(slot.fetched), kOp);
  }
  FetchList list{};
  std::int64_t source = 0;
  std::int64_t target = 0;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const PassArrays::Array& array = arrays[i];
    if (array.size_bytes > 0 && array.target == nullptr && host_tables_) {
      std::memcpy(recording.host.data() + target, array.host,
                  static_cast<std::size_t>(array.size_bytes));
    } else if (array.size_bytes > 0) {
      std::memcpy(slot.host.data() + source, array.host,
                  static_cast<std::size_t>(array.size_bytes));
      list.add(slot.host.data() + source,
               array.target != nullptr ? array.target : recording.memory.data() + target,
               array.size_bytes);
      source += aligned(array.size_bytes);
    }
    target += recording.capacities[i];
  }
  timeline_.pass_begins();
  launch_fetch(list, device_.stream());
  check(cudaGetLastError(), kOp);
  check(cudaEventRecord(slot.fetched, device_.stream()), kOp);
}

/// Ops name arrays by where they are in the host's memory: two at one place, as empty ones may be,
/// would be one in the recording.
void Passes::check_distinct(std::span<const PassArrays::Array> arrays) {
  std::vector<const void*> places;
  for (const PassArrays::Array& array : arrays) {
    if (array.target == nullptr) places.push_back(array.host);
  }
  std::ranges::sort(places);
  if (std::ranges::adjacent_find(places) != places.end()) {
    throw Error("run_pass: two arrays of a pass are at one place; expected one each");
  }
}

void Passes::run(const Key& key, std::span<const PassArrays::Array> arrays,
                 const std::function<void()>& ops) {
  Recording& recording = recordings_[key];
  if (!fits(recording, arrays)) place(recording, arrays);
  fetch(recording, arrays);
  if (recording.graph == nullptr) {
    std::vector<Staging::Bound> bound;
    std::int64_t target = 0;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      bound.push_back({arrays[i].host, arrays[i].size_bytes, places(recording) + target});
      target += recording.capacities[i];
    }
    const Staging::BoundPass pass(staging_, std::move(bound));
    if (!recording.warm) {
      ops();
      recording.warm = true;
      return;
    }
    check_distinct(arrays);
    record(recording, ops);
  }
  check(cudaGraphLaunch(recording.graph, device_.stream()), "run_pass");
}

void Passes::record(Recording& recording, const std::function<void()>& ops) {
  constexpr const char* kOp = "recording a pass";
  const std::scoped_lock recording_now(device_.recording());
  check(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeRelaxed), kOp);
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    cudaStreamEndCapture(device_.stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(device_.stream(), &graph), kOp);
  const cudaError_t status = cudaGraphInstantiate(&recording.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(status, kOp);
}

}  // namespace dendrite::cuda
