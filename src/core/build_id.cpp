#include "dendrite/build.h"

#include "sources_id.h"  // made by cmake/SourcesId.cmake

#define DENDRITE_TEXT_OF(value) #value
#define DENDRITE_TEXT(value) DENDRITE_TEXT_OF(value)

namespace dendrite {

std::string build_id() {
#if defined(__clang__)
  const std::string compiler = "Clang " __clang_version__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
#if defined(__GLIBCXX__)
  const std::string library = "libstdc++ " DENDRITE_TEXT(__GLIBCXX__);
#else
  const std::string library = "libc++ " DENDRITE_TEXT(_LIBCPP_VERSION);
#endif
  return "dendrite " DENDRITE_VERSION " (sources " DENDRITE_SOURCES_ID ", " + compiler + ", " +
         library + ")";
}

}  // namespace dendrite
