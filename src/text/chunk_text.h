#pragma once

#include <string>
#include <string_view>

namespace dendrite {

/// The text of a chunk as it is named, tokenised and computed: equal texts but for how they were
/// cut out and which system wrote their lines are one chunk. First white space goes at both ends:
/// the 29 characters of which Python's str.isspace is true (text.strip()). Then CR LF becomes LF.
/// All else stays: a lone CR, U+FEFF, white space inside, the Unicode normalisation form. A second
/// time changes nothing, unless CR CR LF was in it.
/// Throws Error where `text` is not UTF-8, or nothing is left of it.
std::string normalise_chunk(std::string_view text);

}  // namespace dendrite
