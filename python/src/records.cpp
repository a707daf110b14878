// Counters and what an engine is: plain records, whose fields go by C++'s names.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <utility>

#include "bindings.h"

namespace dendrite::python {
namespace {

/// Binds a record field by field, and lists their names for asdict(), repr and pickle.
template <typename T>
class Record {
 public:
  Record(nb::module_& module, const char* name, const char* doc) : type_(module, name, doc) {}

  template <typename V>
  Record& field(const char* name, V T::*member, const char* doc) {
    type_.def_ro(name, member, doc);
    names_.append(name);
    return stored(
        name, [member](const T& self) { return nb::cast(self.*member); },
        [member](T& self, nb::handle value) { self.*member = nb::cast<V>(value); });
  }

  /// A member that pickles know, and that is a field under no or another form.
  template <typename Get, typename Set>
  Record& stored(const char* name, Get&& get, Set&& set) {
    stored_.push_back({name, std::forward<Get>(get), std::forward<Set>(set)});
    return *this;
  }

  template <typename Function, typename... Extra>
  Record& property(const char* name, Function&& function, const char* doc, const Extra&... extra) {
    type_.def_prop_ro(name, std::forward<Function>(function), doc, extra...);
    names_.append(name);
    return *this;
  }

  void finish() {
    type_.attr("_fields") = nb::tuple(names_);
    type_.def(
        "asdict",
        [](nb::handle self) {
          nb::dict all;
          for (const nb::handle name : self.attr("_fields")) {
            const nb::object value = nb::getattr(self, name);
            all[name] = nb::hasattr(value, "asdict") ? value.attr("asdict")() : value;
          }
          return all;
        },
        "All fields, in their order; records in them as dictionaries, too.",
        nb::sig("def asdict(self) -> dict[str, Any]"));
    type_.def("__repr__", [](nb::handle self) {
      std::string text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
      const char* separator = "";
      for (const nb::handle name : self.attr("_fields")) {
        text += separator + nb::cast<std::string>(name) + "=" +
                nb::cast<std::string>(nb::repr(nb::getattr(self, name)));
        separator = ", ";
      }
      return text + ")";
    });
    type_.def(
        "__getstate__",
        [stored = stored_](const T& self) {
          nb::dict state;
          for (const Stored& each : stored) state[each.name] = each.get(self);
          return state;
        },
        nb::sig("def __getstate__(self) -> dict[str, Any]"));
    type_.def(
        "__setstate__",
        [stored = stored_](T& self, const nb::dict& state) {
          new (&self) T{};
          for (const Stored& each : stored) each.set(self, state[each.name]);
        },
        nb::arg("state"), nb::sig("def __setstate__(self, state: dict[str, Any]) -> None"));
  }

  nb::class_<T>& type() { return type_; }

 private:
  struct Stored {
    const char* name;
    std::function<nb::object(const T&)> get;
    std::function<void(T&, nb::handle)> set;
  };

  nb::class_<T> type_;
  nb::list names_;
  std::vector<Stored> stored_;
};

/// For Record::stored: a text, whatever its bytes.
template <typename T>
auto text_getter(std::string T::*member) {
  return [member](const T& self) -> nb::object {
    return nb::bytes((self.*member).data(), (self.*member).size());
  };
}
template <typename T>
auto text_setter(std::string T::*member) {
  return [member](T& self, nb::handle value) {
    const auto bytes = nb::cast<nb::bytes>(value);
    self.*member = std::string(bytes.c_str(), bytes.size());
  };
}

/// For Record::stored: an enumerator, as its number.
template <typename T, typename E>
auto enum_getter(E T::*member) {
  return [member](const T& self) -> nb::object { return nb::int_(static_cast<int>(self.*member)); };
}
template <typename T, typename E>
auto enum_setter(E T::*member) {
  return
      [member](T& self, nb::handle value) { self.*member = static_cast<E>(nb::cast<int>(value)); };
}

void bind_info(nb::module_& module) {
  Record<EngineInfo> info(module, "EngineInfo", "What a model folder holds and what computes it.");
  info.field("model_path", &EngineInfo::model_path, "The folder, or the GGUF file.")
      .field("model_type", &EngineInfo::model_type, "The family, as config.json calls it.")
      .field("parameters", &EngineInfo::parameters, "Of the model.")
      .field("weight_bytes", &EngineInfo::weight_bytes, "In memory.")
      .field("layers", &EngineInfo::layers, "Layers.")
      .field("dim", &EngineInfo::dim, "Width of the hidden state.")
      .field("ffn_dim", &EngineInfo::ffn_dim, "Width of the feed-forward part.")
      .field("heads", &EngineInfo::heads, "Query heads.")
      .field("kv_heads", &EngineInfo::kv_heads, "Key and value heads.")
      .field("head_dim", &EngineInfo::head_dim, "Width of a head.")
      .field("vocab", &EngineInfo::vocab, "Logits a token.")
      .field("max_positions", &EngineInfo::max_positions, "The longest context, in tokens.")
      .field("stored_dtype", &EngineInfo::stored_dtype, "Of the checkpoint's weights.")
      .field("compute_dtype", &EngineInfo::compute_dtype, "Of products.")
      .field("kv_dtype", &EngineInfo::kv_dtype, "Of K and V.")
      .field("quantization", &EngineInfo::quantization, "What matrices of layers were rounded to.")
      .field("rope", &EngineInfo::rope, "The kind of rotary embedding.")
      .field("bos", &EngineInfo::bos, "Tokens that begin a text.")
      .field("eos", &EngineInfo::eos, "Tokens that end one.")
      .field("has_tokenizer", &EngineInfo::has_tokenizer, "Whether texts can be encoded.")
      .field("has_chat_template", &EngineInfo::has_chat_template, "Whether chats can be rendered.")
      .field("dummy_weights", &EngineInfo::dummy_weights, "Weights are random numbers.")
      .field("device", &EngineInfo::device, "cpu or cuda.")
      .field("device_name", &EngineInfo::device_name,
             "Its name; of a GPU other than the first also its index: \"... (cuda:1)\".")
      .field("kernels", &EngineInfo::kernels, "The instruction path.")
      .field("numerics_key", &EngineInfo::numerics_key, "Equal keys compute equal bits.")
      .field("available_kernels", &EngineInfo::available_kernels, "Paths that this machine runs.")
      .field("attention", &EngineInfo::attention, "What computes attention.")
      .field("graphs", &EngineInfo::graphs, "On a GPU: which passes are CUDA graphs.")
      .field("threads", &EngineInfo::threads, "That compute.")
      .field("page_tokens", &EngineInfo::page_tokens, "Tokens of a KV page.")
      .field("kv_tokens", &EngineInfo::kv_tokens, "Of the pool.")
      .field("kv_token_bytes", &EngineInfo::kv_token_bytes, "Of K and V, a token.")
      .field("recurrent_layers", &EngineInfo::recurrent_layers, "Without K and V.")
      .field("state_bytes", &EngineInfo::state_bytes, "Of their state behind 16 tokens of a path.")
      .field("state_token_bytes", &EngineInfo::state_token_bytes, "What a token since then adds.")
      .field("states", &EngineInfo::states, "For how many there is memory.")
      .field("state_tokens", &EngineInfo::state_tokens, "For how many tokens since.")
      .field("warnings", &EngineInfo::warnings, "What a user should know.")
      .finish();
}

void bind_compatibility(nb::module_& module) {
  Record<Compatibility> all(module, "Compatibility",
                            "How a model's weights bear products that round their inputs.");
  all.property(
         "verdict", [](const Compatibility& self) { return name_of(self.verdict); },
         "The worst product's: compatible (score above 0.8, largest below 10), warn, or "
         "incompatible (score below 0.5).",
         nb::sig("def verdict(self) -> Literal['compatible', 'warn', 'incompatible']"))
      .stored("verdict", enum_getter(&Compatibility::verdict), enum_setter(&Compatibility::verdict))
      .field("score", &Compatibility::score,
             "The worst product's: by how much its rounding errors are larger than with even norm "
             "weights, as its inverse.")
      .field("largest", &Compatibility::largest,
             "Norm weight, as a multiple of its norm's median one.")
      .field("product", &Compatibility::product, "The one of that score; empty: all have 1.")
      .field("products", &Compatibility::products, "Behind norms.")
      .field("warned", &Compatibility::warned, "Of them.")
      .field("incompatible", &Compatibility::incompatible, "Of them.")
      .field("unrounded", &Compatibility::unrounded,
             "Of the incompatible ones: that therefore round nothing here.")
      .finish();
}

void bind_branch_stats(nb::module_& module) {
  Record<BranchStats> stats(module, "BranchStats", "One branch, since it was made.");
  stats.field("tokens_generated", &BranchStats::tokens_generated, "By decode.")
      .field("tokens_computed", &BranchStats::tokens_computed, "Rows that it asked for first.")
      .field("tokens_regenerated", &BranchStats::tokens_regenerated,
             "Of those: of tokens whose K and V had been evicted.")
      .field("prompt_shared", &BranchStats::prompt_shared,
             "Of the prompt_length tokens of its prompt: those that prefill found, or had from "
             "others who brought them at the same time. All other ones it computed.")
      .field("steps", &BranchStats::steps, "That it took part in.")
      .field("milliseconds", &BranchStats::milliseconds, "That those steps took.")
      .field("pages", &BranchStats::pages, "That it can read.")
      .field("own_pages", &BranchStats::own_pages, "Of them: those that dropping it would free.")
      .field("shared_pages", &BranchStats::shared_pages, "Of them: held by others as well.")
      .finish();
}

void bind_speculation_stats(nb::module_& module) {
  Record<SpeculationStats> stats(module, "SpeculationStats",
                                 "What speculation did, beside tokens_drafted and tokens_accepted. "
                                 "A draft: the tokens proposed for a branch whose rows one step "
                                 "computed.");
  stats.field("drafts", &SpeculationStats::drafts, "Of a branch and step.")
      .field("tokens_budget", &SpeculationStats::tokens_budget, "That they could have had.")
      .field("tokens_proposed", &SpeculationStats::tokens_proposed, "With a row or without.")
      .field("tokens_wasted", &SpeculationStats::tokens_wasted, "Of tokens_drafted: not accepted.")
      .field("tokens_shared", &SpeculationStats::tokens_shared,
             "Of tokens_accepted: on rows that another branch took as well.")
      .field("siblings_taken", &SpeculationStats::siblings_taken,
             "Of tokens_accepted: not the first choice after the text before them.")
      .field("tokens_accepted_as_chain", &SpeculationStats::tokens_accepted_as_chain,
             "Of tokens_accepted: what first choices alone had given.")
      .field("fallbacks", &SpeculationStats::fallbacks,
             "Times that a branch wanted a draft and there could be none.")
      .property("accept_depth", &SpeculationStats::accept_depth, "Tokens accepted a draft.")
      .field("accept_depth_by_position", &SpeculationStats::accept_depth_by_position,
             "Drafts of which more tokens were accepted than 0, 1, 2, ...")
      .field("steps_drafted", &SpeculationStats::steps_drafted, "Steps with drafts.")
      .field("steps_plain", &SpeculationStats::steps_plain,
             "Steps that had none, though they were wanted.")
      .field("steps_drafted_seconds", &SpeculationStats::steps_drafted_seconds, "Their time.")
      .field("steps_plain_seconds", &SpeculationStats::steps_plain_seconds, "Their time.")
      .field("draft_seconds", &SpeculationStats::draft_seconds,
             "For proposing drafts and growing their trees.")
      .finish();
}

void bind_session_stats(nb::module_& module) {
  Record<Stats> stats(module, "Stats",
                      "Counters of a session since it began; pages_total and pages_used are the "
                      "whole engine's.");
  stats.field("tokens_computed", &Stats::tokens_computed, "Rows that went through the model.")
      .field("tokens_independent", &Stats::tokens_independent,
             "Rows that requests without sharing would have taken.")
      .field("tokens_generated", &Stats::tokens_generated, "By decode.")
      .field("tokens_ahead", &Stats::tokens_ahead, "Drawn ahead of the calls that want them.")
      .field("tokens_taken", &Stats::tokens_taken, "Of those: taken over by a call.")
      .field("tokens_drafted", &Stats::tokens_drafted, "Rows of tokens that speculation proposed.")
      .field("tokens_accepted", &Stats::tokens_accepted, "Of those: drawn.")
      .field("tokens_reused", &Stats::tokens_reused, "Prompt tokens that were known already.")
      .field("tokens_moved", &Stats::tokens_moved, "That compositions took from elsewhere.")
      .field("tokens_repaired", &Stats::tokens_repaired, "That they computed again.")
      .field("compositions", &Stats::compositions, "compose, edit, compact, join.")
      .field("tokens_discarded", &Stats::tokens_discarded, "Rows begun early and for nothing.")
      .field("tokens_redundant", &Stats::tokens_redundant, "Rows whose K and V were held.")
      .field("steps", &Stats::steps, "Steps of the engine.")
      .field("forks", &Stats::forks, "Branches forked.")
      .field("prunes", &Stats::prunes, "Branches dropped.")
      .field("copies_on_write", &Stats::copies_on_write, "Pages copied.")
      .field("evictions", &Stats::evictions, "Runs of tokens that lost K and V.")
      .field("preemptions", &Stats::preemptions, "Times that a decoding branch lost them.")
      .field("tokens_regenerated", &Stats::tokens_regenerated, "Rows computed again for that.")
      .field("branches_live", &Stats::branches_live, "Branches now.")
      .field("largest_batch_rows", &Stats::largest_batch_rows, "Rows of the widest step.")
      .field("kv_bytes_unique", &Stats::kv_bytes_unique, "KV at the widest step, pages once.")
      .field("kv_bytes_naive", &Stats::kv_bytes_naive, "The same without sharing.")
      .field("pages_total", &Stats::pages_total, "Of the engine's pool.")
      .field("pages_used", &Stats::pages_used, "Of the engine's pool.")
      .field("fork_ns", &Stats::fork_ns, "Median time of a fork, of the most recent ones.")
      .field("speculation", &Stats::speculation, "What speculation did.")
      .finish();
}

void bind_kl_histogram(nb::module_& module) {
  Record<KlHistogram> histogram(module, "KlHistogram",
                                "How large the errors of compositions were (Estimate.kl_mean).");
  histogram
      .property(
          "bounds", [](const KlHistogram&) { return KlHistogram::kBounds; }, "In nats.")
      .field("counts", &KlHistogram::counts, "Up to each bound; the last: above all.")
      .field("sum", &KlHistogram::sum, "Of all.")
      .finish();
}

void bind_engine_stats(nb::module_& module) {
  Record<EngineStats> stats(module, "EngineStats",
                            "An engine, all of its sessions together, since it was loaded.");
  stats.field("sessions", &EngineStats::sessions, "Alive.")
      .field("branches_live", &EngineStats::branches_live, "Of all sessions.")
      .field("steps", &EngineStats::steps, "Steps made.")
      .field("steps_early", &EngineStats::steps_early,
             "Of them: begun before the last one's tokens were read.")
      .field("rows", &EngineStats::rows, "That went through the model.")
      .field("rows_redundant", &EngineStats::rows_redundant, "Of them: K and V were held.")
      .field("rows_discarded", &EngineStats::rows_discarded, "Beside rows: for nothing.")
      .field("rows_independent", &EngineStats::rows_independent, "Without sharing.")
      .field("tokens_generated", &EngineStats::tokens_generated, "By decode.")
      .field("tokens_drafted", &EngineStats::tokens_drafted, "Rows of drafts.")
      .field("tokens_accepted", &EngineStats::tokens_accepted, "Of those: drawn.")
      .field("tokens_reused", &EngineStats::tokens_reused, "Prompt tokens known already.")
      .field("tokens_regenerated", &EngineStats::tokens_regenerated, "Computed again.")
      .field("forks", &EngineStats::forks, "Branches forked.")
      .field("prunes", &EngineStats::prunes, "Branches dropped.")
      .field("copies_on_write", &EngineStats::copies_on_write, "Pages copied.")
      .field("copied_tokens", &EngineStats::copied_tokens, "Slots that those copies moved.")
      .field("pages_acquired", &EngineStats::pages_acquired, "Taken from the free list.")
      .field("evictions", &EngineStats::evictions, "Runs of tokens that lost K and V.")
      .field("preemptions", &EngineStats::preemptions, "Of branches that were decoding.")
      .field("segment_splits", &EngineStats::segment_splits, "Rewinds into a segment.")
      .field("segments_absorbed", &EngineStats::segments_absorbed, "Merged into a child.")
      .field("prefix_lookups", &EngineStats::prefix_lookups, "Of prompts.")
      .field("prefix_hits", &EngineStats::prefix_hits, "That matched a token at least.")
      .field("prefix_looked_up_tokens", &EngineStats::prefix_looked_up_tokens, "Of the prompts.")
      .field("prefix_hit_tokens", &EngineStats::prefix_hit_tokens, "Of them, known.")
      .field("prefix_evictions", &EngineStats::prefix_evictions, "Prompts forgotten.")
      .field("compositions", &EngineStats::compositions, "compose, edit, compact, join.")
      .field("tokens_moved", &EngineStats::tokens_moved, "That they took from elsewhere.")
      .field("tokens_repaired", &EngineStats::tokens_repaired, "That they computed again.")
      .field("composed_hits", &EngineStats::composed_hits, "Compositions that were held already.")
      .field("composed_evictions", &EngineStats::composed_evictions, "Compositions forgotten.")
      .field("bytes_moved", &EngineStats::bytes_moved, "K and V that they wrote.")
      .field("move_seconds", &EngineStats::move_seconds, "Of the device, for these.")
      .field("chunk_lookups", &EngineStats::chunk_lookups, "Calls of register_chunk.")
      .field("chunk_hits", &EngineStats::chunk_hits, "Of them: the chunk was known.")
      .field("chunk_hit_tokens", &EngineStats::chunk_hit_tokens, "Of those, with K and V.")
      .field("chunk_reads", &EngineStats::chunk_reads, "Pieces of compositions that were chunks.")
      .field("chunk_read_hits", &EngineStats::chunk_read_hits, "Of them: with all K and V.")
      .field("chunk_fills", &EngineStats::chunk_fills, "Chunks computed, again ones included.")
      .field("chunk_fill_seconds", &EngineStats::chunk_fill_seconds, "That this took.")
      .field("chunk_evictions", &EngineStats::chunk_evictions, "Idle ones that lost K and V.")
      .field("chunks_forgotten", &EngineStats::chunks_forgotten, "To stay below chunk_tokens.")
      .field("events", &EngineStats::events, "That anybody listened to.")
      .field("step_seconds", &EngineStats::step_seconds, "Spent in steps.")
      .field("busy_seconds", &EngineStats::busy_seconds, "Spent in steps, draws and texts.")
      .field("bytes_read", &EngineStats::bytes_read, "That steps had to read: weights, K and V.")
      .field("calls", &EngineStats::calls, "That are over.")
      .field("call_seconds", &EngineStats::call_seconds, "Of these, since each began.")
      .field("queued_seconds", &EngineStats::queued_seconds, "Of these, before the first row.")
      .field("first_tokens", &EngineStats::first_tokens, "Calls that generated a token.")
      .field("first_token_seconds", &EngineStats::first_token_seconds, "Until then, of these.")
      .field("passes", &EngineStats::passes, "Over the model.")
      .field("passes_without_graph", &EngineStats::passes_without_graph, "Of them, on a GPU.")
      .field("passes_without_tensor_cores", &EngineStats::passes_without_tensor_cores,
             "Of them, on a GPU.")
      .field("segments", &EngineStats::segments, "Of the tree, now.")
      .field("pool_pages", &EngineStats::pool_pages, "All pages.")
      .field("pages_used", &EngineStats::pages_used, "Of them, held.")
      .field("pages_free", &EngineStats::pages_free, "Of them, free.")
      .field("slots_used", &EngineStats::slots_used, "Slots of pages that hold K and V.")
      .field("pool_utilisation", &EngineStats::pool_utilisation,
             "Slots that hold K and V, of those of pages in use.")
      .field("pool_utilisation_peak", &EngineStats::pool_utilisation_peak,
             "The same when the most pages were in use.")
      .field("page_tokens", &EngineStats::page_tokens, "Tokens of a page.")
      .field("page_bytes", &EngineStats::page_bytes, "Bytes of a page.")
      .field("states_used", &EngineStats::states_used, "Of EngineInfo.states.")
      .field("state_tokens_used", &EngineStats::state_tokens_used, "Of EngineInfo.state_tokens.")
      .field("prefix_entries", &EngineStats::prefix_entries, "Prompts remembered.")
      .field("prefix_tokens", &EngineStats::prefix_tokens, "Of them, shared prefixes once.")
      .field("composed_entries", &EngineStats::composed_entries, "Compositions remembered.")
      .field("chunk_entries", &EngineStats::chunk_entries, "Chunks registered.")
      .field("chunk_warm", &EngineStats::chunk_warm, "Of them: with all K and V.")
      .field("chunk_tokens", &EngineStats::chunk_tokens, "Of all registered chunks.")
      .field("chunk_pages", &EngineStats::chunk_pages, "That chunks hold, each once.")
      .field("largest_batch_rows", &EngineStats::largest_batch_rows, "Of the widest step.")
      .field("unique_bytes", &EngineStats::unique_bytes, "KV at the last step, pages once.")
      .field("naive_bytes", &EngineStats::naive_bytes, "KV at the last step, without sharing.")
      .field("copy_on_write_rate", &EngineStats::copy_on_write_rate, "Page copies a fork.")
      .field("move_bandwidth", &EngineStats::move_bandwidth, "Bytes a second, read and written.")
      .field("tokens_per_second", &EngineStats::tokens_per_second,
             "Generated a busy second, of the last 256 turns.")
      .field("read_bandwidth", &EngineStats::read_bandwidth,
             "Bytes a second that steps had to read, of the last 256 turns.")
      .field("estimate_factor", &EngineStats::estimate_factor, "Of step estimates, by audits.")
      .field("estimates", &EngineStats::estimates, "Of errors of compositions.")
      .field("audits", &EngineStats::audits, "Errors that audits found.")
      .field("speculation", &EngineStats::speculation, "What speculation did.");
  stats.type().def(
      "prometheus", [](const EngineStats& self) { return to_prometheus(self); },
      "The Prometheus text format 0.0.4.");
  stats.finish();
}

void bind_chunk_info(nb::module_& module) {
  Record<ChunkInfo> info(module, "ChunkInfo", "A registered chunk as it stands.");
  info.property(
          "name", [](const ChunkInfo& self) { return to_str(self.name); },
          "Of who registered it first.")
      .stored("name", text_getter(&ChunkInfo::name), text_setter(&ChunkInfo::name))
      .field("key", &ChunkInfo::key, "SHA-256 of its content, in hex: Chunk.key.")
      .field("id", &ChunkInfo::id, "Key, left context and model, in hex: no other has it.")
      .field("beginning", &ChunkInfo::beginning, "Its first tokens, at most 16.")
      .property(
          "text", [](const ChunkInfo& self) { return to_str(self.text); },
          "Of those; empty where the model has no tokenizer.")
      .stored("text", text_getter(&ChunkInfo::text), text_setter(&ChunkInfo::text))
      .field("left_tokens", &ChunkInfo::left_tokens, "That it is computed behind.")
      .field("tokens", &ChunkInfo::tokens, "Its own.")
      .field("tokens_held", &ChunkInfo::tokens_held, "Of them: K and V are there.")
      .property(
          "state", [](const ChunkInfo& self) { return name_of(self.state); },
          "registered, filling, warm (all K and V are there), cold or forgotten.",
          nb::sig("def state(self) -> Literal['registered', 'filling', 'warm', 'cold', "
                  "'forgotten']"))
      .stored("state", enum_getter(&ChunkInfo::state), enum_setter(&ChunkInfo::state))
      .field("uses", &ChunkInfo::uses, "Handles that live.")
      .field("hits", &ChunkInfo::hits, "Times that register_chunk found it known.")
      .field("reads", &ChunkInfo::reads, "Pieces of compositions that were this chunk.")
      .field("read_hits", &ChunkInfo::read_hits, "Of them: all K and V were there.")
      .field("last_use", &ChunkInfo::last_use, "The larger, the more recent.")
      .field("fill_ms", &ChunkInfo::fill_ms, "That computing it took the last time.")
      .field("pages", &ChunkInfo::pages, "That hold it and what it is computed behind.")
      .field("own_pages", &ChunkInfo::own_pages, "Of them: those that dropping it would free.")
      .property("hit_rate", &ChunkInfo::hit_rate,
                "Of the times that it was registered or read, the part at which it was there.")
      .finish();
}

void bind_shortage(nb::module_& module) {
  Record<KvShortage> shortage(module, "KvShortage",
                              "Why a call ended for want of pages: what one branch needs at once, "
                              "and who holds the pool. str() is a sentence with what would help.");
  shortage.field("tokens", &KvShortage::tokens, "Of the branch.")
      .field("pages_needed", &KvShortage::pages_needed, "More than it has, for its next step.")
      .field("pages_free", &KvShortage::pages_free, "Of the pool.")
      .field("pages_total", &KvShortage::pages_total, "Of the pool.")
      .field("pages_held", &KvShortage::pages_held, "By the branch, and by what it is moved from.")
      .field("pages_of_branches", &KvShortage::pages_of_branches, "By others.")
      .field("pages_on_hold", &KvShortage::pages_on_hold,
             "By branches on hold, and by what they wait for.")
      .field("pages_of_compositions", &KvShortage::pages_of_compositions,
             "Of these: by branches that something was moved to.")
      .field("pages_of_chunks", &KvShortage::pages_of_chunks, "By chunks, and by no branch.")
      .field("pages_of_sources", &KvShortage::pages_of_sources,
             "By what compositions lack yet, and by none of the above.")
      .field("pages_of_calls", &KvShortage::pages_of_calls, "By calls in progress.")
      .field("page_tokens", &KvShortage::page_tokens, "Tokens of a page.")
      .property("kv_tokens_needed", &KvShortage::kv_tokens_needed,
                "The least kv_tokens with which the pages that are lacking would be free.");
  shortage.type().def("__str__", &KvShortage::message);
  shortage.finish();
}

void bind_estimate(nb::module_& module) {
  Record<Estimate> estimate(module, "Estimate",
                            "How far a composition is from computing all of it, as KL(exact || "
                            "composed) of next-token distributions in nats, over several "
                            "positions.");
  estimate
      .property(
          "kind",
          [](const Estimate& self) {
            return self.kind == Estimate::Kind::kAudit ? "audit" : "step";
          },
          "step: against the same composition with twice the repair, an estimate and no bound; "
          "audit: against the exact branch.",
          nb::sig("def kind(self) -> Literal['step', 'audit']"))
      .stored("kind", enum_getter(&Estimate::kind), enum_setter(&Estimate::kind))
      .field("kl_mean", &Estimate::kl_mean, "The mean.")
      .field("kl_p95", &Estimate::kl_p95, "Of 95 in 100 positions no more than this.")
      .field("kl_max", &Estimate::kl_max, "The largest.")
      .field("top1", &Estimate::top1,
             "The part of positions at which both say the same token is the likeliest.")
      .field("positions", &Estimate::positions, "Compared.")
      .finish();
}

void bind_composition(nb::module_& module) {
  bind_estimate(module);
  Record<Composition> composition(
      module, "Composition",
      "What a branch is composed of, in tokens: the sum of kept, moved, repaired and computed is "
      "its length.");
  composition
      .property(
          "exactness", [](const Composition& self) { return name_of(self.exactness); },
          "exact: K and V are what computing its tokens gives; composed: some were computed in "
          "another context and moved here.",
          nb::sig("def exactness(self) -> Literal['exact', 'composed']"))
      .stored("exactness", enum_getter(&Composition::exactness),
              enum_setter(&Composition::exactness))
      .field("kept", &Composition::kept,
             "From its beginning on, as they were in the branch it is a fork of.")
      .field("moved", &Composition::moved, "From elsewhere.")
      .field("repaired", &Composition::repaired, "Of pieces that were moved, but computed here.")
      .field("computed", &Composition::computed, "Given as text, or grown since.")
      .field("dropped", &Composition::dropped, "Of the branch that was edited, not in this one.")
      .field("moves", &Composition::moves,
             "Most often a K was rotated, or what it was computed behind.")
      .field("exact_behind", &Composition::exact_behind,
             "Of its first tokens, exact K and V are there as well.")
      .field("estimate", &Composition::estimate, "Of its error, where there is one.")
      .field("note", &Composition::note, "For people: what to know of it.")
      .finish();
}

}  // namespace

void bind_records(nb::module_& module) {
  bind_info(module);
  bind_compatibility(module);
  bind_branch_stats(module);
  bind_speculation_stats(module);
  bind_session_stats(module);
  bind_kl_histogram(module);
  bind_engine_stats(module);
  bind_chunk_info(module);
  bind_shortage(module);
  bind_composition(module);
}

}  // namespace dendrite::python
