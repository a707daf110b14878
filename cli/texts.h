#pragma once

#include <string>
#include <vector>

#include "dendrite/perplexity.h"

namespace dendrite::cli {

/// The samples of files: of one whose name ends in .jsonl one a line, {"text": "..."} and perhaps a
/// "prompt"; else one, the whole file. Throws Error naming file, line, what was got and what was
/// expected.
std::vector<TextSample> read_samples(const std::vector<std::string>& files);

}  // namespace dendrite::cli
