#include "constraint_masks.h"

#include <algorithm>
#include <bit>

#include "dendrite/error.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "machine.h"

namespace dendrite::bench {
namespace {

/// A constraint, and a text as a model would write it.
struct Case {
  std::string name;
  Constraint constraint;
  std::string text;
};

constexpr char kPerson[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 60},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "email": {"type": "string", "format": "email"},
    "address": {
      "type": "object",
      "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
      "required": ["street", "city"], "additionalProperties": false
    },
    "tags": {"type": "array", "items": {"enum": ["admin", "editor", "viewer", "billing"]}, "maxItems": 4},
    "score": {"type": "number"},
    "notes": {"type": "array", "items": {"type": "string"}}
  },
  "required": ["name", "age", "email", "address"],
  "additionalProperties": false
})";
constexpr char kPersonText[] =
    R"({"name":"Ada Lovelace","age":36,"email":"ada@analytical-engine.org","address":{"street":"12 St James's Square","city":"London","zip":"20185"},"tags":["admin","viewer"],"score":9.75,"notes":["Wrote the first program, a table of Bernoulli numbers.","Prefers letters to meetings; the \"notes\" are longer than the paper."]})";

constexpr char kToolCall[] = R"({
  "anyOf": [
    {"type": "object", "properties": {"name": {"const": "get_weather"}, "arguments": {"type": "object",
      "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
      "required": ["city"], "additionalProperties": false}}, "required": ["name", "arguments"], "additionalProperties": false},
    {"type": "object", "properties": {"name": {"const": "search_flights"}, "arguments": {"type": "object",
      "properties": {"from": {"type": "string", "pattern": "^[A-Z]{3}$"}, "to": {"type": "string", "pattern": "^[A-Z]{3}$"}, "date": {"type": "string", "format": "date"},
        "passengers": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "seat": {"type": "string"}}, "required": ["name"], "additionalProperties": false}}},
      "required": ["from", "to", "date"], "additionalProperties": false}}, "required": ["name", "arguments"], "additionalProperties": false}
  ]
})";
constexpr char kToolCallText[] =
    R"({"name":"search_flights","arguments":{"from":"LHR","to":"SFO","date":"2026-11-23","passengers":[{"name":"Grace Hopper","seat":"12A"},{"name":"Barbara Liskov"}]}})";

constexpr char kAnyText[] =
    R"({"title":"Minutes of the meeting","present":["Kay","Simon"],"items":[{"topic":"budget","minutes":15,"done":true},{"topic":"next release","minutes":40.5,"done":false,"open":{"who":"Kay","by":null}}]})";

constexpr char kLog[] =
    R"(([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z (DEBUG|INFO|WARN|ERROR) [a-z_]+: [^\n]{1,200}\n){1,100})";
constexpr char kLogText[] =
    "2026-11-23T08:15:30Z INFO http_server: GET /index.html 200 in 14 ms\n"
    "2026-11-23T08:15:31Z WARN disk: 93 % of /var are in use; expected less than 90 %\n"
    "2026-11-23T08:15:35Z ERROR mailer: connection refused by 10.0.0.25:25\n";

constexpr char kQuery[] = R"lark(
start: "SELECT " columns " FROM " NAME (" WHERE " condition)? (" ORDER BY " NAME (" DESC")?)? ";"
columns: "*" | NAME (", " NAME)*
condition: comparison ((" AND " | " OR ") comparison)*
comparison: NAME " " OPERATOR " " value | "(" condition ")"
value: NUMBER | STRING
OPERATOR: "=" | "<" | ">" | "<=" | ">=" | "<>" | "LIKE"
NAME: /[a-z_][a-z0-9_]{0,30}/
NUMBER: /-?[0-9]{1,12}(\.[0-9]{1,6})?/
STRING: /'[^'\n]{0,80}'/
)lark";
constexpr char kQueryText[] =
    "SELECT id, name, total FROM orders WHERE (status = 'shipped' OR status = 'paid') AND total >= "
    "99.5 AND customer LIKE 'van %' ORDER BY total DESC;";

constexpr char kRecords[] = R"({
  "type": "array", "minItems": 128,
  "items": {
    "type": "object",
    "properties": {
      "name": {"type": "string", "minLength": 1, "maxLength": 16},
      "quantity": {"type": "integer", "minimum": 0, "maximum": 1000},
      "status": {"enum": ["ordered", "shipped", "delivered", "returned"]},
      "express": {"type": "boolean"}
    },
    "required": ["name", "quantity", "status", "express"],
    "additionalProperties": false
  }
})";
constexpr char kRecordsText[] =
    R"([{"name":"paper, A4","quantity":500,"status":"shipped","express":false},{"name":"toner","quantity":2,"status":"ordered","express":true},{"name":"stapler, long","quantity":1,"status":"returned","express":false},)";
constexpr char kRecordsGbnf[] =
    R"(root ::= "[" item rest)"
    "\t"
    R"(rest ::= "," item rest)"
    "\t"
    R"(item ::= "{\"name\":\"" char{1,16} "\",\"quantity\":" quantity ",\"status\":" status ",\"express\":" ("true" | "false") "}")"
    "\t"
    R"(char ::= [^"\\\x00-\x1F\x7F] | "\\" ["\\bfnrt])"
    "\t"
    R"(quantity ::= "0" | [1-9] [0-9]{0,2} | "1000")"
    "\t"
    R"(status ::= "\"ordered\"" | "\"shipped\"" | "\"delivered\"" | "\"returned\"")";

std::vector<Case> cases() {
  std::string words;
  for (int i = 0; i < 40; ++i) words += "the quick brown fox jumps over a lazy dog ";
  return {{"JSON schema, person", Constraint::json_schema(kPerson), kPersonText},
          {"JSON schema, tool call", Constraint::json_schema(kToolCall), kToolCallText},
          {"JSON schema, records", json_records().constraint, kRecordsText},
          {"JSON object", Constraint::json_object(), kAnyText},
          {"regex, log lines", Constraint::regex(kLog), kLogText},
          {"regex, words", free_text().constraint, words},
          {"Lark, SQL", Constraint::lark(kQuery), kQueryText}};
}

/// The n-th of the tokens that a mask allows.
Token nth(const TokenMask& mask, std::int64_t n) {
  const std::span<const std::uint32_t> words = mask.words();
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint32_t bits = words[i];
    const int count = std::popcount(bits);
    if (n >= count) {
      n -= count;
      continue;
    }
    for (; n > 0; --n) bits &= bits - 1;
    return static_cast<Token>(i * 32 + static_cast<std::size_t>(std::countr_zero(bits)));
  }
  throw Error("mask: has fewer tokens than it says");
}

/// Microseconds of each state of one text, by the thread's own clock: others disturb less.
struct Walk {
  std::vector<double> mask_us, follow_us;
  std::int64_t tokens = 0, forced = 0;
};

/// As decode does, but for forced tokens, which it takes without a mask. `next`: the token after a
/// mask; nullopt ends the text.
template <typename Next>
Walk walk(const std::shared_ptr<const Grammar>& grammar, Next next) {
  Walk out;
  Matcher matcher(grammar);
  while (!matcher.is_complete()) {
    const double begin = now_seconds(Clock::kCpu);
    const MaskRef mask = matcher.mask();
    out.mask_us.push_back((now_seconds(Clock::kCpu) - begin) * 1e6);
    const std::optional<Token> token = next(*mask);
    if (!token) break;
    const double drawn = now_seconds(Clock::kCpu);
    const bool accepted = matcher.accept(*token);
    const bool is_forced = matcher.forced().has_value();
    out.follow_us.push_back((now_seconds(Clock::kCpu) - drawn) * 1e6);
    if (!accepted) {
      throw Error("constraint: refuses token " + std::to_string(*token) + " after " +
                  std::to_string(out.tokens) + " of a text; expected a text that it allows");
    }
    ++out.tokens;
    out.forced += is_forced;
  }
  return out;
}

Walk walk_text(const std::shared_ptr<const Grammar>& grammar, std::span<const Token> tokens) {
  std::size_t at = 0;
  return walk(grammar, [&](const TokenMask&) {
    return at < tokens.size() ? std::optional(tokens[at++]) : std::nullopt;
  });
}

/// What a model without an opinion draws.
Walk walk_randomly(const std::shared_ptr<const Grammar>& grammar, std::int64_t tokens,
                   std::uint64_t seed) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  return walk(grammar, [&](const TokenMask& mask) -> std::optional<Token> {
    if (tokens-- == 0) return std::nullopt;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return nth(mask,
               static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(mask.count())));
  });
}

void add_times(Report& report, const std::string& name, const Json& params,
               std::span<const Walk> walks, std::vector<double> Walk::*times) {
  std::vector<double> all, means;
  for (const Walk& walk : walks) {
    const std::vector<double>& us = walk.*times;
    if (us.empty()) continue;
    all.insert(all.end(), us.begin(), us.end());
    means.push_back(mean(us));
  }
  Summary value = summarize(all);
  const Summary of_texts = summarize(means);
  value.ci_low = of_texts.ci_low;
  value.ci_high = of_texts.ci_high;
  value.trials = of_texts.trials;
  report.add(
      {.name = name,
       .params = params,
       .unit = "us",
       .value = value,
       .extra = {{"mean", mean(all)}, {"max", std::ranges::max(all)}, {"states", all.size()}},
       .samples = means});
}

void add_walks(Report& report, Json params, const std::string& text, std::span<const Walk> walks) {
  params["text"] = text;
  add_times(report, "mask", params, walks, &Walk::mask_us);
  add_times(report, "follow", params, walks, &Walk::follow_us);
  std::int64_t tokens = 0, forced = 0;
  for (const Walk& walk : walks) {
    tokens += walk.tokens;
    forced += walk.forced;
  }
  report.add_value(
      "forced tokens", params, "share",
      static_cast<double>(forced) / static_cast<double>(std::max(tokens, std::int64_t{1})),
      {{"tokens", tokens}});
}

}  // namespace

LongText free_text() {
  return {"regex, nothing forced", Constraint::regex("[a-z ]{8192}"), "root ::= [a-z ] root"};
}

LongText json_records() {
  return {"JSON records", Constraint::json_schema(kRecords), kRecordsGbnf};
}

void measure_masks(Report& report, const std::shared_ptr<const Vocabulary>& vocabulary,
                   const Tokenizer& tokenizer, const MaskOptions& options) {
  for (const Case& c : cases()) {
    const Json params{{"grammar", c.name}, {"vocab", vocabulary->size()}};
    const std::vector<Token> tokens = tokenizer.encode(c.text, /*add_special=*/false);
    std::vector<double> compile_ms;
    std::vector<Walk> first, again, random;
    for (int i = 0; i < options.trials; ++i) {
      const double begin = now_seconds();
      const auto grammar = std::make_shared<const Grammar>(vocabulary, c.constraint, 1);
      compile_ms.push_back((now_seconds() - begin) * 1e3);
      first.push_back(walk_text(grammar, tokens));
      again.push_back(walk_text(grammar, tokens));
      random.push_back(walk_randomly(grammar, options.tokens, static_cast<std::uint64_t>(i)));
    }
    report.add("compile", params, "ms", compile_ms);
    add_walks(report, params, "the first of its grammar", first);
    add_walks(report, params, "the same again", again);
    add_walks(report, params, "random", random);
  }
}

}  // namespace dendrite::bench
