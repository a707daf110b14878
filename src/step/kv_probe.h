#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_tree.h"
#include "kv/lineage.h"
#include "model/model.h"
#include "step/step_plan.h"

namespace dendrite {

/// K and V of the model's first layers, for paths that are looked at and forgotten: computed and
/// moved as the engine would, in pages of its own and apart from its tree. They depend on the paths
/// alone. The model must be free.
class KvProbe {
 public:
  /// Of `layers` layers; `like`: the engine's pages. Room for `tokens` tokens, of all paths and the
  /// sources of what is moved to them, in `segments` pieces. Throws Error where there is no memory.
  KvProbe(Backend& backend, Model& model, KvShape like, std::int64_t layers, std::int64_t tokens,
          std::int64_t segments);
  ~KvProbe();
  KvProbe(const KvProbe&) = delete;
  KvProbe& operator=(const KvProbe&) = delete;

  /// Another path, all of it computed.
  Tip& add(const Lineage& lineage);
  /// K and V of a position of one layer: [kv_heads, head_dim] each. Valid until the next call.
  struct Values {
    std::span<const float> k;
    std::span<const float> v;
  };
  /// Calls `f(position, a, b)` for positions [begin, end) of two paths.
  template <typename F>
  void compare(Tip& a, Tip& b, std::int64_t layer, std::int64_t begin, std::int64_t end, F f) {
    for (std::int64_t p = begin; p < end; ++p)
      f(p, values(first_, a, layer, p), values(second_, b, layer, p));
  }

 private:
  /// A page that was read.
  struct Page {
    std::int64_t id = -1;
    std::int64_t layer = 0;
    std::vector<float> k;
    std::vector<float> v;
  };
  void compute(Tip& tip);
  Values values(Page& page, Tip& tip, std::int64_t layer, std::int64_t position);

  Model& model_;
  std::int64_t layers_;
  std::unique_ptr<KvStore> store_;
  KvTree tree_;
  StepPlan plan_;
  std::deque<Tip> tips_;
  Page first_;
  Page second_;
};

}  // namespace dendrite
