#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "common.h"
#include "observe.h"
#include "terminal_text.h"

namespace dendrite::cli {
namespace {

constexpr int kNameColumns = 24;

struct ChunksFlags {
  CommonFlags common;
  ObserveFlags observe;
  std::vector<std::string> files;
  std::vector<std::string> texts;
  std::string prefix;
  std::optional<std::string> query;
};

/// What was made of all chunks and the query behind them.
struct Asked {
  Composition report;
  double milliseconds = 0;
};

std::string shortage_of(const Session& session) {
  const std::optional<KvShortage> shortage = session.shortage();
  return shortage ? shortage->message() : "";
}

std::vector<Chunk> register_all(Session& session, const ChunksFlags& flags) {
  ChunkParams params;
  if (!flags.prefix.empty()) params.prefix = session.engine().encode(flags.prefix, true);
  std::vector<Chunk> chunks;
  const auto add = [&](const std::string& name, const std::string& text) {
    params.name = name;
    try {
      chunks.push_back(session.register_chunk(text, params));
    } catch (const Error& error) {
      throw Error(name + ": " + error.what());
    }
    if (const std::string why = shortage_of(session); !why.empty()) throw Error(name + ": " + why);
  };
  for (const std::string& path : flags.files) {
    add(std::filesystem::path(path).filename().string(), read_file(path));
  }
  for (std::size_t i = 0; i < flags.texts.size(); ++i) {
    add("text " + std::to_string(i + 1), flags.texts[i]);
  }
  return chunks;
}

Asked ask(Session& session, const ChunksFlags& flags, const std::vector<Chunk>& chunks) {
  std::vector<Piece> pieces;
  if (!flags.prefix.empty()) {
    pieces.push_back(Piece::tokens(session.engine().encode(flags.prefix, true)));
  }
  for (const Chunk& chunk : chunks) pieces.push_back(Piece::chunk(chunk));
  pieces.push_back(Piece::text(*flags.query));
  const auto begin = std::chrono::steady_clock::now();
  Composed composed = session.compose(pieces);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (composed.branch.finish() != Finish::kRunning) {
    throw Error("--query: " + shortage_of(session));
  }
  return {std::move(composed.report), took.count()};
}

/// Of the slots of its pages, the part that holds K and V; 0 without pages.
double utilisation(const ChunkInfo& chunk, std::int64_t page_tokens) {
  if (chunk.pages == 0) return 0;
  return static_cast<double>(chunk.left_tokens + chunk.tokens_held) /
         static_cast<double>(chunk.pages * page_tokens);
}

/// 0 where it was never computed.
double tokens_per_second(const ChunkInfo& chunk) {
  return chunk.fill_ms > 0 ? static_cast<double>(chunk.tokens) / chunk.fill_ms * 1e3 : 0;
}

Json chunk_json(const ChunkInfo& chunk, const EngineInfo& engine) {
  return {{"name", chunk.name},
          {"id", chunk.id},
          {"key", chunk.key},
          {"text", chunk.text},
          {"state", name_of(chunk.state)},
          {"tokens", chunk.tokens},
          {"tokens_held", chunk.tokens_held},
          {"left_tokens", chunk.left_tokens},
          {"kv_bytes", chunk.tokens_held * engine.kv_token_bytes},
          {"pages", chunk.pages},
          {"own_pages", chunk.own_pages},
          {"page_utilisation", utilisation(chunk, engine.page_tokens)},
          {"uses", chunk.uses},
          {"hits", chunk.hits},
          {"reads", chunk.reads},
          {"read_hits", chunk.read_hits},
          {"hit_rate", chunk.hit_rate()},
          {"fill_ms", chunk.fill_ms},
          {"prefill_tokens_per_second", tokens_per_second(chunk)}};
}

Json composition_json(const Asked& asked) {
  return {{"kept", asked.report.kept},
          {"moved", asked.report.moved},
          {"repaired", asked.report.repaired},
          {"computed", asked.report.computed},
          {"exactness", name_of(asked.report.exactness)},
          {"milliseconds", asked.milliseconds}};
}

void print_table(const std::vector<ChunkInfo>& chunks, const EngineInfo& engine) {
  std::printf("%-*s %-10s %8s %9s %6s %6s %5s %6s %9s\n", kNameColumns, "chunk", "state", "tokens",
              "KV KiB", "pages", "filled", "uses", "hits", "tokens/s");
  for (const ChunkInfo& chunk : chunks) {
    const double kib = static_cast<double>(chunk.tokens_held * engine.kv_token_bytes) / 1024;
    const Line name = one_line(chunk.name, kNameColumns);
    const std::string gap(static_cast<std::size_t>(kNameColumns - name.columns), ' ');
    std::printf("%s%s %-10s %8lld %9.1f %6lld %5.0f%% %5lld %5.0f%% %9.0f\n", name.text.c_str(),
                gap.c_str(), name_of(chunk.state), static_cast<long long>(chunk.tokens), kib,
                static_cast<long long>(chunk.pages), 100 * utilisation(chunk, engine.page_tokens),
                static_cast<long long>(chunk.uses), 100 * chunk.hit_rate(),
                tokens_per_second(chunk));
  }
}

void print_totals(const EngineStats& stats, const std::optional<Asked>& asked) {
  std::printf(
      "\n%lld chunks of %lld tokens in %lld of %lld pages; %lld of %lld registrations and "
      "%lld of %lld pieces found theirs\n",
      static_cast<long long>(stats.chunk_entries), static_cast<long long>(stats.chunk_tokens),
      static_cast<long long>(stats.chunk_pages), static_cast<long long>(stats.pool_pages),
      static_cast<long long>(stats.chunk_hits), static_cast<long long>(stats.chunk_lookups),
      static_cast<long long>(stats.chunk_read_hits), static_cast<long long>(stats.chunk_reads));
  if (!asked) return;
  const Composition& report = asked->report;
  std::printf(
      "composed in %.1f ms (%s): %lld tokens kept, %lld moved, %lld repaired, %lld "
      "computed\n",
      asked->milliseconds, name_of(report.exactness), static_cast<long long>(report.kept),
      static_cast<long long>(report.moved), static_cast<long long>(report.repaired),
      static_cast<long long>(report.computed));
}

int run(const ChunksFlags& flags) {
  if (flags.files.empty() && flags.texts.empty()) {
    throw Error("chunks: nothing to register; expected files, or --text TEXT");
  }
  const Engine engine = flags.common.load();
  const Observer observer(engine, flags.observe);
  const auto begin = std::chrono::steady_clock::now();
  Session session(engine, {.seed = flags.common.seed});
  const std::vector<Chunk> chunks = register_all(session, flags);
  std::optional<Asked> asked;
  if (flags.query) asked = ask(session, flags, chunks);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::vector<ChunkInfo> infos = engine.chunks();
  if (flags.common.json) {
    Json out{{"chunks", Json::array()}};
    for (const ChunkInfo& info : infos) out["chunks"].push_back(chunk_json(info, engine.info()));
    out["composition"] = asked ? composition_json(*asked) : Json();
    out["engine"] = Json::parse(dendrite::to_json(engine.stats()));
    out["stats"] = to_json(session.stats(), took.count());
    print_json(out);
    return 0;
  }
  print_table(infos, engine.info());
  print_totals(engine.stats(), asked);
  return 0;
}

}  // namespace

void add_chunks(CLI::App& app, int& status) {
  auto flags = std::make_shared<ChunksFlags>();
  CLI::App* command = app.add_subcommand(
      "chunks",
      "Registers texts as chunks, whose K and V any number of compositions take, and shows what\n"
      "the registry holds of them, the most recently used first.\n"
      "Try:  dendrite chunks doc1.txt doc2.txt --query 'What do they say?'\n"
      "chunk: its name; equal texts behind the same prefix are one. state: warm with K and V,\n"
      "cold without. KV: of its own tokens. pages: that hold it and what it is computed behind;\n"
      "filled: the part of their slots in use. uses: handles that live. hits: of the times it was\n"
      "wanted, those at which it was there. tokens/s: of its prefill.");
  flags->common.add_to(*command);
  flags->observe.add_to(*command);
  command->add_option("files", flags->files, "A chunk each, of UTF-8 text")->type_name("FILE");
  command->add_option("--text", flags->texts, "A chunk (repeatable)")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command->add_option("--prefix", flags->prefix,
                      "What chunks are computed behind, such as the system prompt: the first one "
                      "behind it is exact (default: a few BOS tokens, which are left out again)");
  command->add_option("--query", flags->query,
                      "Compose the prefix, all chunks and this text; tells what was moved, "
                      "repaired and computed, and the time");
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
