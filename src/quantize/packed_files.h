#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>

#include "io/model_folder.h"
#include "quantize/matrices.h"
#include "quantize/packings.h"
#include "quantize/scaling.h"

namespace dendrite {

struct PackedFilesParams {
  Packings packings;
  std::stop_token cancel{};
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
};

/// Writes the weight files of a folder into another: `matrices` scaled and packed, what `parted`
/// tensors hold in their places, all other tensors as they are or as `scalings` have them. As
/// many files as there were, of the same names, and an index where there was one. False: cancelled.
bool write_packed_files(const ModelFolder& folder, const std::filesystem::path& out,
                        const Matrices& matrices, const Parted& parted, const Scalings& scalings,
                        const ThreadPool& workers, const PackedFilesParams& params);

}  // namespace dendrite
