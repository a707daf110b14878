#include "fuzz/shrink.h"

#include <algorithm>
#include <utility>

namespace dendrite::fuzz {

Shrinker::Shrinker(Fails fails, Listed listed, double seconds)
    : fails_(std::move(fails)),
      listed_(std::move(listed)),
      end_(std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(
               std::chrono::duration<double>(seconds))) {}

bool Shrinker::accept(Program& best, const Program& candidate) {
  if (over()) return false;
  ++tried_;
  if (!fails_(candidate)) return false;
  best = candidate;
  return true;
}

Program Shrinker::shrink(Program program) {
  remove_ops(program);
  simplify_setting(program);
  if (over() || !fails_(program)) return program;
  const Program with_draws = listed_(program);
  if (!accept(program, with_draws)) return program;
  while (!over() && (remove_ops(program) | simplify_draws(program))) {
  }
  return program;
}

/// Halves, quarters and so on are left out, from the end: what comes late is needed least.
bool Shrinker::remove_ops(Program& best) {
  const std::size_t before = best.ops.size();
  for (std::size_t size = std::max<std::size_t>(1, before / 2);; size /= 2) {
    for (std::size_t end = best.ops.size(); end > 0 && !over();) {
      const std::size_t begin = end > size ? end - size : 0;
      Program candidate = best;
      candidate.ops.erase(candidate.ops.begin() + static_cast<std::ptrdiff_t>(begin),
                          candidate.ops.begin() + static_cast<std::ptrdiff_t>(end));
      accept(best, candidate);
      end = begin;
    }
    if (size == 1 || over()) break;
  }
  return best.ops.size() < before;
}

void Shrinker::simplify_setting(Program& best) {
  const auto attempt = [&](auto change) {
    Program candidate = best;
    change(candidate.setting);
    accept(best, candidate);
  };
  attempt([](Setting& s) { s.threads = 1; });
  attempt([](Setting& s) { s.prefix_index = false; });
  attempt([](Setting& s) { s.kernels.clear(); });
  attempt([](Setting& s) { s.kv_dtype = "auto"; });
  attempt([](Setting& s) { s.dtype = "f32"; });
}

bool Shrinker::simplify_draws(Program& best) {
  bool simpler = false;
  for (std::size_t i = 0; i < best.ops.size(); ++i) {
    const auto attempt = [&](auto change) {
      Program candidate = best;
      change(candidate.ops[i].given);
      if (candidate.ops[i].given == best.ops[i].given) return false;
      const bool accepted = accept(best, candidate);
      simpler |= accepted;
      return accepted;
    };
    if (!best.ops[i].listed) continue;
    while (attempt([](auto& given) { given.resize(given.size() / 2); })) {
    }
    while (attempt(
        [](auto& given) { given.resize(given.size() - std::min<std::size_t>(1, given.size())); })) {
    }
    for (std::size_t d = 0; d < best.ops[i].given.size(); ++d) {
      if (attempt([d](auto& given) { given[d] = 0; })) continue;
      while (attempt([d](auto& given) { given[d] /= 2; })) {
      }
      while (attempt([d](auto& given) { given[d] -= std::min(1u, given[d]); })) {
      }
    }
  }
  return simpler;
}

}  // namespace dendrite::fuzz
