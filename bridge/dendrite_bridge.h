// C interface of the Rust libraries that Dendrite uses: Hugging Face tokenizers, llguidance and
// minijinja. Only src/text/ and src/grammar/ includes this file.
//
// Rules that hold for every function:
//   - Text is UTF-8 given as pointer and size in bytes, never NUL-terminated. A pointer may be null
//     if its size is 0.
//   - A function that can fail returns a dn_status. After DN_ERROR and DN_PANIC, dn_last_error()
//     says why; the outputs are then left as they were.
//   - A dn_tokenizer, dn_vocabulary or dn_template is immutable once opened: any number of threads
//   may use one.
//   - What is returned in a dn_buffer or dn_ids belongs to the caller, who frees it once.
//   - No Rust panic leaves the library: it becomes DN_PANIC.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DN_ABI_VERSION 2u

typedef enum dn_status {
  DN_OK = 0,
  DN_ABSENT = 1,  // nothing wrong: there is no such token
  DN_ERROR = -1,  // bad input: dn_last_error() says which key of which part, and what was expected
  DN_PANIC = -2,  // a bug in the bridge or in one of its libraries
} dn_status;

typedef struct dn_buffer {
  uint8_t* data;  // UTF-8, not NUL-terminated
  size_t size;    // bytes
} dn_buffer;

typedef struct dn_ids {
  int32_t* data;
  size_t size;  // ids
} dn_ids;

/// DN_ABI_VERSION of the archive that was linked; compare it with the header's.
uint32_t dn_abi_version(void);
/// Why this thread's latest failing call failed. NUL-terminated; valid until this thread's next
/// failing call.
const char* dn_last_error(void);
void dn_buffer_free(dn_buffer buffer);
void dn_ids_free(dn_ids ids);

// ---- tokenizer ----

typedef struct dn_tokenizer dn_tokenizer;

/// Opens the content of a tokenizer.json. Its truncation and padding are dropped, as transformers
/// does for a plain call. `added` is a JSON array of tokens to add on top, in order (size 0: none):
///   {"content": "<pad>", "special": true, "lstrip": false, "rstrip": false, "single_word": false,
///    "normalized": false, "if_absent": true, "named": true}
/// All but content may be left out (false; normalized: the opposite of special). An added token of
/// the same content is changed, with if_absent kept as it is. named: it is a bos, eos, pad, ...
/// token: it becomes special in any case.
dn_status dn_tokenizer_open(const uint8_t* json, size_t json_size, const char* added,
                            size_t added_size, dn_tokenizer** out);
void dn_tokenizer_free(dn_tokenizer* tokenizer);  // null is allowed

/// Ids of `text`. Special tokens written in the text are always recognised; add_special says
/// whether the post-processor adds its own (BOS, EOS). Bytes that are not UTF-8 become U+FFFD.
dn_status dn_tokenizer_encode(const dn_tokenizer* tokenizer, const char* text, size_t text_size,
                              int add_special, dn_ids* out);
/// Tokens in front that dn_tokenizer_encode_after looks at.
#define DN_TOKENS_BEFORE 8
/// Ids of `text` as what follows `before`: all ids in front of it or, of more than
/// DN_TOKENS_BEFORE, at least the last DN_TOKENS_BEFORE + 1. They are those of dn_tokenizer_encode
/// for both texts together less those for the one in front, wherever no token would be of both;
/// else those of `text` as it stands inside a text. Where nothing is in front, or only what
/// add_special adds, `text` is a beginning.
dn_status dn_tokenizer_encode_after(const dn_tokenizer* tokenizer, const int32_t* before,
                                    size_t before_size, const char* text, size_t text_size,
                                    dn_ids* out);
/// Text of `ids`. Ids without a token are skipped, negative ones are an error.
dn_status dn_tokenizer_decode(const dn_tokenizer* tokenizer, const int32_t* ids, size_t size,
                              int skip_special, dn_buffer* out);
dn_status dn_tokenizer_token_to_id(const dn_tokenizer* tokenizer, const char* token, size_t size,
                                   int32_t* out);
dn_status dn_tokenizer_id_to_token(const dn_tokenizer* tokenizer, int32_t id, dn_buffer* out);
/// 1 if the model of the tokenizer.json is of type BPE, else 0.
int dn_tokenizer_is_bpe(const dn_tokenizer* tokenizer);

/// How decode() joins the pieces of dn_token_table. "text" is what remains without skipped and
/// unknown ids.
typedef enum dn_decoder {
  DN_DECODER_OTHER = 0,  // none of the below: the pieces alone do not give the text
  // Text = the bytes of all pieces in a row, with U+FFFD for each maximal part that is not UTF-8.
  DN_DECODER_BYTES = 1,
  // Text = the pieces in a row, where a run of DN_TOKEN_BYTE pieces is its text if the whole run is
  // UTF-8, else one U+FFFD a byte. Then up to strip_count leading strip_char are cut from the text.
  DN_DECODER_PIECES = 2,
  // Text = dn_tokenizer_decode of the first id alone, then the pieces in a row.
  DN_DECODER_METASPACE = 3,
  // Text = the pieces with a space between two.
  DN_DECODER_SPACED = 4,
} dn_decoder;

enum {
  DN_TOKEN_KNOWN = 1,    // the id has a token
  DN_TOKEN_SPECIAL = 2,  // skipped with skip_special
  DN_TOKEN_BYTE = 4,     // one byte of DN_DECODER_PIECES's byte fallback
};

/// What each token contributes to decoded text. Borrowed from the tokenizer.
typedef struct dn_token_table {
  int32_t size;             // largest id + 1
  const uint32_t* offsets;  // [size + 1]; id i has bytes[offsets[i]] up to bytes[offsets[i + 1]]
  const uint8_t* bytes;     // [offsets[size]]
  const uint8_t* flags;     // [size], DN_TOKEN_*
  int32_t decoder;          // dn_decoder
  uint32_t strip_char;      // a Unicode scalar value; means nothing if strip_count is 0
  uint32_t strip_count;
} dn_token_table;
dn_token_table dn_tokenizer_table(const dn_tokenizer* tokenizer);

// ---- grammar ----

/// What masks are made from: the bytes of all tokens as a trie. Immutable: any number of threads
/// may use one. It keeps what it needs of the tokenizer.
typedef struct dn_vocabulary dn_vocabulary;

/// `size` is the width of the logits, which may differ from the tokenizer's number of tokens; `eos`
/// are the tokens that end a text, perhaps none. DN_ERROR if the decoder is DN_DECODER_OTHER or
/// DN_DECODER_SPACED, for the bytes of tokens in a row are then not their text. Costs about 2
/// seconds for 150,000 tokens.
dn_status dn_vocabulary_open(const dn_tokenizer* tokenizer, int32_t size, const int32_t* eos,
                             size_t eos_size, dn_vocabulary** out);
/// Matchers may outlive it. Null is allowed.
void dn_vocabulary_free(dn_vocabulary* vocabulary);

typedef enum dn_grammar_kind {
  DN_GRAMMAR_JSON_SCHEMA = 0,  // JSON without whitespace, unless the schema has an "x-guidance"
  DN_GRAMMAR_REGEX = 1,        // of the whole text; syntax of Rust's regex, without look-around
  DN_GRAMMAR_LARK = 2,         // llguidance's variant
  DN_GRAMMAR_CHOICE = 3,       // one string of a JSON array of strings, none of them empty
} dn_grammar_kind;

/// The state of a grammar after some tokens. Used by one thread at a time, together with its whole
/// family: the matchers that were forked from each other with apart = 0.
///
/// A matcher whose work would exceed a limit gives DN_ERROR with the reason, then and in every
/// later call. Others of its family may too. A token that the grammar refuses is not an error.
typedef struct dn_matcher dn_matcher;

/// DN_ERROR: no grammar of this kind, one that no text of the vocabulary matches, one that is too
/// large, or one with max_tokens=, temperature= or stop=; the reason is for people.
dn_status dn_matcher_open(const dn_vocabulary* vocabulary, dn_grammar_kind kind, const char* text,
                          size_t size, dn_matcher** out);
/// apart = 0: a copy that shares the lexer with the original: cheap, and what one has seen the
/// other need not compute again. apart = 1: a family of its own.
dn_status dn_matcher_fork(const dn_matcher* matcher, int apart, dn_matcher** out);
void dn_matcher_free(dn_matcher* matcher);  // null is allowed

/// Takes the tokens up to, not including, the first that is refused; `accepted` is their number.
/// Any tokens that spell an admitted text are accepted, also where the mask insists on the
/// canonical ones. An end token is accepted where the text may end; after it nothing is.
dn_status dn_matcher_accept(dn_matcher* matcher, const int32_t* tokens, size_t size,
                            size_t* accepted);
/// Takes back the last `tokens` accepted tokens. More than there are is an error, and changes
/// nothing.
dn_status dn_matcher_rewind(dn_matcher* matcher, size_t tokens);
/// `size` is ceil(vocabulary size / 32). Bit t % 32 of word t / 32: token t may come next. Bits of
/// end tokens are set where the text may end, and only there; those are all where it must. No bit
/// at all: a dead end, no token of this vocabulary goes on.
dn_status dn_matcher_mask(dn_matcher* matcher, uint32_t* words, size_t size);
/// The tokens that must come next, as the tokenizer would write them; perhaps none. The mask before
/// each has its bit alone.
dn_status dn_matcher_forced(dn_matcher* matcher, dn_ids* out);
/// 1 if nothing but the end may follow, or an end token was accepted. 0 after an error.
int dn_matcher_is_complete(const dn_matcher* matcher);
/// 1 if the end may follow or has. 0 after an error.
int dn_matcher_is_accepting(const dn_matcher* matcher);

// ---- chat template ----

typedef struct dn_template dn_template;

/// Compiles a Jinja template with transformers' settings and Python's ways of printing.
dn_status dn_template_open(const char* source, size_t size, dn_template** out);
void dn_template_free(dn_template* chat_template);  // null is allowed
/// JSON text with each integer beyond 64 bits as a string that dn_template_render reads as that
/// integer: other JSON libraries would round it. What is no JSON stays so.
dn_status dn_json_mark_integers(const char* json, size_t size, dn_buffer* out);
/// Renders with the members of a JSON object as variables. Work is bounded (an endless template is
/// an error), memory is not: a template that doubles a text 40 times gets what it asks for.
dn_status dn_template_render(const dn_template* chat_template, const char* context_json,
                             size_t size, dn_buffer* out);

#ifdef __cplusplus
}
#endif
