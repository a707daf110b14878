#pragma once

#include <memory>
#include <vector>

#include "kv/kv_tree.h"

namespace dendrite {

/// Recycles next-token distributions, so that a step over a large vocabulary does not fault in
/// fresh memory every time. Rows go back when the last segment or reader drops them. Guarded by the
/// lock of the tree, under which all that happens.
class LogitsPool {
 public:
  /// A row of `vocab` values with unspecified content.
  std::shared_ptr<LogitsRow> acquire(std::int64_t vocab);

 private:
  std::shared_ptr<std::vector<std::unique_ptr<LogitsRow>>> free_ =
      std::make_shared<std::vector<std::unique_ptr<LogitsRow>>>();
};

}  // namespace dendrite
