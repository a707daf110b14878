#pragma once

#include <memory>

#include "dendrite/constraint.h"
#include "grammar/vocabulary.h"
#include "report.h"

namespace dendrite::bench {

struct MaskOptions {
  int trials = 8;             // documents of each kind
  std::int64_t tokens = 256;  // of a random text
};

/// A constraint without an end that a few hundred tokens could reach.
struct LongText {
  const char* name;
  Constraint constraint;
  const char* gbnf;  // the same for llama.cpp, tabs between rules
};
/// Text of which nothing is forced.
LongText free_text();
/// Records of keys that a schema forces and values that it leaves free.
LongText json_records();

/// Rows of grammars on a vocabulary: "compile", and over the states of texts "mask", "follow" (to
/// take a token, and to look whether the next one is forced) and "forced tokens".
void measure_masks(Report& report, const std::shared_ptr<const Vocabulary>& vocabulary,
                   const Tokenizer& tokenizer, const MaskOptions& options);

}  // namespace dendrite::bench
