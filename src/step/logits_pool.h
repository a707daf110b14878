#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kv/kv_tree.h"

namespace dendrite {

/// Recycles next-token distributions, so that a step over a large vocabulary does not fault in
/// fresh memory every time. Rows go back when the last segment or reader drops them, which may be a
/// caller with a Distribution, in any thread, after the engine has gone.
class LogitsPool {
 public:
  /// A row of `vocab` values with unspecified content.
  std::shared_ptr<LogitsRow> acquire(std::int64_t vocab);

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<LogitsRow>> rows;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace dendrite
