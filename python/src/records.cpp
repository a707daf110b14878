// What an engine is, and what calls tell: plain records, whose fields go by C++'s names.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "record.h"

namespace dendrite::python {
namespace {

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
      .field("experts", &EngineInfo::experts, "That a layer's tokens choose from, of a mixture.")
      .field("experts_per_token", &EngineInfo::experts_per_token,
             "That each takes, a shared one included.")
      .field("idle_parameters", &EngineInfo::idle_parameters,
             "Of experts that a token does not take.")
      .field("quantization", &EngineInfo::quantization, "What matrices of layers were rounded to.")
      .field("output_quantization", &EngineInfo::output_quantization,
             "What the matrix that gives the logits was rounded to.")
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
      .field("mtp_layers", &EngineInfo::mtp_layers, "Of a head that predicts one token further.")
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
  bind_stats(module);
  bind_chunk_info(module);
  bind_shortage(module);
  bind_composition(module);
}

}  // namespace dendrite::python
