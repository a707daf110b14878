#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/stores/kv_store.h"
#include "machine.h"
#include "options.h"
#include "peers/flashinfer/peer.h"
#include "peers/flashinfer/tree.h"

// flashinfer: one decode step's tree attention beside FlashInfer's kernels: flat over each row's
// whole path, and its cascade (a plan and a launch a level, then merges). Both sides read the same
// pages and queries, and every layer has K and V of its own, so that no cache carries them over.
// Layers run as one CUDA graph, all sides in turns. Results are compared before anything is timed.

namespace dendrite::bench {
namespace {

using fi::kHeadDim;
using fi::kPageTokens;
using fi::Peer;
using fi::Requests;
using fi::Tree;

constexpr std::int64_t kRotatedBytes = std::int64_t{512} << 20;
constexpr std::int64_t kMinLayers = 16;
constexpr std::int64_t kMaxLayers = 128;
constexpr std::int64_t kMaxRows = 256;
constexpr double kTrialSeconds = 0.01;
// Each side may be 3e-2 of a row's rms off (backend.h).
constexpr double kLargestDifference = 6e-2;
const std::string kPeer = "flashinfer " DENDRITE_FLASHINFER_VERSION;

std::vector<Tree> trees() {
  const auto shared = [](std::int64_t branches, std::int64_t prefix, std::int64_t own) {
    return Tree({{1, prefix}, {branches, own}});
  };
  return {Tree({{1, 512}}),
          Tree({{1, 8192}}),
          shared(8, 4096, 256),
          shared(32, 4096, 64),
          shared(32, 4096, 256),
          shared(32, 4096, 1024),
          shared(128, 4096, 64),
          shared(128, 4096, 256),
          shared(128, 4096, 1024),
          shared(16, 8192, 64),
          shared(32, 32768, 64),
          shared(128, 32768, 256),
          Tree({{1, 4096}, {8, 512}, {128, 128}})};
}

struct Options {
  std::string json;
  std::vector<std::string> cases;  // empty: all
  int trials = 16;
};

/// A stream of the peer's.
class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// One side: what enqueues all layers once, what waits for them, and its times.
struct Side {
  std::function<void()> replay;
  std::function<void()> wait;
  std::vector<double> layer_us;

  /// Seconds of `count` replays.
  double seconds(int count) const {
    const double begin = now_seconds();
    for (int i = 0; i < count; ++i) replay();
    wait();
    return now_seconds() - begin;
  }
};

class FlashInferBench {
 public:
  explicit FlashInferBench(const Options& options)
      : options_(options), backend_(make_cuda_backend(Numerics::kBF16)), report_("flashinfer") {
    report_.set_device("kind", "cuda");
    report_.set_device("name", backend_->info().name);
    report_.set_device("kernels", backend_->info().kernels);
  }

  void run() {
    for (const Tree& tree : trees()) {
      const auto& cases = options_.cases;
      if (cases.empty() || std::ranges::find(cases, tree.name()) != cases.end()) measure(tree);
    }
    if (!options_.json.empty()) report_.write_json(options_.json);
  }

 private:
  std::unique_ptr<KvStore> store_of(const Tree& tree) {
    KvShape shape{1, shape_.kv_heads, kHeadDim, tree.pages(), kPageTokens, KvFormat::kBF16};
    const std::int64_t layer_bytes = tree.pages() * shape.page_bytes();
    shape.layers = std::clamp((kRotatedBytes - 1) / layer_bytes + 1, kMinLayers, kMaxLayers);
    auto store = backend_->make_kv_store(shape);
    // bf16 of magnitude 2^-3 to 2; each page takes them from another place on.
    constexpr std::size_t kPlaces = std::size_t{1} << 19;
    const auto page_values = static_cast<std::size_t>(shape.page_bytes() / 2);
    std::vector<std::uint16_t> values(page_values + kPlaces);
    for (std::uint16_t& value : values) {
      value = static_cast<std::uint16_t>((random_() & 1) << 15 | (0x3e00 + random_() % 0x0200));
    }
    for (std::int64_t page = 0; page < tree.pages(); ++page) {
      const std::span from(values.data() + random_() % kPlaces, page_values);
      store->import_page(static_cast<std::int32_t>(page), std::as_bytes(from));
    }
    return store;
  }

  std::vector<std::unique_ptr<Peer>> peers_of(const Tree& tree, const KvStore& store,
                                              std::span<const BF16> q) {
    std::vector<void*> layers;
    for (std::int64_t layer = 0; layer < store.shape().layers; ++layer) {
      layers.push_back(static_cast<const cuda::CudaKvStore&>(store).view(layer).data);
    }
    std::vector<std::unique_ptr<Peer>> peers;
    const auto add = [&](const std::string& name, Peer::Levels levels) {
      peers.push_back(
          std::make_unique<Peer>(name, std::move(levels), layers, q, shape_.heads, stream_.get()));
    };
    const auto tensor_cores = [&](const Requests& requests) {
      return fi::make_tensor_core_attention(requests, shape_, stream_.get());
    };
    const auto cuda_cores = [&](const Requests& requests) {
      return fi::make_cuda_core_attention(requests, shape_, stream_.get());
    };
    for (const bool on_tensor_cores : {true, false}) {
      const std::string kind = on_tensor_cores ? "tensor cores" : "CUDA cores";
      const auto leaves = [&](const Requests& requests) {
        return on_tensor_cores ? tensor_cores(requests) : cuda_cores(requests);
      };
      Peer::Levels flat;
      flat.push_back(leaves(tree.flat()));
      add("flat, " + kind, std::move(flat));
      if (tree.depth() == 1) continue;
      Peer::Levels cascade;
      for (std::size_t i = 0; i + 1 < tree.depth(); ++i) {
        cascade.push_back(tensor_cores(tree.level(i)));
      }
      cascade.push_back(leaves(tree.level(tree.depth() - 1)));
      add("cascade, leaves on " + kind, std::move(cascade));
    }
    return peers;
  }

  /// The largest difference of a row, over the row's rms; infinite where a value is not finite
  /// or a whole row is 0.
  double difference(std::span<const float> ours, std::span<const float> theirs) const {
    const std::size_t dim = std::size_t{shape_.heads} * kHeadDim;
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    double worst = 0;
    for (std::size_t row = 0; row < theirs.size(); row += dim) {
      double squares = 0;
      double largest = 0;
      for (std::size_t i = row; i < row + dim; ++i) {
        squares += double{theirs[i]} * double{theirs[i]};
        largest = std::max(largest, std::fabs(double{ours[i]} - double{theirs[i]}));
        if (!std::isfinite(ours[i] + theirs[i])) return kInfinite;
      }
      if (squares == 0) return kInfinite;
      worst = std::max(worst, largest / std::sqrt(squares / static_cast<double>(dim)));
    }
    return worst;
  }

  void measure(const Tree& tree) {
    const auto store = store_of(tree);
    const std::int64_t dim = std::int64_t{shape_.heads} * kHeadDim;
    const auto queries = backend_->make_buffer(kMaxRows * dim);
    const auto out = backend_->make_buffer(kMaxRows * dim);
    std::vector<BF16> q(static_cast<std::size_t>(tree.rows() * dim));
    std::normal_distribution<float> normal;
    for (BF16& value : q) value = to_bf16(normal(random_));
    std::vector<float> host(q.size());
    std::ranges::transform(q, host.begin(), [](BF16 value) { return to_f32(value); });
    backend_->upload(queries->data(), host);

    const AttentionPlan plan = tree.plan();
    const std::vector<std::int32_t> tokens(static_cast<std::size_t>(tree.rows()), 0);
    const std::vector<std::int64_t> slots(tokens.size(), -1);
    PassInputs inputs;  // of a model that has attention alone
    inputs.model = ++models_;
    inputs.kv = store.get();
    inputs.heads = shape_.heads;
    inputs.tokens = tokens;
    inputs.slots = slots;
    inputs.plans = std::span(&plan, 1);
    inputs.first_position = std::ranges::min(plan.positions);
    inputs.max_rows = kMaxRows;
    const auto pass = [&](const PassInputs& padded) {
      AttentionArgs args;
      args.out = Tensor{out->data(), std::ssize(padded.tokens), dim, dim};
      args.q = {queries->data(), std::ssize(padded.tokens), dim, dim};
      args.heads = shape_.heads;
      args.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
      args.kv = store.get();
      args.plan = &plan;
      for (; args.layer < store->shape().layers; ++args.layer) backend_->attention(args);
    };
    std::vector<Side> sides;
    sides.push_back({[&] { backend_->run_pass(inputs, pass); },
                     [&] { backend_->download(std::span(host).first(1), out->data()); },
                     {}});
    for (int i = 0; i < 3; ++i) sides[0].replay();  // the second time is recorded
    backend_->download(host, out->data());

    const auto peers = peers_of(tree, *store, q);
    const Json params{{"case", tree.name()}};
    Json differences;
    double worst = 0;
    for (const auto& peer : peers) {
      sides.push_back({[&peer] { peer->replay(); }, [&peer] { peer->wait(); }, {}});
      peer->replay();
      const double found = difference(host, peer->result());
      check(tree, *peer, found);
      differences[peer->name()] = found;
      worst = std::max(worst, found);
    }
    report_.add_value("largest difference", params, "of a row's rms", worst, differences);
    time(sides, store->shape().layers);
    tell(params, sides, peers,
         static_cast<double>(tree.pages() * store->shape().page_bytes() / store->shape().layers));
  }

  static void check(const Tree& tree, const Peer& peer, double difference) {
    if (difference <= kLargestDifference) return;
    throw Error("flashinfer: " + tree.name() + ", " + peer.name() + ": results differ by " +
                std::to_string(difference) + " of a row's rms; expected " +
                std::to_string(kLargestDifference) + " at most");
  }

  void time(std::vector<Side>& sides, std::int64_t layers) const {
    std::vector<int> replays;
    for (const Side& side : sides) {
      replays.push_back(std::clamp(static_cast<int>(kTrialSeconds / side.seconds(1)), 1, 32));
    }
    for (int trial = 0; trial < options_.trials; ++trial) {
      for (std::size_t i = 0; i < sides.size(); ++i) {
        sides[i].layer_us.push_back(sides[i].seconds(replays[i]) * 1e6 /
                                    static_cast<double>(replays[i] * layers));
      }
    }
  }

  void tell(const Json& params, const std::vector<Side>& sides,
            const std::vector<std::unique_ptr<Peer>>& peers, double bytes) {
    const double bandwidth = backend_->read_gb_per_s();
    const std::vector<double>& ours = sides[0].layer_us;
    const auto share = [&](double us) { return bytes / us / 1e3 / bandwidth; };
    const auto best = [&](const std::string& kind) -> const Side* {
      const Side* found = nullptr;
      for (std::size_t i = 0; i < peers.size(); ++i) {
        const Side& side = sides[i + 1];
        if (!peers[i]->name().starts_with(kind)) continue;
        if (!found || median(side.layer_us) < median(found->layer_us)) found = &side;
      }
      return found;
    };
    report_.add("tree", params, "us", ours);
    for (std::size_t i = 0; i < peers.size(); ++i) {
      report_.add_peer(kPeer + (", " + peers[i]->name()), "tree", params, "us",
                       sides[i + 1].layer_us);
    }
    Json extra{{"read_gb_per_s", bandwidth}, {"unique_kv_mb", bytes / 1e6}};
    for (const std::string kind : {"flat", "cascade"}) {
      const Side* side = best(kind);
      if (side == nullptr) continue;
      std::vector<double> ratios;
      for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(side->layer_us[i] / ours[i]);
      report_.add_ratio("tree_vs_flashinfer_" + kind, params, ratios, median(ours),
                        median(side->layer_us));
      extra["flashinfer_" + kind] = share(median(side->layer_us));
    }
    report_.add_value("share of read bandwidth", params, "", share(median(ours)), extra);
  }

  Options options_;
  fi::Shape shape_;
  std::unique_ptr<Backend> backend_;
  Stream stream_;
  Report report_;
  std::mt19937 random_{1};
  std::uint64_t models_ = 0;
};

}  // namespace

void add_flashinfer(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "flashinfer", "Tree attention beside FlashInfer's, flat and cascade, on one GPU");
  std::vector<std::string> names;
  for (const Tree& tree : trees()) names.push_back(tree.name());
  command->add_option("--json", options->json, "Write the results there as JSON; -: stdout");
  command->add_option("--cases", options->cases, "Trees to measure; none given: all")
      ->check(CLI::IsMember(names));
  command->add_option("--trials", options->trials, "Trials a row")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->callback([options] { FlashInferBench(*options).run(); });
}

}  // namespace dendrite::bench
