#pragma once

#include <memory>

#include "backend/backend.h"

namespace dendrite {

/// Backend::make_kv_store, and for a shape with wide layers a store of two parts, one for the
/// layers of each size. Each part has the shape's pages, under the same ids.
std::unique_ptr<KvStore> make_kv_stores(Backend& backend, const KvShape& shape);

}  // namespace dendrite
