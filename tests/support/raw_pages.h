#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace dendrite::test {

/// Plants a fault in a page's memory, or takes it back: changes byte `at` of KvStore::read_raw.
inline void flip(KvStore& store, std::int32_t page, std::int64_t at) {
  std::vector<std::byte> memory(static_cast<std::size_t>(store.raw_layout().page_bytes()));
  store.read_raw(page, memory);
  memory[static_cast<std::size_t>(at)] ^= std::byte{0x10};
  store.write_raw(page, memory);
}

}  // namespace dendrite::test
