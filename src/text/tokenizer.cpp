#include "text/tokenizer.h"

#include <array>
#include <utility>

#include "text/bridge.h"
#include "text/tokenizer_config.h"

namespace dendrite {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t start = 0;
  for (std::size_t at; (at = text.find(from, start)) != std::string::npos;) {
    out.append(text, start, at - start).append(to);
    start = at + from.size();
  }
  out.append(text, start);
  text = std::move(out);
}

/// transformers' clean_up_tokenization(): the same replacements in the same order.
std::string clean_up_spaces(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kReplacements = {{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [from, to] : kReplacements) replace_all(text, from, to);
  return text;
}

std::vector<std::int32_t> take(dn_ids ids) {
  struct Free {
    dn_ids ids;
    ~Free() { dn_ids_free(ids); }
  } const owner{ids};
  return {ids.data, ids.data + ids.size};
}

}  // namespace

Tokenizer Tokenizer::open(const ModelTexts& texts) {
  std::optional<Tokenizer> tokenizer = try_open(texts);
  if (!tokenizer) {
    throw Error((texts.path() / "tokenizer.json").string() +
                ": no such file; expected a Hugging Face tokenizer (tokenizer.json)");
  }
  return std::move(*tokenizer);
}

std::optional<Tokenizer> Tokenizer::try_open(const ModelTexts& texts) {
  const std::optional<std::string> json = texts.read("tokenizer.json");
  if (!json) return std::nullopt;
  const TokenizerConfig config = TokenizerConfig::read(texts);

  dn_tokenizer* handle = nullptr;
  check_bridge(
      dn_tokenizer_open(reinterpret_cast<const std::uint8_t*>(json->data()), json->size(),
                        config.added_tokens_json.data(), config.added_tokens_json.size(), &handle),
      (texts.path() / "tokenizer.json").string());
  Tokenizer tokenizer(std::shared_ptr<const dn_tokenizer>(
      handle, [handle](const dn_tokenizer*) { dn_tokenizer_free(handle); }));
  tokenizer.clean_up_spaces_ =
      config.clean_up_spaces && (!dn_tokenizer_is_bpe(handle) || config.clean_up_spaces_of_bpe);
  if (const auto bos = config.named_token("bos_token"))
    tokenizer.bos_id_ = tokenizer.token_to_id(*bos);
  if (const auto eos = config.named_token("eos_token"))
    tokenizer.eos_id_ = tokenizer.token_to_id(*eos);
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  dn_ids ids{};
  check_bridge(dn_tokenizer_encode(bridge(), text.data(), text.size(), add_special, &ids),
               "tokenizer: encode");
  return take(ids);
}

std::vector<std::int32_t> Tokenizer::encode_after(std::span<const std::int32_t> before,
                                                  std::string_view text) const {
  static_assert(kBefore == DN_TOKENS_BEFORE + 1);
  dn_ids ids{};
  check_bridge(dn_tokenizer_encode_after(bridge(), before.data(), before.size(), text.data(),
                                         text.size(), &ids),
               "tokenizer: encode_after");
  return take(ids);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  dn_buffer text{};
  check_bridge(dn_tokenizer_decode(bridge(), ids.data(), ids.size(), skip_special, &text),
               "tokenizer: decode");
  std::string decoded = take(text);
  return clean_up_spaces_ ? clean_up_spaces(std::move(decoded)) : decoded;
}

std::string Tokenizer::bytes_of(std::int32_t id) const {
  const dn_token_table table = dn_tokenizer_table(bridge());
  if (id < 0 || id >= table.size || (table.flags[id] & DN_TOKEN_KNOWN) == 0) return {};
  std::string bytes = table.decoder == DN_DECODER_SPACED ? " " : "";
  const auto* all = reinterpret_cast<const char*>(table.bytes);
  return bytes.append(all + table.offsets[id], all + table.offsets[id + 1]);
}

std::int32_t Tokenizer::vocab_size() const {
  return dn_tokenizer_table(bridge()).size;
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  std::int32_t id = 0;
  const dn_status status = dn_tokenizer_token_to_id(bridge(), token.data(), token.size(), &id);
  check_bridge(status, "tokenizer: token_to_id");
  return status == DN_OK ? std::optional(id) : std::nullopt;
}

std::optional<std::string> Tokenizer::id_to_token(std::int32_t id) const {
  dn_buffer token{};
  const dn_status status = dn_tokenizer_id_to_token(bridge(), id, &token);
  check_bridge(status, "tokenizer: id_to_token");
  return status == DN_OK ? std::optional(take(token)) : std::nullopt;
}

bool Tokenizer::is_special(std::int32_t id) const {
  const dn_token_table table = dn_tokenizer_table(bridge());
  return id >= 0 && id < table.size && (table.flags[id] & DN_TOKEN_SPECIAL) != 0;
}

}  // namespace dendrite
