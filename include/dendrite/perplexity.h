#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "dendrite/engine.h"
#include "dendrite/types.h"

// How well a model foretells texts: what quantization, another device or another model costs.
namespace dendrite {

/// A text to foretell, and what stands before it and is given.
struct TextSample {
  std::string text{};
  std::string prompt{};
};

struct PerplexityParams {
  /// Tokens that are computed together, at least 2. A sample is cut into windows of so many, the
  /// last one shorter, and a token is foretold from those before it in its window. Less where the
  /// model has fewer positions.
  std::int64_t window = 2048;
  std::int64_t tokens = 0;  ///< no further window begins once so many are scored; 0: all are scored
  bool likeliest = false;   ///< Perplexity::likeliest is wanted
  std::stop_token cancel{};  ///< looked at before every step
  /// As SessionOptions::poll; false cancels.
  std::function<bool()> poll{};
  /// Told of tokens that are scored, and of how many there will be.
  std::function<void(std::int64_t done, std::int64_t all)> on_progress{};
};

struct Perplexity {
  std::int64_t window = 0;  ///< that was used
  std::int64_t windows = 0;
  std::int64_t tokens = 0;  ///< that were scored
  double nats = 0;          ///< the sum over them of -log(probability)
  double squares = 0;       ///< the sum of the squares of that
  /// In the place of each, the token that the model holds for the likeliest (ties: the lowest id).
  std::vector<Token> likeliest{};
  bool cancelled = false;  ///< before the end: what is here is of the tokens up to there

  /// exp(nats / tokens): as unsure as a choice among so many equal ones.
  double value() const;
  /// The standard error of value(), as if tokens were independent.
  double error() const;
};

/// Of all tokens of these texts, each sample by itself; special tokens are those that are written
/// in them. What the tokenizer puts before a text (BOS) stands before every window and is not
/// scored; where it puts nothing, a window's first token is not. Throws Error for no sample, a
/// window below 2, and where there is nothing to score; and where pages forbid to finish.
Perplexity perplexity(const Engine& engine, std::span<const TextSample> samples,
                      const PerplexityParams& params = {});

/// The part of places in which both hold the same token for the likeliest. Throws Error unless they
/// are of equally many tokens and have these.
double top1_agreement(const Perplexity& one, const Perplexity& other);

}  // namespace dendrite
