#include "ledger/ledger_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "dendrite/error.h"

namespace dendrite {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

[[noreturn]] void refuse(const std::string& what) {
  throw Error("ledger: a saved text " + what);
}

/// Whatever bytes a text has: each as the character of its number.
std::string widened(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      out += {static_cast<char>(0xc0 | (byte >> 6)), static_cast<char>(0x80 | (byte & 0x3f))};
    }
  }
  return out;
}

std::string narrowed(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      out += text[i];
      continue;
    }
    if ((first & 0xfc) != 0xc0 || i + 1 == text.size()) refuse("has a character above 255");
    out += static_cast<char>((first << 6) | (static_cast<unsigned char>(text[++i]) & 0x3f));
  }
  return out;
}

std::uint64_t number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) {
    refuse(std::string("has no number ") + key);
  }
  return found->get<std::uint64_t>();
}

std::string bytes(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) refuse(std::string("has no text ") + key);
  return narrowed(found->get_ref<const std::string&>());
}

Effect parse_effect(const Json& json) {
  if (!json.is_object()) refuse("has an effect that is no object");
  Effect effect;
  effect.id = static_cast<EffectId>(number(json, "id"));
  effect.parent = static_cast<EffectId>(number(json, "parent"));
  constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 60;
  effect.length = static_cast<std::int64_t>(std::min(number(json, "length"), kMostTokens));
  effect.key = bytes(json, "key");
  if (json.contains("value")) effect.value = bytes(json, "value");
  effect.committed = json.contains("committed");
  return effect;
}

const Json& list(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) refuse(std::string("has no list ") + key);
  return *found;
}

}  // namespace

std::string write_ledger(const LedgerText& text) {
  Json json{{"ledger", kVersion}, {"last_id", text.last_id}, {"effects", Json::array()}};
  for (const Effect& effect : text.effects) {
    Json one{{"id", static_cast<std::uint64_t>(effect.id)},
             {"parent", static_cast<std::uint64_t>(effect.parent)},
             {"length", effect.length},
             {"key", widened(effect.key)}};
    if (effect.value) one["value"] = widened(*effect.value);
    if (effect.committed) one["committed"] = true;
    json["effects"].push_back(std::move(one));
  }
  json["branches"] = Json::array();
  for (const auto& [branch, last] : text.ends) {
    json["branches"].push_back({{"branch", static_cast<std::uint64_t>(branch)},
                                {"last", static_cast<std::uint64_t>(last)}});
  }
  return json.dump();
}

LedgerText parse_ledger(std::string_view saved) {
  const Json json = Json::parse(saved, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse("is no JSON");
  if (!json.is_object() || number(json, "ledger") != kVersion) {
    refuse("is of another form; expected what Ledger::save gave");
  }
  LedgerText text{.last_id = number(json, "last_id")};
  std::set<EffectId> known;
  for (const Json& one : list(json, "effects")) {
    Effect effect = parse_effect(one);
    const bool has_parent = effect.parent != EffectId::kNone;
    if (effect.id == EffectId::kNone || static_cast<std::uint64_t>(effect.id) > text.last_id ||
        !known.insert(effect.id).second) {
      refuse("has an effect with a wrong id");
    }
    if (has_parent && (!known.contains(effect.parent) || effect.parent >= effect.id)) {
      refuse("has an effect before its parent");
    }
    text.effects.push_back(std::move(effect));
  }
  for (const Json& one : list(json, "branches")) {
    if (!one.is_object()) refuse("has a branch that is no object");
    const auto last = static_cast<EffectId>(number(one, "last"));
    if (!known.contains(last)) refuse("has a branch with an effect that it has not");
    text.ends[static_cast<BranchId>(number(one, "branch"))] = last;
  }
  return text;
}

}  // namespace dendrite
