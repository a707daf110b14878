#include "io/gguf_vocabulary.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "dendrite/error.h"

namespace dendrite {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
/// Of a token that is looked for in pairs: their number grows with its square. The longest ones of
/// models that there are have about a hundred.
constexpr std::size_t kMostBytes = 1024;

/// Pairs that make a token; models that there are have up to half a million.
constexpr std::size_t kMostMerges = std::size_t{1} << 22;

std::string count_text(std::size_t count) {
  return "an array of " + std::to_string(count) + ", one for each of " + kTokens;
}

bool is_merged(GgufVocabulary::Kind kind) {
  return kind == GgufVocabulary::Kind::kNormal || kind == GgufVocabulary::Kind::kUserDefined;
}

struct Merge {
  std::string_view left, right;
  float score;
  std::int64_t left_id, right_id;
};

}  // namespace

GgufVocabulary GgufVocabulary::read(const GgufMetadata& metadata) {
  GgufVocabulary out;
  out.texts = metadata.require_strings(kTokens);
  const auto types = metadata.find_ints(kTypes);
  if (!types || types->size() != out.texts.size()) {
    metadata.fail(kTypes, count_text(out.texts.size()));
  }
  for (const std::int64_t type : *types) {
    if (type < 1 || type > 6) {
      metadata.fail(kTypes, "types of tokens from 1 to 6 (got " + std::to_string(type) + ")");
    }
    out.kinds.push_back(static_cast<Kind>(type));
  }
  std::vector<std::string_view> sorted = out.texts;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) {
    metadata.fail(kTokens, "each text once (" + in_quotes(*twice) + " stands twice)");
  }
  return out;
}

std::optional<std::string_view> GgufVocabulary::named(const GgufMetadata& metadata,
                                                      std::string_view key) const {
  const auto id = metadata.find_int(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= std::ssize(texts)) {
    metadata.fail(key, "the id of one of " + std::to_string(texts.size()) + " tokens");
  }
  return texts[static_cast<std::size_t>(*id)];
}

std::vector<std::pair<std::string_view, std::string_view>> merges_by_score(
    const GgufMetadata& metadata, const GgufVocabulary& vocabulary) {
  const auto scores = metadata.find_floats(kScores);
  if (!scores || scores->size() != vocabulary.texts.size()) {
    metadata.fail(kScores, count_text(vocabulary.texts.size()));
  }
  std::unordered_map<std::string_view, std::int64_t> ids;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    if (is_merged(vocabulary.kinds[id])) ids[vocabulary.texts[id]] = static_cast<std::int64_t>(id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    if (!is_merged(vocabulary.kinds[id])) continue;
    if (text.size() > kMostBytes) {
      metadata.fail(kTokens, "tokens of at most " + std::to_string(kMostBytes) + " bytes (token " +
                                 std::to_string(id) + " has " + std::to_string(text.size()) + ")");
    }
    for (std::size_t at = 1; at < text.size(); ++at) {
      if (!begins_character(text[at])) continue;
      const auto left = ids.find(text.substr(0, at));
      if (left == ids.end()) continue;
      const auto right = ids.find(text.substr(at));
      if (right == ids.end()) continue;
      if (merges.size() == kMostMerges) {
        metadata.fail(kTokens, "tokens with at most " + std::to_string(kMostMerges) +
                                   " ways to be put together of two");
      }
      merges.push_back({left->first, right->first, (*scores)[id], left->second, right->second});
    }
  }
  // A score that is no number would not order.
  for (const Merge& merge : merges) {
    if (!(merge.score == merge.score)) metadata.fail(kScores, "numbers (one is NaN)");
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
  });
  std::vector<std::pair<std::string_view, std::string_view>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges) out.emplace_back(merge.left, merge.right);
  return out;
}

}  // namespace dendrite
