#include "model/parts/experts_beside.h"

#include <utility>

namespace dendrite {

ExpertsBeside::ExpertsBeside(const Routing& routing, ExpertsBesideWeights weights, Backend& backend,
                             const LayerScratch& scratch)
    : behind_(std::move(weights.behind)),
      factor_(weights.factor),
      dense_(std::move(weights.dense), backend, scratch),
      experts_(routing, std::move(weights.experts), backend, scratch),
      backend_(backend),
      scratch_(scratch) {}

void ExpertsBeside::add(Tensor hidden) {
  const Tensor sum = scratch_.sum.first_rows(hidden.rows);
  backend_.copy(sum, scratch_.zeros.first_rows(hidden.rows));
  dense_.add_to(sum, hidden);
  experts_.add_to(sum, hidden);
  backend_.add_normed(hidden, sum, data_or_null(behind_.weight), behind_.eps, factor_);
}

}  // namespace dendrite
