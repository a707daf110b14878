#pragma once

#include <cstdint>

#include "model/parts/layer_norms.h"

namespace dendrite {

/// Sizes of attention through a latent: what a token keeps is one vector for all heads.
struct LatentSizes {
  std::int64_t rank = 0;        // of the latent that keys and values are made of
  std::int64_t query_rank = 0;  // of that of queries; 0: they are made of the stream
  std::int64_t plain_dim = 0;   // of a head of q and k, less what RoPE rotates
  std::int64_t rotary_dim = 0;  // even
  std::int64_t value_dim = 0;

  std::int64_t query_dim() const { return plain_dim + rotary_dim; }
  /// Of what is kept, and of a query as it is compared with that: what is rotated, the latent.
  std::int64_t kept_dim() const { return rotary_dim + rank; }
};

struct LatentShape : LatentSizes {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  bool bias = false;   // of what makes latents, and on the way out
  bool pairs = false;  // stored so that the pairs that RoPE turns lie beside each other
  float norm_eps = 0;
  float scale = 0;  // of q . k
  LayerNorms norms{};

  /// Of the first product: latents, or queries, then what keys and values are made of.
  std::int64_t query_columns() const { return query_rank > 0 ? query_rank : heads * query_dim(); }
  std::int64_t in_columns() const { return query_columns() + kept_dim(); }
  /// Of what is compared: queries of all heads, and the one key.
  std::int64_t qk_columns() const { return (heads + 1) * kept_dim(); }
};

}  // namespace dendrite
