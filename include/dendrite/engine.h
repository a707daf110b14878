#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dendrite/compatibility.h"
#include "dendrite/events.h"
#include "dendrite/stats.h"
#include "dendrite/types.h"

namespace dendrite {

struct Restored;

struct EngineOptions {
  /// cpu, cuda (the first GPU) or cuda:N, the GPU of index N as CUDA counts them.
  std::string device = "cpu";
  /// Devices of that kind, by their indices, that compute the model together: each has its share of
  /// heads, of feed-forward values and of logits. Results depend on how many there are, not on
  /// which they are: 0, 0 gives on one device what two give. A CPU is device 0. Not with a
  /// `drafter`; a model some part of which has no shares is an Error. Empty: the one that `device`
  /// names.
  std::vector<int> devices{};
  std::string dtype = "auto";  ///< auto (the checkpoint's), f32, bf16, f16
  /// What the matrices of layers are rounded to when they are loaded, where they are stored as f32,
  /// f16 or bf16: fp8 (E4M3, a scale a row, as files of `quantize` in fp8: 8.1 to 8.5 bits a weight
  /// on a CPU, 8 to 8.3 on a GPU of compute capability 9.0 or later, 16 on older ones; on 9.0 what
  /// is multiplied is rounded to E4M3, too, elsewhere products have the bits of bf16), int8 (32
  /// neighbours share a scale: 8.5 bits) or int4 (and a minimum: 5). Empty: nothing.
  std::string quantization{};
  /// The same of the matrix that gives the logits: fp8 or int8. It is read whole in every step:
  /// with 8B in int4 a quarter of all that is. Where it is the embeddings, too, these are rounded
  /// with it. Empty: nothing.
  std::string output_quantization{};
  /// What K and V are kept as: auto (f32 with dtype f32 or f16, bf16 with bf16), bf16, or fp8
  /// (E4M3, and a power of two for each vector of a token and head): half of bf16's memory, with 3
  /// bits of each value behind its first. Not with a DFlash `drafter`.
  std::string kv_dtype = "auto";
  int threads = 0;       ///< 0: one a core
  int page_tokens = 16;  ///< 8, 16 or 32
  /// KV pool size in tokens. 0: from the model's size and the memory that is free beside the
  /// weights. More than fits there is an Error.
  std::int64_t kv_tokens = 0;
  /// Bytes that weights and pages take at most, with those of a draft model; for Engine::load_all
  /// all models' together. Pages are then what weights leave of it, where kv_tokens is 0. More than
  /// fits in it is an Error. 0: what is free.
  std::int64_t memory_bytes = 0;
  /// Of a model with recurrent layers: bytes for the states that branches go on from. What is not
  /// kept is computed again when a branch comes back to it, to the same bits. 0: on a GPU half of
  /// the free memory, on a CPU a quarter, at most 4 GiB.
  std::int64_t state_bytes = 0;
  std::string load_format =
      "auto";  ///< "dummy": random weights of the config's shapes, for speed tests
  /// Branches may have more tokens than the model has positions (EngineInfo::max_positions), beyond
  /// which it was not trained and its answers get worse. Unset, a longer prompt is an Error, and
  /// decode ends there with Finish::kLength. It changes nothing where RoPE is exact up to there
  /// alone (dynamic).
  bool beyond_positions = false;
  /// Forces an instruction path by name. Empty: the one that DENDRITE_TEST_KERNELS names in the
  /// environment, with which tests run on every path of a machine; else the best there is.
  std::string kernels{};
  bool prefix_index = true;  ///< reuse pages of prompts and live branches in prefill
  /// Tokens of registered chunks (Session::register_chunk), at most; the least recently used ones
  /// that nobody holds are forgotten.
  std::int64_t chunk_tokens = std::int64_t{16} << 20;
  /// A row's bits do not depend on its company, on chunking or on where the tree forked. false: on
  /// a GPU in bf16, products of few rows are faster and lose that for matrix products; elsewhere
  /// nothing changes.
  bool deterministic = true;
  /// On a GPU: kernels read page tables and plans in the host's memory instead of copies. The
  /// results are the same. Unset: where the GPU's memory is the host's.
  std::optional<bool> host_tables{};
  /// Where a long prompt is computed beside other calls, it is computed in pieces: as many rows a
  /// step as are expected to leave the step within this time. 0: 25 on a GPU, 100 on a CPU.
  /// Infinity: no limit.
  double step_target_ms = 0;
  /// A smaller model with the same tokens, a folder or an id like `model`, which drafts where a
  /// call asks for Speculate::kDraftModel. On the same device, with pages of its own. Empty: none.
  std::string draft_model{};
  std::int64_t draft_kv_tokens = 0;  ///< its kv_tokens
  /// A block drafter that was trained for this model (DFlash, arXiv 2602.06036): a folder or an id
  /// as z-lab publishes them, for calls that ask for Speculate::kDFlash, kDFlashTree or
  /// kSuffixDFlash. Or "mtp": the head that predicts one token further in the model's own files
  /// (tensors mtp.* of Qwen3-Next and Qwen3.5, EngineInfo::mtp_layers), for Speculate::kMtp and
  /// kSuffixMtp. It reads along with every step, and its K and V take memory with the pages'.
  /// Empty: none.
  std::string drafter{};
  bool weights = true;  ///< false: only configuration and text; sessions are refused
  /// With device cuda: the file of a backend that was built as a library (libdendrite_cuda.so), of
  /// the same build_id() (build.h). Empty: the one in this library.
  std::string backend_library{};
  /// Debug mode of the KV cache: canaries around pages, checks of pages and of the whole tree after
  /// every operation; a violation prints the tree and aborts. Slow. Unset: the environment's
  /// DENDRITE_KV_DEBUG=1.
  std::optional<bool> kv_debug{};
};

/// What a model folder holds and what computes it.
struct EngineInfo {
  std::string model_path;
  std::string model_type;
  std::int64_t parameters = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t layers = 0, dim = 0, ffn_dim = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  /// Of a mixture: experts that a layer's tokens choose from, how many each takes, a shared one
  /// included, and parameters that a token therefore does not meet.
  std::int64_t experts = 0, experts_per_token = 0, idle_parameters = 0;
  std::int64_t max_positions = 0;
  std::string stored_dtype, compute_dtype, kv_dtype, rope;
  std::string quantization, output_quantization;  ///< as EngineOptions has them
  std::vector<Token> bos, eos;
  bool has_tokenizer = false, has_chat_template = false, dummy_weights = false;
  std::string device;       ///< cpu or cuda
  std::string device_name;  ///< of a GPU other than the first also its index: "... (cuda:1)"
  std::string kernels, numerics_key;
  std::vector<std::string> available_kernels;
  /// What computes attention, and on a GPU which passes are CUDA graphs: "tensor cores", "passes of
  /// up to 256 rows"; where the fast way is not taken, also why. Then `warnings` tell of it, too.
  std::string attention, graphs;
  int threads = 0;
  std::int64_t page_tokens = 0, kv_tokens = 0, kv_token_bytes = 0;
  /// Layers without K and V; bytes of their state behind each 16 tokens of a path, and of what a
  /// token since then adds; for how many of either there is memory.
  std::int64_t recurrent_layers = 0, state_bytes = 0, state_token_bytes = 0;
  std::int64_t states = 0, state_tokens = 0;
  /// Of a head beside the model that predicts one token further (MTP), which may draft for it
  /// (EngineOptions::drafter); 0: there is none.
  std::int64_t mtp_layers = 0;
  std::vector<std::string> warnings;
};

/// What a chat template is given beside messages.
struct ChatOptions {
  bool add_generation_prompt = true;  ///< the text ends with the opening of the assistant's turn
  /// A JSON array of objects, the template's `tools`; empty: none.
  std::string tools_json{};
  /// A JSON object whose members become variables of the template, such as {"enable_thinking":
  /// false}; empty: none.
  std::string extra_json{};
};

/// A thread that drives an engine, see Engine::start. Move-only; it keeps the engine alive.
class EngineThread {
 public:
  EngineThread() = default;
  EngineThread(EngineThread&&) noexcept = default;
  EngineThread& operator=(EngineThread&&) noexcept = default;
  /// As stop(). Not in a callback.
  ~EngineThread() = default;

  /// Returns when the thread has ended, after the step under way. Calls that have not ended go on
  /// when somebody waits for them.
  void stop() { thread_ = {}; }
  bool running() const { return thread_.joinable(); }

 private:
  friend class Engine;
  explicit EngineThread(std::jthread thread) : thread_(std::move(thread)) {}
  std::jthread thread_;
};

/// A loaded model on a device, with its pages. Cheap to copy (a shared handle); usable from several
/// threads, whose calls share their steps. It needs no thread of its own: whoever waits for a call
/// computes for all.
class Engine {
 public:
  /// `model`: a folder in Hugging Face layout, an id found in the local Hugging Face cache (nothing
  /// is ever downloaded), or a GGUF file, of split ones the first. Throws Error naming the file,
  /// the key, what was got and what was expected.
  static Engine load(const std::string& model, const EngineOptions& options = {});
  /// Several, side by side on one device: first the weights of all are loaded, then what they leave
  /// of the memory is divided evenly among their pools of pages. Pages do not move from one to
  /// another. `options` are each one's; a draft model and a drafter, which are one model's, are
  /// refused.
  static std::vector<Engine> load_all(const std::vector<std::string>& models,
                                      const EngineOptions& options = {});

  const EngineInfo& info() const;

  /// How the model's weights bear what this device rounds; with or without EngineOptions::weights.
  /// Reads norms and some rows of the model's files: milliseconds for each layer. Where a model has
  /// no files of weights, all of it is as for a model of even ones.
  Compatibility compatibility() const;

  /// Throws Error when the model has no tokenizer.json.
  std::vector<Token> encode(std::string_view text, bool add_special = true) const;
  /// The tokens of `text` as what follows `before`, without special tokens: those of both texts
  /// together less those in front, wherever no token would be of both. Where one would, `before`
  /// stays as it is, and `text` is encoded as it stands inside a text. Behind no tokens, or those
  /// alone that encode adds, it is a beginning. Looks at the last 9 of `before`.
  std::vector<Token> encode_after(std::span<const Token> before, std::string_view text) const;
  std::string decode(std::span<const Token> ids, bool skip_special = false) const;
  /// The bytes that the token adds to a text, in its middle: those of all tokens of a text in a row
  /// are that text's, but for a space that some tokenizers put before a beginning. Perhaps no
  /// UTF-8: characters can be several tokens. Special tokens have their names, ids without a token
  /// nothing. Throws Error for an id outside the vocabulary.
  std::string token_bytes(Token token) const;

  /// Throws ConstraintError where this model cannot be constrained by it, and says why. What was
  /// checked costs nothing when it is used.
  void check(const Constraint& constraint) const;

  /// The model's own chat template over a JSON array of messages ({"role", "content", ...}).
  /// Throws Error when it has none, when messages or options are not of that form, and with what
  /// the template itself raises.
  std::string render_chat(std::string_view messages_json, const ChatOptions& options = {}) const;

  /// Vectors of texts: the model's last hidden states, behind its final norm, pooled. In the same
  /// steps as everything else, and in the order of the texts; each is to the bit what it is alone.
  /// Texts that begin alike share the K and V and the rows of that beginning; with kLastToken also
  /// with prompts and branches of others, while kMean needs the hidden state of every token, which
  /// nobody keeps, and computes them. Throws Error for an empty text, and one that is longer than
  /// the pool or the model's positions; and where pages or `cancel` forbid to finish.
  Embeddings embed(std::span<const std::string> texts, const EmbedOptions& options = {}) const;
  Embeddings embed(std::span<const std::vector<Token>> texts,
                   const EmbedOptions& options = {}) const;

  /// A session that Session::save wrote, here or in another process; see Restored in session.h. K
  /// and V come back bit for bit where model, numerics_key and page_tokens are those they were
  /// saved with and the pool has room; else they are computed again when next needed, from the same
  /// tokens. Throws Error naming the file: missing, truncated, damaged, of another format version,
  /// or saved from another model; and in a callback. Other calls wait meanwhile. `poll`: the
  /// session's, see SessionOptions.
  Restored restore(const std::filesystem::path& file, std::function<bool()> poll = {}) const;
  /// The same from Session::snapshot's bytes, or a file's, which must not change meanwhile; they
  /// are not needed afterwards.
  Restored restore(std::span<const std::byte> snapshot, std::function<bool()> poll = {}) const;

  /// A thread that computes whenever there is a call, for those that nobody waits for, or something
  /// to compute behind (ComposeParams::exact_behind). The tokens are the same with and without.
  [[nodiscard]] EngineThread start() const;
  /// One step for all calls, in this thread; for programs with a loop of their own. False: there
  /// was nothing to do. Throws Error in a callback.
  bool step() const;

  /// Calls `reader` for every event of these kinds, of all sessions, until the subscription ends.
  /// It is called under the engine's lock, in the order of events and in the thread that caused
  /// them: it must be quick and must not call the library, not even to end its own subscription.
  /// What it throws is ignored. Without readers an event costs one test of a mask.
  [[nodiscard]] EventSubscription on_event(EventMask kinds,
                                           std::function<void(const Event&)> reader) const;
  /// The same events kept for who takes them in its own time, from any thread: `capacity` at most
  /// wait, and further ones are dropped and counted. Events that are kept cost their copy each.
  [[nodiscard]] EventQueue events(EventMask kinds = kAllEvents, std::size_t capacity = 65536) const;
  /// O(sessions, registered chunks, segments, and pages), which forks and steps wait for: for who
  /// asks now and then, not in every step.
  EngineStats stats() const;
  /// The registered chunks, the most recently used first. O(chunks log chunks, and their pages).
  std::vector<ChunkInfo> chunks() const;

  /// The token tree for people, a line each: branches of all sessions with the segment that they
  /// end at, their pages and those that they alone hold; then segments with their references,
  /// positions, and pages, with the count of holders where it is not 1. Its form may change. Forks
  /// and steps wait for it, O(branches, segments and their pages).
  std::string tree_text() const;

 private:
  friend struct Internals;
  explicit Engine(std::shared_ptr<EngineCore> core) : core_(std::move(core)) {}
  std::shared_ptr<EngineCore> core_;
};

}  // namespace dendrite
