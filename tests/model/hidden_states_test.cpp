// The states between the layers of every model of tests/data/models against Hugging Face
// transformers, on every CPU path. Where logits differ, this says which layer begins it.
#include <gtest/gtest.h>

#include <utility>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::GoldenFile;
using test::Tokens;

/// A backend that keeps what the last row of the last pass was: as embedded, after each layer, and
/// as the output matrix sees it.
class KeepingBackend final : public test::SamplingBackend {
 public:
  using SamplingBackend::SamplingBackend;

  std::vector<std::vector<float>> states;
  bool scales_layers = false;  // a factor ends each layer: Gemma 4
  bool adds_once = false;      // layers have one part

  void run_pass(const PassInputs& inputs, const PassOps& ops) override {
    states.clear();
    embedded_ = false;
    SamplingBackend::run_pass(inputs, ops);
  }
  void embed(Tensor out, std::span<const std::int32_t> tokens, const Weight& weight) override {
    SamplingBackend::embed(out, tokens, weight);
    if (!states.empty()) return;  // inputs of layers
    stream_ = out.data;
    keep(out);
  }
  void product(const Product& args) override {
    SamplingBackend::product(args);
    if (args.epilogue == Epilogue::kAdd) added(args.out);
    if (!args.gather.empty()) keep(args.in.tensor());
  }
  /// Embeddings that are scaled are those that enter the first layer; and so are logits.
  void scale(Tensor x, float factor, float cap) override {
    SamplingBackend::scale(x, factor, cap);
    if (x.data != stream_) return;
    if (!std::exchange(embedded_, true)) states.clear();
    keep(x);
  }
  void add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor) override {
    SamplingBackend::add_normed(out, x, weight, eps, factor);
    added(out);
  }
  void experts(const Experts& args) override {
    SamplingBackend::experts(args);
    added(args.out);
  }

 private:
  const float* stream_ = nullptr;
  bool embedded_ = false;
  bool added_ = false;
  /// A layer adds twice, and the second time it is done; or once.
  void added(const Tensor& out) {
    if (scales_layers || out.data != stream_) return;
    if (adds_once || std::exchange(added_, !added_)) keep(out);
  }
  void keep(const Tensor& x) {
    const float* row = x.data + (x.rows - 1) * x.stride;
    states.emplace_back(row, row + x.cols);
  }
};

class HiddenStates : public ::testing::TestWithParam<std::string> {};

TEST_P(HiddenStates, AreThoseOfTransformersInF32) {
  const GoldenFile golden(test::model_data() / GetParam() / "golden.safetensors");
  const auto ids = golden.ints("input_ids");
  const auto positions = golden.ints("hidden_positions");
  const auto expected = golden.floats("hidden_f32");  // [layers + 2, positions, dim]
  const nlohmann::json json = test::golden_json(GetParam());
  const auto dim = json.at("hidden_size").get<std::size_t>();
  const auto states = json.at("num_hidden_layers").get<std::size_t>() + 2;
  ASSERT_EQ(expected.size(), states * positions.size() * dim);
  const double tolerance = test::golden_tolerance(GetParam());
  for (const std::string& path : cpu_kernel_paths()) {
    KeepingBackend* backend = nullptr;
    const Engine engine = handle_of(
        load_core(test::model_path(GetParam()).string(),
                  {.dtype = "f32", .threads = 1, .kv_tokens = 2048, .prefix_index = false},
                  [&](Numerics type, int threads) {
                    auto made = std::make_unique<KeepingBackend>(type, threads, path);
                    backend = made.get();
                    return made;
                  }));
    backend->scales_layers = GetParam().starts_with("gemma4");
    backend->adds_once = GetParam().starts_with("nemotron_h");
    for (std::size_t p = 0; p < positions.size(); ++p) {
      SCOPED_TRACE(path + ", position " + std::to_string(positions[p]));
      const Tokens prompt(ids.begin(), ids.begin() + positions[p] + 1);
      Session session(engine);
      const Branch branch = session.prefill(std::span(prompt));
      ASSERT_EQ(backend->states.size(), states);
      for (std::size_t i = 0; i < states; ++i) {
        const auto row = std::span(expected).subspan((i * positions.size() + p) * dim, dim);
        ASSERT_LE(test::distance(backend->states[i], row), tolerance)
            << (i == 0            ? "the embedding"
                : i == states - 1 ? "the final norm's output"
                                  : "after layer " + std::to_string(i));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HiddenStates,
                         ::testing::ValuesIn(test::goldens_with("golden.json")),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace dendrite
