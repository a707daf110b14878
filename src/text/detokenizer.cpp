#include "text/detokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bridge.h"
#include "text/utf8.h"

namespace dendrite {
namespace {

std::string_view piece_of(const dn_token_table& table, std::int32_t id) {
  const auto* bytes = reinterpret_cast<const char*>(table.bytes);
  return {bytes + table.offsets[id], bytes + table.offsets[id + 1]};
}

/// Whether the id has a text that is given out: not a special token that is skipped.
bool counts(const dn_token_table& table, std::int32_t id, bool skip_special) {
  if (id < 0 || id >= table.size || (table.flags[id] & DN_TOKEN_KNOWN) == 0) return false;
  return !skip_special || (table.flags[id] & DN_TOKEN_SPECIAL) == 0;
}

/// The text of a finished run of byte tokens: all or nothing, as the decoder ByteFallback has it.
std::string take_byte_run(std::string& held) {
  std::string run = std::exchange(held, {});
  if (is_utf8(run)) return run;
  std::string text;
  for (std::size_t i = 0; i < run.size(); ++i) text += "\xEF\xBF\xBD";
  return text;
}

std::string encode_utf8(std::uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

/// Cuts what is left to cut at the start of the text.
std::string strip_start(const dn_token_table& table, DetokState& state, std::string text) {
  const std::string strip = encode_utf8(table.strip_char);
  std::size_t start = 0;
  while (state.at_start && start < text.size()) {
    if (state.cut < table.strip_count && text.compare(start, strip.size(), strip) == 0) {
      start += strip.size();
      ++state.cut;
    } else {
      state.at_start = false;
    }
  }
  return text.substr(start);
}

}  // namespace

Detokenizer::Detokenizer(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      incremental_ok_(dn_tokenizer_table(tokenizer_.bridge()).decoder != DN_DECODER_OTHER &&
                      !tokenizer_.cleans_up_spaces()) {}

std::string Detokenizer::push(DetokState& state, std::int32_t id) const {
  const dn_token_table table = dn_tokenizer_table(tokenizer_.bridge());
  if (!counts(table, id, skip_special_)) return {};
  if (!incremental_ok_) {
    state.held.append(reinterpret_cast<const char*>(&id), sizeof id);
    return {};
  }
  const std::string_view piece = piece_of(table, id);
  switch (table.decoder) {
    case DN_DECODER_BYTES:
      state.held += piece;
      return take_utf8(state.held, /*is_end=*/false);
    case DN_DECODER_PIECES:
      if ((table.flags[id] & DN_TOKEN_BYTE) != 0) {
        state.held += piece;
        return {};
      }
      return strip_start(table, state, take_byte_run(state.held).append(piece));
    case DN_DECODER_METASPACE:
      if (std::exchange(state.at_start, false)) return tokenizer_.decode({&id, 1}, skip_special_);
      return std::string(piece);
    default:  // DN_DECODER_SPACED
      return std::string(std::exchange(state.at_start, false) ? "" : " ").append(piece);
  }
}

/// Whether what a state holds back when all are pushed depends on the ids from this one on alone.
/// `bytes`: of those behind it, which become those from it on.
bool Detokenizer::is_tail(std::int32_t id, std::size_t& bytes) const {
  constexpr std::size_t kUnfinished = 3;  // bytes of a character at most, without its last one
  const dn_token_table table = dn_tokenizer_table(tokenizer_.bridge());
  if (!counts(table, id, skip_special_)) return false;
  bytes += piece_of(table, id).size();
  if (table.decoder == DN_DECODER_BYTES) return bytes >= kUnfinished;
  return (table.flags[id] & DN_TOKEN_BYTE) == 0;  // ends a run of byte tokens
}

DetokState Detokenizer::after(std::size_t size, const ReadIds& read) const {
  constexpr std::size_t kAtOnce = 16;  // mostly more than it takes
  const std::int32_t decoder = dn_tokenizer_table(tokenizer_.bridge()).decoder;
  const bool holds_back = decoder == DN_DECODER_BYTES || decoder == DN_DECODER_PIECES;
  DetokState state;
  std::vector<std::int32_t> ids;  // from `tail` on, the last ones
  std::size_t tail = incremental_ok_ ? size : 0;
  if (!incremental_ok_) {
    ids.resize(size);
    read(0, ids);
  }
  std::size_t bytes = 0;
  for (bool found = !holds_back; incremental_ok_ && !found && tail > 0;) {
    const std::size_t count = std::min(kAtOnce, tail);
    std::vector<std::int32_t> more(count);
    read(tail - count, more);
    std::size_t from = count;
    while (!found && from > 0) found = is_tail(more[--from], bytes);
    ids.insert(ids.begin(), more.begin() + static_cast<std::ptrdiff_t>(from), more.end());
    tail -= count - from;
  }
  // `at_start` and `cut` depend on the first ids: those before the tail, until something is given
  // out. (A decoder to bytes does not use them.)
  std::array<std::int32_t, kAtOnce> first{};
  std::size_t next = 0;
  for (; next < tail && decoder != DN_DECODER_BYTES && state.at_start; ++next) {
    if (next % kAtOnce == 0) read(next, std::span(first).first(std::min(kAtOnce, tail - next)));
    push(state, first[next % kAtOnce]);
  }
  if (next < tail) state.held.clear();
  for (const std::int32_t id : ids) push(state, id);
  return state;
}

std::string Detokenizer::finish(DetokState& state) const {
  const dn_token_table table = dn_tokenizer_table(tokenizer_.bridge());
  std::string text;
  if (!incremental_ok_) {
    std::vector<std::int32_t> ids(state.held.size() / sizeof(std::int32_t));
    if (!ids.empty()) std::memcpy(ids.data(), state.held.data(), state.held.size());
    text = tokenizer_.decode(ids, skip_special_);
  } else if (table.decoder == DN_DECODER_BYTES) {
    text = take_utf8(state.held, /*is_end=*/true);
  } else if (table.decoder == DN_DECODER_PIECES) {
    text = strip_start(table, state, take_byte_run(state.held));
  }
  state = DetokState{};
  return text;
}

}  // namespace dendrite
