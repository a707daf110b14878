#pragma once

#include <string_view>

#include "chat/json_scanner.h"

namespace dendrite::test {

/// An object of JSON, whatever its numbers and bytes are.
inline bool is_json_object(std::string_view text) {
  chats::JsonScanner scanner;
  for (const char c : text) {
    if (scanner.put(c) == chats::JsonScanner::Now::kBroken) return false;
  }
  return scanner.depth() == 0;
}

}  // namespace dendrite::test
