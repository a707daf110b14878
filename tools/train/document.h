// What every generator makes: a document of which a part is learnt, on one side of the split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace train {

enum class Split { kTrain, kHeldOut };

// Ids of the special tokens; bytes are below (see tokenizer.py).
inline constexpr std::uint16_t kBos = 256, kEos = 257, kPad = 258, kCall = 259, kResult = 261;

/// The first of the bytes that stand for special tokens in the text of a document, one each from
/// <bos> on: no text in UTF-8 has them.
inline constexpr int kSpecialByte = 0xF5;

/// A special token in the text of a document.
inline std::string special(std::uint16_t token) {
  return std::string(1, static_cast<char>(kSpecialByte + token - kBos));
}

struct Document {
  std::string text;
  std::size_t learnt_from;     // text[learnt_from..] carries loss, and so does <eos>
  bool ends;                   // followed by <eos>
  bool asks_for_call = false;  // <call> stands between <bos> and the text
  // If not empty: what stands in a row beside the id of each byte, in place of what learnt_from
  // says (kLearnt and the piece, packing.h).
  std::vector<std::uint16_t> marks = {};
};

}  // namespace train
