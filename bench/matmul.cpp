#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "machine.h"
#include "options.h"
#include "packed_weights.h"
#include "report.h"

// matmul: the products of a decode step on a GPU, one matrix at a time, deterministic and fast,
// with bf16 weights and packed ones: time and the share of the device's read bandwidth. Products
// are enqueued one after the other over copies of the matrix that no cache holds; what is timed
// includes the rounding of the input to bf16 and, for matrices of a few microseconds, what the host
// needs to launch the two.

namespace dendrite::bench {
namespace {

struct MatmulOptions {
  std::string json;
  std::vector<std::int64_t> rows = {1, 4, 8, 16, 32, 64, 128};
  std::vector<std::string> weights = {"bf16"};
  std::vector<std::string> shapes = {"8b", "1b"};
  int trials = 9;
};

struct Matrix {
  std::string name;
  std::int64_t n, k;
};
struct MatmulShape {
  std::string name;
  std::vector<Matrix> matrices;
};
const std::vector<MatmulShape> kShapes = {{"8b",
                                           {{"qkv", 6144, 4096},
                                            {"out", 4096, 4096},
                                            {"gate_up", 28672, 4096},
                                            {"down", 4096, 14336},
                                            {"logits", 128256, 4096}}},
                                          {"1b",
                                           {{"qkv", 3072, 2048},
                                            {"out", 2048, 2048},
                                            {"gate_up", 16384, 2048},
                                            {"down", 2048, 8192},
                                            {"logits", 128256, 2048}}}};

class MatmulBench {
 public:
  explicit MatmulBench(const MatmulOptions& options) : options_(options), report_("matmul") {}

  void run() {
    for (const bool deterministic : {true, false}) {
      const auto backend = make_cuda_backend(Numerics::kBF16, {.deterministic = deterministic});
      if (deterministic) {
        read_gb_per_s_ = backend->read_gb_per_s();
        report_.set_device("name", backend->info().name);
        report_.set_device("read_gb_per_s", read_gb_per_s_);
        report_.add_value("read", {}, "GB/s", read_gb_per_s_);
      }
      for (const MatmulShape& shape : kShapes) {
        if (std::ranges::find(options_.shapes, shape.name) == options_.shapes.end()) continue;
        for (const Matrix& matrix : shape.matrices) {
          for (const std::string& weights : options_.weights) {
            measure(*backend, deterministic ? "deterministic" : "fast", shape.name, matrix,
                    weights);
          }
        }
      }
    }
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  static constexpr std::int64_t kRotatedBytes = std::int64_t{512} << 20;

  void measure(Backend& backend, const std::string& mode, const std::string& shape, const Matrix& m,
               const std::string& weights) {
    std::vector<std::unique_ptr<Weight>> copies;
    while (copies.empty() ||
           static_cast<std::int64_t>(copies.size()) * copies.front()->size_bytes() <
               kRotatedBytes) {
      copies.push_back(weights == "bf16"
                           ? backend.random_weight(m.n, m.k, DType::kBF16, copies.size())
                           : random_packed_weight(backend, weights, m.n, m.k));
    }
    const std::int64_t most = *std::max_element(options_.rows.begin(), options_.rows.end());
    const auto x = backend.make_buffer(most * m.k);
    const auto out = backend.make_buffer(most * m.n);
    float last = 0;
    for (const std::int64_t rows : options_.rows) {
      const Tensor in{x->data(), rows, m.k, m.k};
      const Tensor result{out->data(), rows, m.n, m.n};
      std::vector<double> us;
      for (int trial = -1; trial < options_.trials; ++trial) {
        backend.download({&last, 1}, out->data());
        const double begin = now_seconds();
        for (const auto& weight : copies) {
          backend.matmul(result, in, *weight, nullptr, Backend::Store::kOverwrite);
        }
        backend.download({&last, 1}, out->data());
        const double seconds = now_seconds() - begin;
        if (trial >= 0) us.push_back(seconds * 1e6 / static_cast<double>(copies.size()));
      }
      const Json params{{"mode", mode},
                        {"shape", shape},
                        {"matrix", m.name},
                        {"weights", weights},
                        {"rows", rows}};
      report_.add("product", params, "us", us);
      const double gb_per_s = static_cast<double>(copies[0]->size_bytes()) / median(us) / 1e3;
      report_.add_value("share of read bandwidth", params, "%", 100 * gb_per_s / read_gb_per_s_);
    }
  }

  MatmulOptions options_;
  Report report_;
  double read_gb_per_s_ = 0;
};

}  // namespace

void add_matmul(CLI::App& app) {
  auto options = std::make_shared<MatmulOptions>();
  CLI::App* command = app.add_subcommand("matmul", "Products of a decode step on a GPU");
  command->add_option("--json", options->json, "Write the results there as JSON; -: stdout");
  command->add_option("--rows", options->rows, "Numbers of rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--weights", options->weights, "Formats of weights")
      ->delimiter(',')
      ->check(CLI::IsMember(packed_weight_names()))
      ->capture_default_str();
  command->add_option("--shape", options->shapes, "8b, 1b")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"8b", "1b"}))
      ->capture_default_str();
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { MatmulBench(*options).run(); });
}

}  // namespace dendrite::bench
