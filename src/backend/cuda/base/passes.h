#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/base/pass_arrays.h"
#include "backend/cuda/base/staging.h"
#include "backend/cuda/base/timeline.h"

namespace dendrite::cuda {

/// Passes whose ops are the same each time, as CUDA graphs: recorded at the second pass of a shape
/// and replayed from then on. What differs from pass to pass are small host arrays (tokens, slots,
/// plans), which one kernel fetches from page-locked memory to fixed places before each replay;
/// with host tables the places are page-locked memory themselves.
class Passes {
 public:
  Passes(Device& device, Staging& staging, Timeline& timeline, bool host_tables)
      : device_(device), staging_(staging), timeline_(timeline), host_tables_(host_tables) {}
  ~Passes();
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  /// What a recording holds fixed besides the weights: whose pass, which pages, padded sizes.
  struct Key {
    std::uint64_t model = 0;
    const void* pages = nullptr;
    std::int64_t page_count = 0;
    std::int64_t rows = 0;
    std::int64_t logit_rows = 0;
    /// Of recurrent layers: how many runs of which kinds, and launches that they take.
    struct Recurrence {
      std::int64_t runs = 0;
      std::int64_t levels = 0;
      bool one_row = false;
      std::int64_t alone = 0;
      std::int64_t pieces = 0;
      std::int64_t families = 0;
      std::vector<std::uint8_t> piece_levels;
      auto operator<=>(const Recurrence&) const = default;
    } recurrence{};
    auto operator<=>(const Key&) const = default;
  };
  /// Runs `ops`, or replays what it enqueued. `arrays`: all host arrays that it stages, always in
  /// the same order; where one outgrows its place the shape is recorded anew. `ops` must not
  /// allocate, wait, or depend on anything else that changes.
  void run(const Key& key, std::span<const PassArrays::Array> arrays,
           const std::function<void()>& ops);

  /// Forgets all recordings: memory that they use was moved.
  void forget();

 private:
  struct Recording {
    Memory memory;                         // the arrays' places,
    HostMemory host;                       // or these, with host tables
    std::vector<std::int64_t> capacities;  // bytes
    bool warm = false;                     // has run once, so that everything is allocated
    cudaGraphExec_t graph = nullptr;
  };
  /// What a pass's arrays are fetched from; two, so that the host may fill one
  /// while the device reads the other.
  struct Slot {
    HostMemory host;
    cudaEvent_t fetched = nullptr;
  };

  std::byte* places(const Recording& recording) const {
    return host_tables_ ? recording.host.data() : recording.memory.data();
  }
  static bool fits(const Recording& recording, std::span<const PassArrays::Array> arrays);
  void place(Recording& recording, std::span<const PassArrays::Array> arrays);
  void fetch(const Recording& recording, std::span<const PassArrays::Array> arrays);
  static void check_distinct(std::span<const PassArrays::Array> arrays);
  void record(Recording& recording, const std::function<void()>& ops);
  static void drop_graph(Recording& recording);

  Device& device_;
  Staging& staging_;
  Timeline& timeline_;
  bool host_tables_;
  std::map<Key, Recording> recordings_;
  Slot slots_[2];
  std::size_t next_slot_ = 0;
};

}  // namespace dendrite::cuda
