#include "quantize/packed_files.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/dtype.h"
#include "dendrite/error.h"
#include "io/output_file.h"
#include "io/safetensors_output.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr std::int64_t kRowsRead = 16;  // of a matrix at once: where they are columns, side by side

/// What a packed matrix is in a file.
struct PackedMatrix {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};

const std::vector<float>* found_in(const Vectors& vectors, std::string_view name) {
  const auto found = vectors.find(name);
  return found == vectors.end() ? nullptr : &found->second;
}

/// Of groups f16, which a CPU keeps as it is. Of whole rows f32: some readers multiply in the type
/// of the scale, and a code of 8 bits times one needs more digits than bf16 has.
DType scale_type(const RowPacking& packing) {
  return packing.group == 0 ? DType::kF32 : DType::kF16;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

PackedMatrix pack(const SourceMatrix& matrix, const Scalings& scalings, const RowPacking& packing,
                  const ThreadPool& workers) {
  const std::string_view name = matrix.stored.name;
  const std::vector<float>* const columns = found_in(scalings.columns, name);
  const std::vector<float>* const rows = found_in(scalings.rows, name);
  const std::vector<float>* const importance = found_in(scalings.importance, name);
  const std::vector<float> alike(static_cast<std::size_t>(matrix.cols), 1.0F);
  const std::int64_t row_bytes = packing.row_bytes(matrix.cols);
  const std::int64_t row_scales = packing.scales(matrix.cols);
  const PlainFormat& numbers = plain_format(scale_type(packing));
  PackedMatrix out{std::vector<std::byte>(static_cast<std::size_t>(matrix.rows * row_bytes)),
                   std::vector<std::byte>(
                       static_cast<std::size_t>(matrix.rows * row_scales * numbers.block_bytes()))};
  std::atomic<bool> finite = true;
  workers.parallel_for(matrix.rows, kRowsRead, [&](std::int64_t begin, std::int64_t end) {
    const auto cols = static_cast<std::size_t>(matrix.cols);
    std::vector<float> values(kRowsRead * cols);
    std::vector<float> scales(static_cast<std::size_t>(row_scales));
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = (r - begin) % kRowsRead;
      const std::int64_t left = std::min(end - r, kRowsRead);
      if (at == 0) matrix.widen(r, std::span(values).first(static_cast<std::size_t>(left) * cols));
      const std::span row = std::span(values).subspan(static_cast<std::size_t>(at) * cols, cols);
      const float divisor = rows != nullptr ? (*rows)[static_cast<std::size_t>(r)] : 1;
      for (std::size_t k = 0; k < row.size(); ++k) {
        row[k] *= (columns != nullptr ? (*columns)[k] : 1) / divisor;
      }
      if (all_finite(row)) {
        pack_row(packing, row, importance != nullptr ? *importance : alike,
                 out.codes.data() + r * row_bytes, scales);
      }
      if (!all_finite(row) || !all_finite(scales)) finite = false;
      numbers.narrow(scales, out.scales.data() + r * row_scales * numbers.block_bytes());
    }
  });
  if (!finite) {
    throw Error(std::string(matrix.stored.file) + ": tensor \"" + std::string(name) +
                "\" holds NaN, infinity or values beyond what a scale can be; expected finite "
                "values");
  }
  return out;
}

/// One file of weights on its way.
class PackedFile {
 public:
  PackedFile(std::vector<const TensorInfo*> tensors, const Matrices& matrices, const Parted& parted,
             const Packings& packings)
      : packings_(packings) {
    for (const TensorInfo* tensor : tensors) {
      Part& part = parts_.emplace_back(Part{tensor, list_.size()});
      const auto several = parted.find(tensor->name);
      if (several != parted.end()) {
        for (const std::string& name : several->second.matrices) add_packed(name, matrices, part);
        for (const PartedTensor::Vector& bias : several->second.biases) add_bias(bias, part);
      } else if (matrices.contains(tensor->name)) {
        add_packed(tensor->name, matrices, part);
      } else {
        const std::int64_t bytes = size_bytes_a_value(*tensor);
        list_.push_back({tensor->name, std::string(tensor->stored_type), bytes, tensor->shape});
      }
    }
  }

  std::span<const TensorToWrite> list() const { return list_; }

  /// False: `next`, which is called before each tensor with its bytes as they were, said no more.
  bool write(const std::filesystem::path& path, const Scalings& scalings, const ThreadPool& workers,
             const std::function<bool(std::int64_t)>& next) const {
    SafetensorsOutput file(path, list_);
    for (const Part& part : parts_) {
      if (!next(part.tensor->size_bytes)) return false;
      std::size_t at = part.first;
      if (part.matrices.empty() && part.biases.empty()) {
        file.write(at, bytes_of(*part.tensor, scalings));
      }
      for (const PartedTensor::Vector* bias : part.biases) {
        file.write(at++, values_of(*part.tensor, *bias));
      }
      for (const auto& [name, matrix] : part.matrices) {
        const RowPacking& packing = packings_.of(name);
        const PackedMatrix packed = pack(*matrix, scalings, packing, workers);
        file.write(at++, packed.codes);
        file.write(at++, packed.scales);
        if (packing.kind != PackedKind::kInt4) continue;
        const std::array shape{matrix->rows, matrix->cols};
        file.write(at++, std::as_bytes(std::span(shape)));
      }
    }
    file.finish();
    return true;
  }

 private:
  struct Part {
    const TensorInfo* tensor;
    std::size_t first;  // of its tensors in the list
    // What it is parted into, or the one matrix that it is; none: it stays.
    std::vector<std::pair<std::string, const SourceMatrix*>> matrices{};
    std::vector<const PartedTensor::Vector*> biases{};
  };

  static std::int64_t size_bytes_a_value(const TensorInfo& tensor) {
    const std::int64_t count = value_count(tensor.shape);
    if (count == 0) return 1;
    if (tensor.size_bytes % count != 0) {
      throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" is of " +
                  std::string(tensor.stored_type) +
                  ", parts of a byte each; expected weights that have not been rounded");
    }
    return tensor.size_bytes / count;
  }

  void add_bias(const PartedTensor::Vector& bias, Part& part) {
    part.biases.push_back(&bias);
    const std::int64_t bytes = size_bytes_a_value(*part.tensor);
    list_.push_back({bias.name, std::string(part.tensor->stored_type), bytes, {bias.count}});
  }

  static std::vector<std::byte> values_of(const TensorInfo& tensor,
                                          const PartedTensor::Vector& vector) {
    const std::int64_t bytes = size_bytes_a_value(tensor);
    std::vector<std::byte> out(static_cast<std::size_t>(vector.count * bytes));
    for (std::int64_t i = 0; i < vector.count; ++i) {
      std::memcpy(out.data() + i * bytes, tensor.data + (vector.first + i * vector.step) * bytes,
                  static_cast<std::size_t>(bytes));
    }
    return out;
  }

  void add_packed(const std::string& name, const Matrices& matrices, Part& part) {
    const SourceMatrix& matrix = matrices.find(name)->second;
    part.matrices.emplace_back(name, &matrix);
    const RowPacking& packing = packings_.of(name);
    const DType scale = scale_type(packing);
    const std::int64_t rows = matrix.rows;
    const std::int64_t cols = matrix.cols;
    const auto add = [&](const char* suffix, const char* type, std::int64_t bytes,
                         std::vector<std::int64_t> shape) {
      list_.push_back({name + suffix, type, bytes, std::move(shape)});
    };
    const bool four = packing.kind == PackedKind::kInt4;
    if (four) {
      add("_packed", "I32", 4, {rows, cols / 8});
    } else {
      add("", packing.kind == PackedKind::kFp8 ? "F8_E4M3" : "I8", 1, {rows, cols});
    }
    add("_scale", scale == DType::kF16 ? "F16" : "F32", size_of(scale),
        {rows, packing.scales(cols)});
    if (four) add("_shape", "I64", 8, {2});
  }

  /// A vector that changed, in its own type; else the tensor's own bytes.
  std::vector<std::byte> bytes_of(const TensorInfo& tensor, const Scalings& scalings) const {
    const auto size = static_cast<std::size_t>(tensor.size_bytes);
    std::vector<std::byte> out(size);
    if (const std::vector<float>* values = found_in(scalings.vectors, tensor.name)) {
      require_plain(tensor).narrow(*values, out.data());
    } else if (size > 0) {
      std::memcpy(out.data(), tensor.data, size);
    }
    return out;
  }

  Packings packings_;
  std::vector<Part> parts_;
  std::vector<TensorToWrite> list_;
};

}  // namespace

bool write_packed_files(const ModelFolder& folder, const std::filesystem::path& out,
                        const Matrices& matrices, const Parted& parted, const Scalings& scalings,
                        const ThreadPool& workers, const PackedFilesParams& params) {
  std::map<std::string, std::vector<const TensorInfo*>> files;
  for (const std::string_view name : folder.names()) {
    const TensorInfo* const tensor = folder.find(name);
    files[std::filesystem::path(tensor->file).filename().string()].push_back(tensor);
  }
  const std::int64_t all = folder.total_bytes();
  std::int64_t done = 0;
  const auto next = [&](std::int64_t bytes) {
    if (params.cancel.stop_requested()) return false;
    if (params.on_progress) params.on_progress(done, all);
    done += bytes;
    return true;
  };
  nlohmann::ordered_json places;
  std::int64_t total = 0;
  for (auto& [name, tensors] : files) {
    const PackedFile file(std::move(tensors), matrices, parted, params.packings);
    if (!file.write(out / name, scalings, workers, next)) return false;
    for (const TensorToWrite& tensor : file.list()) {
      places[tensor.name] = name;
      total += tensor.size_bytes();
    }
  }
  if (files.size() == 1 && files.contains(kSingleFile)) return true;
  const nlohmann::ordered_json index{{"metadata", {{"total_size", total}}}, {"weight_map", places}};
  write_text(out / (std::string(kSingleFile) + ".index.json"), index.dump(2) + "\n");
  return true;
}

}  // namespace dendrite
