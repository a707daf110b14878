#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "test_support.h"

namespace dendrite::testing_support {

/// A random tree of branches over the pages of one store, and query rows at its tips.
/// Every slot that no branch has written holds NaN.
class TreeFixture {
 public:
  struct Options {
    KvShape shape;
    std::int64_t heads = 1;
    AttentionWindow window;
    std::vector<std::int64_t> trunk_tokens = {64};  // one root a value
    int forks = 3;                // branches made by forking a random one at a random length
    std::int64_t max_new = 40;    // tokens a fork adds
    std::int64_t rows_a_tip = 1;  // the last rows of each branch are queries
    float soft_cap = 0;           // AttentionArgs
    bool sinks = false;           // AttentionArgs
  };

  TreeFixture(Backend& backend, const Options& options, std::uint32_t seed)
      : options_(options), random_(seed) {
    store_ = backend.make_kv_store(options.shape);
    const KvShape& shape = store_->shape();
    const std::vector<float> nan(
        static_cast<std::size_t>(shape.page_tokens * shape.kv_heads * shape.head_dim), kNan);
    for (std::int64_t page = 0; page < shape.pages; ++page) {
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        store_->write(static_cast<std::int32_t>(page), layer,
                      static_cast<std::int32_t>(shape.page_tokens), nan, nan);
      }
    }
    free_.resize(static_cast<std::size_t>(shape.pages));
    std::iota(free_.begin(), free_.end(), 0);
    for (std::size_t i = free_.size(); i > 1; --i) {
      std::swap(free_[i - 1],
                free_[static_cast<std::size_t>(random_.in(0, static_cast<std::int64_t>(i) - 1))]);
    }
    for (const std::int64_t tokens : options.trunk_tokens) {
      branches_.emplace_back();
      extend(branches_.back(), tokens);
    }
    for (int fork = 0; fork < options.forks; ++fork) {
      const auto parent =
          static_cast<std::size_t>(random_.in(0, static_cast<std::int64_t>(branches_.size()) - 1));
      fork_branch(parent, random_.in(1, branches_[parent].tokens));
    }
    // Depth-first order, as siblings that share pages: sorting by page lists does it.
    std::sort(branches_.begin(), branches_.end(),
              [](const Branch& a, const Branch& b) { return a.pages < b.pages; });
    for (std::size_t b = 0; b < branches_.size(); ++b) {
      const std::int64_t first =
          std::max<std::int64_t>(0, branches_[b].tokens - options.rows_a_tip);
      for (std::int64_t p = first; p < branches_[b].tokens; ++p) rows_.push_back({b, p});
    }
    query_dim_ = options.heads * shape.head_dim;
    queries_ = random_.normal(rows() * query_dim_);
    if (options.sinks) {
      sinks_ = random_.normal(options.heads, 2.0F);
      sinks_.front() = 30;  // more than all that is seen
      device_sinks_ = std::make_unique<Owned>(backend, 1, options.heads);
      device_sinks_->set(backend, sinks_);
    }
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  const KvStore& store() const { return *store_; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(store_->shape().head_dim)); }

  /// A legal plan for rows [begin, end); items are cut at random by rows and by blocks.
  AttentionPlan plan(std::int64_t begin, std::int64_t end, Random& cuts) const {
    const std::int64_t page_tokens = store_->shape().page_tokens;
    AttentionPlan plan;
    plan.window = options_.window;
    std::int64_t length = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      plan.positions.push_back(row(r).position);
      length = std::max(length, row(r).position + 1);
    }
    for (std::int64_t super = 0; super < length; super = super_block_end(super)) {
      std::vector<AttentionItem> open;  // of the previous block, may be extended
      std::vector<AttentionItem> items;
      for (std::int64_t block = super; block < std::min(super_block_end(super), length);
           block += kBlockTokens) {
        std::vector<AttentionItem> now;
        for (std::int64_t r = begin; r < end;) {
          const auto pages = pages_in(r, block);
          if (pages.empty()) {
            ++r;
            continue;
          }
          std::int64_t last = r + 1;
          std::int64_t item_end = std::min(row(r).position + 1, block + kBlockTokens);
          auto longest = pages;
          for (; last < end && cuts.in(0, 5) != 0; ++last) {
            const auto other = pages_in(last, block);
            const std::size_t common = std::min(other.size(), longest.size());
            const bool same_branch = row(last).branch == row(r).branch;
            if (other.empty() || (!same_branch && other != longest) ||
                !std::equal(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(common),
                            longest.begin())) {
              break;
            }
            if (other.size() > longest.size()) longest = other;
            item_end = std::max(item_end, std::min(row(last).position + 1, block + kBlockTokens));
          }
          AttentionItem item;
          item.begin = block;
          item.end = item_end;
          item.row_begin = static_cast<std::int32_t>(r - begin);
          item.row_end = static_cast<std::int32_t>(last - begin);
          // The run of blocks before, when it has these rows and its pages end here.
          bool joined = false;
          if (!open.empty() && cuts.in(0, 3) != 0) {
            for (AttentionItem& before : open) {
              if (before.row_begin == item.row_begin && before.row_end == item.row_end &&
                  before.end == block) {
                pages_of_[{before.begin, before.row_begin}].insert(
                    pages_of_[{before.begin, before.row_begin}].end(), longest.begin(),
                    longest.end());
                before.end = item.end;
                now.push_back(before);
                joined = true;
                break;
              }
            }
          }
          if (!joined) {
            pages_of_[{item.begin, item.row_begin}] = longest;
            now.push_back(item);
          }
          r = last;
        }
        for (const AttentionItem& before : open) {
          const bool extended = std::any_of(now.begin(), now.end(), [&](const AttentionItem& item) {
            return item.begin == before.begin && item.row_begin == before.row_begin;
          });
          if (!extended) items.push_back(before);
        }
        open = now;
      }
      items.insert(items.end(), open.begin(), open.end());
      if (items.empty()) continue;
      std::sort(items.begin(), items.end(), [](const AttentionItem& a, const AttentionItem& b) {
        return std::pair(a.begin, a.row_begin) < std::pair(b.begin, b.row_begin);
      });
      AttentionPlan::SuperBlock group;
      group.item_begin = static_cast<std::int32_t>(plan.items.size());
      for (AttentionItem& item : items) {
        const auto& pages = pages_of_[{item.begin, item.row_begin}];
        item.first_page = static_cast<std::int32_t>(plan.pages.size());
        plan.pages.insert(plan.pages.end(), pages.begin(), pages.end());
        plan.items.push_back(item);
      }
      group.item_end = static_cast<std::int32_t>(plan.items.size());
      plan.super_blocks.push_back(group);
      pages_of_.clear();
    }
    (void)page_tokens;
    return plan;
  }

  /// A copy of all pages in another format, which is to hold their values; K and V of each.
  std::unique_ptr<KvStore> copied(Backend& backend, KvFormat format) const {
    KvShape shape = store_->shape();
    shape.format = format;
    shape.values_are_keys = false;
    auto copy = backend.make_kv_store(shape);
    const auto tokens = static_cast<std::int32_t>(shape.page_tokens);
    std::vector<float> k(
        static_cast<std::size_t>(shape.page_tokens * shape.kv_heads * shape.head_dim));
    std::vector<float> v(k.size());
    for (std::int64_t page = 0; page < shape.pages; ++page) {
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        store_->read(static_cast<std::int32_t>(page), layer, tokens, k, v);
        copy->write(static_cast<std::int32_t>(page), layer, tokens, k, v);
      }
    }
    return copy;
  }

  /// Runs attention for rows [begin, end) under a random plan; returns [rows, heads * head_dim].
  /// `pages`: of copied(), instead of the own ones.
  std::vector<float> run(Backend& backend, std::int64_t begin, std::int64_t end,
                         std::uint32_t cut_seed, const KvStore* pages = nullptr) const {
    Random cuts(cut_seed);
    const AttentionPlan attention_plan = plan(begin, end, cuts);
    Owned q(backend, end - begin, query_dim_, query_dim_ + 8);
    Owned out(backend, end - begin, query_dim_, query_dim_ + 24);
    q.set(backend,
          std::span(queries_).subspan(static_cast<std::size_t>(begin * query_dim_),
                                      static_cast<std::size_t>((end - begin) * query_dim_)));
    AttentionArgs args;
    args.out = out.tensor;
    args.q = q.tensor;
    set_scores(args);
    args.kv = pages != nullptr ? pages : store_.get();
    args.layer = store_->shape().layers - 1;
    args.plan = &attention_plan;
    backend.attention(args);
    return out.get(backend);
  }

  /// The same for all rows by passes of a model of attention alone, which store the rows' own K and
  /// V: NaN before each pass. One result a pass.
  std::vector<std::vector<float>> run_passes(Backend& backend, int passes, std::uint32_t cut_seed) {
    Random cuts(cut_seed);
    const AttentionPlan attention_plan = plan(0, rows(), cuts);
    const KvShape& shape = store_->shape();
    const std::int64_t kv_dim = shape.kv_heads * shape.head_dim;
    const std::int64_t room = std::max<std::int64_t>(rows(), 256);  // for padded passes
    std::vector<Owned> qkv;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::int64_t columns = query_dim_ + shape.vectors() * kv_dim;
      qkv.emplace_back(backend, room, columns);
      auto values = rows_to_store(layer);
      values.resize(static_cast<std::size_t>(room * columns));
      qkv.back().set(backend, values);
    }
    const Owned out(backend, room, query_dim_);
    const std::int64_t rotary_dim = shape.head_dim / 2 * 2;
    std::vector<float> no_rotation(static_cast<std::size_t>(rows() * rotary_dim));
    for (std::size_t i = 0; i < no_rotation.size(); ++i) {
      no_rotation[i] = static_cast<std::int64_t>(i) % rotary_dim < rotary_dim / 2 ? 1.0f : 0.0f;
    }
    const Owned cos_sin(backend, room, rotary_dim);
    const std::vector<std::int32_t> tokens(rows_.size(), 0);
    std::vector<std::int64_t> slots;
    for (std::int64_t r = 0; r < rows(); ++r) slots.push_back(slot(r));
    PassInputs inputs;
    inputs.model = backend.new_model();
    inputs.kv = store_.get();
    inputs.heads = options_.heads;
    inputs.tokens = tokens;
    inputs.slots = slots;
    inputs.plans = std::span(&attention_plan, 1);
    inputs.first_position = std::ranges::min(attention_plan.positions);
    const PassTable table{no_rotation, cos_sin.tensor.data};
    inputs.tables = {&table, 1};
    inputs.max_rows = room;
    const auto ops = [&](const PassInputs& pass) {
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        RopeStore rope;
        rope.qkv = qkv[static_cast<std::size_t>(layer)].tensor.first_rows(std::ssize(pass.tokens));
        rope.heads = options_.heads;
        rope.kv_heads = shape.kv_heads;
        rope.head_dim = shape.head_dim;
        rope.rotary_dim = rotary_dim;
        rope.cos_sin = cos_sin.tensor.data;
        rope.slots = pass.slots;
        rope.extra_stores = pass.extra_stores;
        rope.kv = store_.get();
        rope.layer = layer;
        backend.rope_and_store(rope);
        AttentionArgs args;
        args.out = out.tensor.first_rows(rope.qkv.rows);
        args.q = rope.qkv.columns(0, query_dim_);
        set_scores(args);
        args.kv = store_.get();
        args.layer = layer;
        args.plan = &attention_plan;
        backend.attention(args);
      }
    };
    std::vector<std::vector<float>> results;
    for (int pass = 0; pass < passes; ++pass) {
      for (std::int64_t r = 0; r < rows(); ++r) lose(slot(r));
      backend.run_pass(inputs, ops);
      results.push_back(out.get(backend));
      results.back().resize(static_cast<std::size_t>(rows() * query_dim_));
    }
    return results;
  }

  /// The same in double precision, from what the store reads back.
  std::vector<double> reference() const {
    const KvShape& shape = store_->shape();
    const std::int64_t group = options_.heads / shape.kv_heads;
    const auto page_values =
        static_cast<std::size_t>(shape.page_tokens * shape.kv_heads * shape.head_dim);
    std::vector<double> out(static_cast<std::size_t>(rows() * query_dim_));
    std::vector<float> k_page(page_values);
    std::vector<float> v_page(page_values);
    for (std::int64_t r = 0; r < rows(); ++r) {
      const std::int64_t position = row(r).position;
      const std::int64_t first = options_.window.first_seen(position);
      std::vector<float> k;
      std::vector<float> v;
      const auto& pages = branches_[row(r).branch].pages;
      for (std::int64_t p = 0; p <= position / shape.page_tokens; ++p) {
        const auto tokens = static_cast<std::int32_t>(
            std::min(shape.page_tokens, position + 1 - p * shape.page_tokens));
        store_->read(pages[static_cast<std::size_t>(p)], shape.layers - 1, tokens, k_page, v_page);
        const auto count = static_cast<std::ptrdiff_t>(tokens * shape.kv_heads * shape.head_dim);
        k.insert(k.end(), k_page.begin(), k_page.begin() + count);
        v.insert(v.end(), v_page.begin(), v_page.begin() + count);
      }
      for (std::int64_t h = 0; h < options_.heads; ++h) {
        const float* q = &queries_[static_cast<std::size_t>(r * query_dim_ + h * shape.head_dim)];
        const auto at = [&](std::int64_t t) {
          return (t * shape.kv_heads + h / group) * shape.head_dim;
        };
        std::vector<double> score(static_cast<std::size_t>(position + 1));
        double top = -1e300;
        for (std::int64_t t = first; t <= position; ++t) {
          double sum = 0;
          for (std::int64_t i = 0; i < shape.head_dim; ++i) {
            sum += static_cast<double>(q[i]) *
                   static_cast<double>(k[static_cast<std::size_t>(at(t) + i)]);
          }
          sum *= static_cast<double>(scale());
          const auto cap = static_cast<double>(options_.soft_cap);
          score[static_cast<std::size_t>(t)] = cap > 0 ? cap * std::tanh(sum / cap) : sum;
          top = std::max(top, score[static_cast<std::size_t>(t)]);
        }
        double total = 0;
        double* o = &out[static_cast<std::size_t>(r * query_dim_ + h * shape.head_dim)];
        for (std::int64_t t = first; t <= position; ++t) {
          const double weight = std::exp(score[static_cast<std::size_t>(t)] - top);
          total += weight;
          for (std::int64_t i = 0; i < shape.head_dim; ++i) {
            o[i] += weight * static_cast<double>(v[static_cast<std::size_t>(at(t) + i)]);
          }
        }
        if (options_.sinks) {
          total += std::exp(static_cast<double>(sinks_[static_cast<std::size_t>(h)]) - top);
        }
        for (std::int64_t i = 0; i < shape.head_dim; ++i) o[i] /= total;
      }
    }
    return out;
  }

 private:
  void set_scores(AttentionArgs& args) const {
    args.heads = options_.heads;
    args.scale = scale();
    args.soft_cap = options_.soft_cap;
    if (device_sinks_) args.sinks = device_sinks_->tensor.data;
  }
  struct Branch {
    std::vector<std::int32_t> pages;
    std::int64_t tokens = 0;
  };
  struct Row {
    std::size_t branch;
    std::int64_t position;
  };

  const Row& row(std::int64_t r) const { return rows_[static_cast<std::size_t>(r)]; }

  /// Where a row's own K and V are: page * page_tokens + offset.
  std::int64_t slot(std::int64_t r) const {
    const std::int64_t page_tokens = store_->shape().page_tokens;
    const std::int64_t position = row(r).position;
    const auto& pages = branches_[row(r).branch].pages;
    return pages[static_cast<std::size_t>(position / page_tokens)] * page_tokens +
           position % page_tokens;
  }

  /// Of all rows: query, K and, where it is stored, V.
  std::vector<float> rows_to_store(std::int64_t layer) const {
    const KvShape& shape = store_->shape();
    const std::int64_t kv_dim = shape.kv_heads * shape.head_dim;
    std::vector<float> values;
    std::vector<float> k(static_cast<std::size_t>(shape.page_tokens * kv_dim));
    std::vector<float> v(k.size());
    for (std::int64_t r = 0; r < rows(); ++r) {
      const std::int64_t offset = slot(r) % shape.page_tokens;
      store_->read(static_cast<std::int32_t>(slot(r) / shape.page_tokens), layer,
                   static_cast<std::int32_t>(offset + 1), k, v);
      const auto query = queries_.begin() + r * query_dim_;
      values.insert(values.end(), query, query + query_dim_);
      for (const auto* from : {&k, &v}) {
        if (from == &v && shape.values_are_keys) continue;
        const auto token = from->begin() + offset * kv_dim;
        values.insert(values.end(), token, token + kv_dim);
      }
    }
    return values;
  }

  /// Makes K and V of a slot NaN in all layers.
  void lose(std::int64_t slot) {
    const KvShape& shape = store_->shape();
    const auto page = static_cast<std::int32_t>(slot / shape.page_tokens);
    const std::int64_t offset = slot % shape.page_tokens;
    const std::int64_t kv_dim = shape.kv_heads * shape.head_dim;
    const auto tokens = static_cast<std::int32_t>(shape.page_tokens);
    std::vector<float> k(static_cast<std::size_t>(shape.page_tokens * kv_dim));
    std::vector<float> v(k.size());
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      store_->read(page, layer, tokens, k, v);
      for (auto* values : {&k, &v}) {
        const auto token = values->begin() + offset * kv_dim;
        std::fill(token, token + kv_dim, kNan);
      }
      store_->write(page, layer, tokens, k, v);
    }
  }

  std::int32_t take_page() {
    const std::int32_t page = free_.back();
    free_.pop_back();
    return page;
  }

  void extend(Branch& branch, std::int64_t count) {
    const KvShape& shape = store_->shape();
    const std::int64_t token_values = shape.kv_heads * shape.head_dim;
    for (const std::int64_t end = branch.tokens + count; branch.tokens < end;) {
      const std::int64_t used = branch.tokens % shape.page_tokens;
      if (used == 0) branch.pages.push_back(take_page());
      const std::int64_t now = std::min(end - branch.tokens, shape.page_tokens - used);
      // Earlier slots of the page go through read and write, which is exact.
      std::vector<float> k(static_cast<std::size_t>(shape.page_tokens * token_values));
      std::vector<float> v(k.size());
      for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
        if (used > 0)
          store_->read(branch.pages.back(), layer, static_cast<std::int32_t>(used), k, v);
        const auto new_k = random_.normal(now * token_values);
        const auto new_v = random_.normal(now * token_values);
        std::copy(new_k.begin(), new_k.end(), k.begin() + used * token_values);
        std::copy(new_v.begin(), new_v.end(), v.begin() + used * token_values);
        store_->write(branch.pages.back(), layer, static_cast<std::int32_t>(used + now), k, v);
      }
      branch.tokens += now;
    }
  }

  void fork_branch(std::size_t parent, std::int64_t length) {
    const KvShape& shape = store_->shape();
    Branch child;
    child.tokens = length;
    const std::int64_t whole = length / shape.page_tokens;
    const auto& pages = branches_[parent].pages;
    child.pages.assign(pages.begin(), pages.begin() + whole);
    if (const std::int64_t rest = length % shape.page_tokens; rest != 0) {
      child.pages.push_back(take_page());
      store_->copy_slots(pages[static_cast<std::size_t>(whole)], child.pages.back(),
                         static_cast<std::int32_t>(rest));
      store_->flush_copies();
    }
    extend(child, random_.in(1, options_.max_new));
    branches_.push_back(child);
  }

  /// Pages of the row's branch in the block, up to its position; empty if it sees nothing there.
  std::vector<std::int32_t> pages_in(std::int64_t r, std::int64_t block) const {
    const std::int64_t position = row(r).position;
    if (position < block) return {};
    if (options_.window.first_seen(position) >= block + kBlockTokens) return {};
    const std::int64_t page_tokens = store_->shape().page_tokens;
    const std::int64_t end = std::min(position + 1, block + kBlockTokens);
    const auto& pages = branches_[row(r).branch].pages;
    return {pages.begin() + block / page_tokens,
            pages.begin() + (end + page_tokens - 1) / page_tokens};
  }

  Options options_;
  Random random_;
  std::unique_ptr<KvStore> store_;
  std::vector<std::int32_t> free_;
  std::vector<Branch> branches_;
  std::vector<Row> rows_;
  std::int64_t query_dim_ = 0;
  std::vector<float> queries_;
  std::vector<float> sinks_;
  std::unique_ptr<Owned> device_sinks_;
  mutable std::map<std::pair<std::int64_t, std::int32_t>, std::vector<std::int32_t>> pages_of_;
};

}  // namespace dendrite::testing_support
