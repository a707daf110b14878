#pragma once

#include <string>

namespace dendrite {

/// What this library was built from and with: version, a checksum of its sources, compiler and
/// standard library. Two parts of Dendrite fit each other where this is equal (see
/// EngineOptions::backend_library).
std::string build_id();

}  // namespace dendrite
