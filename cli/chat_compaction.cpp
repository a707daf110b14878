#include "chat_compaction.h"

#include <algorithm>
#include <cstdio>
#include <span>

namespace dendrite::cli {
namespace {

using Json = nlohmann::ordered_json;

Json without(const Json& messages, std::size_t begin, std::size_t end) {
  Json rest = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i < begin || i >= end) rest.push_back(messages[i]);
  }
  return rest;
}

std::int64_t common_length(std::span<const Token> a, std::span<const Token> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::vector<Token> part(const std::vector<Token>& tokens, std::int64_t begin, std::int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

}  // namespace

void CompactionFlags::add_to(CLI::App& app) {
  app.add_option(
         "--compact", mode,
         "Where a conversation comes near its limit, its oldest exchanges are dropped: K and "
         "V of what stays are moved (composed) or computed again (exact); or never (off)")
      ->check(CLI::IsMember({"composed", "exact", "off"}))
      ->capture_default_str();
  app.add_option("--context", context,
                 "That limit in tokens; 0: the model's positions, or 3/5 of the KV pool")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::int64_t CompactionFlags::limit(const Engine& engine) const {
  if (context > 0) return context;
  const EngineInfo& info = engine.info();
  return std::min(info.max_positions, info.kv_tokens * 3 / 5);
}

std::optional<ShortChat> shorten(const Engine& engine, const Json& messages, std::int64_t tokens) {
  std::vector<std::size_t> exchanges;  // where they begin
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].value("role", "") == "user") exchanges.push_back(i);
  }
  if (exchanges.size() < 2) return std::nullopt;
  const auto from = [&](std::size_t exchange) {
    ShortChat chat;
    chat.messages = without(messages, exchanges.front(), exchange);
    chat.prompt = engine.encode(engine.render_chat(chat.messages.dump()), false);
    chat.dropped = exchange - exchanges.front();
    return chat;
  };
  const auto first = std::partition_point(
      exchanges.begin() + 1, exchanges.end() - 1,
      [&](std::size_t exchange) { return std::ssize(from(exchange).prompt) > tokens; });
  return from(*first);
}

Composed change_prompt(Session& session, const Branch& branch, const std::vector<Token>& from,
                       const std::vector<Token>& to, const ComposeParams& params) {
  const std::int64_t length = branch.length();
  const std::int64_t known = common_length(branch.tokens(), from);
  const std::int64_t before = common_length(from, to);
  const auto both = static_cast<std::ptrdiff_t>(std::min(from.size(), to.size())) - before;
  const std::int64_t behind =
      std::mismatch(from.rbegin(), from.rbegin() + both, to.rbegin()).first - from.rbegin();
  const std::int64_t gap_end = std::ssize(from) - behind;
  const auto computed = [](std::vector<Token> tokens) {
    std::vector<Piece> pieces;
    if (!tokens.empty()) pieces.push_back(Piece::tokens(std::move(tokens)));
    return pieces;
  };
  std::vector<Edit> edits;
  if (gap_end < known) {
    edits.push_back({{before, gap_end}, computed(part(to, before, std::ssize(to) - behind))});
    edits.push_back({{known, length}, computed(part(from, known, std::ssize(from)))});
  } else {
    const std::int64_t kept = std::min(before, known);
    edits.push_back({{kept, length}, computed(part(to, kept, std::ssize(to)))});
  }
  return session.edit(branch, edits, params);
}

std::string describe_compaction(std::size_t messages, const Composition& report) {
  std::string text = "compacted: " + std::to_string(messages) + " messages dropped; tokens";
  const auto count = [&](const char* before, std::int64_t tokens, const char* what) {
    text += before + std::to_string(tokens) + " " + what;
  };
  count(": ", report.kept, "kept");
  count(", ", report.moved, "moved");
  count(", ", report.computed + report.repaired, "computed");
  count(", ", report.dropped, "dropped");
  if (report.exactness == Exactness::kExactPrefix) return text + "; exact";
  if (report.estimate) {
    char number[32];
    std::snprintf(number, sizeof number, "%.2g", report.estimate->kl_mean);
    text += "; estimated divergence " + std::string(number) + " nats a token";
  }
  return text;
}

}  // namespace dendrite::cli
