#include "fuzz/draw_calls.h"

namespace dendrite::fuzz {

DecodeParams draw_params(const Engine& engine, Draws& draws) {
  DecodeParams params;
  params.max_tokens = draws.one_in(24) ? 0 : draws.in(1, draws.one_in(8) ? 30 : 8);
  const double kTemperatures[] = {0, 1, 0.5, 3, 1e-3};
  if (!draws.one_in(8)) params.temperature = kTemperatures[draws.below(std::ssize(kTemperatures))];
  if (draws.one_in(3)) params.top_k = draws.in(1, 20);
  if (draws.one_in(3)) params.top_p = static_cast<double>(draws.in(1, 100)) / 100;
  if (draws.one_in(4)) params.min_p = static_cast<double>(draws.in(0, 50)) / 100;
  if (draws.one_in(3)) params.repetition_penalty = static_cast<double>(draws.in(5, 30)) / 10;
  if (draws.one_in(3)) {
    for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
      params.logit_bias.emplace_back(static_cast<Token>(draws.below(engine.info().vocab)),
                                     static_cast<float>(draws.in(-4, 6)));
    }
  }
  if (engine.info().has_tokenizer && draws.one_in(4)) {
    const char* const kStops[] = {"e", "th", " ", "\n", "1", "10", "\xC3", "ing", "\xEF\xBF\xBD"};
    for (std::int64_t n = draws.in(1, 4); n > 0; --n) {
      params.stop.emplace_back(kStops[draws.below(std::ssize(kStops))]);
    }
  }
  if (draws.one_in(4)) params.stop_tokens = draws.tokens(draws.in(1, 12), engine.info().vocab);
  params.ignore_eos = draws.one_in(3);
  if (draws.one_in(2)) params.top_logprobs = static_cast<int>(draws.in(0, 3));
  return params;
}

std::vector<std::vector<Token>> draw_continuations(std::int64_t vocab, Draws& draws) {
  std::vector<std::vector<Token>> out;
  for (std::int64_t n = draws.in(1, 5); n > 0; --n) {
    std::vector<Token> tokens;
    if (!out.empty() && draws.one_in(2)) {
      tokens = draws.pick(out);
      tokens.resize(static_cast<std::size_t>(draws.below(std::ssize(tokens) + 1)));
    }
    const std::vector<Token> more =
        draws.tokens(draws.in(1, draws.one_in(8) ? 40 : 5), draws.one_in(2) ? 3 : vocab);
    tokens.insert(tokens.end(), more.begin(), more.end());
    out.push_back(std::move(tokens));
  }
  return out;
}

}  // namespace dendrite::fuzz
