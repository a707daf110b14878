// Documents to rows: tokens, packing, and the stream that training reads.
//
// Rows are little-endian 16-bit tokens, 256 unless said otherwise: the low 9 bits are the id, the
// top bit says that the token is learnt (carries loss as a target). The 6 bits between are the
// piece of its document: tokens of piece 0 are seen by all behind them, tokens of piece 63 see all
// before them, and others see their own piece and piece 0. Nothing but contexts (contexts.h) has
// pieces. A row holds whole documents, each behind <bos>, and <pad> at its end. The stream depends
// on what draws and on the seed only: threads write numbered blocks in order.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "document.h"
#include "random.h"

namespace train {

inline constexpr std::uint16_t kLearnt = 0x8000;
inline constexpr std::uint16_t kSeesAll = 63;  // the piece
inline constexpr int kPieceShift = 9;

/// The token of each byte: its place in GPT-2's alphabet (see tokenizer.py), or the special token
/// that it stands for.
inline std::array<std::uint16_t, 256> byte_tokens() {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  std::array<std::uint16_t, 256> token{};
  std::uint16_t next = 0;
  for (const bool wanted : {true, false})
    for (int b = 0; b < 256; ++b)
      if (printable(b) == wanted) token[b] = next++;
  for (int b = kSpecialByte; b < 256; ++b) token[b] = kBos + b - kSpecialByte;
  return token;
}

inline constexpr int kRowTokens = 256;
inline constexpr int kBlockRows = 256;  // the unit of work of a thread; 128 KiB
inline constexpr int kWaiting = 48;     // documents to choose from when filling the end of a row

/// Draws a document. Deterministic given the Rng; used by one thread.
using Draw = std::function<Document(Rng&)>;

class Packer {
 public:
  explicit Packer(Draw draw, int row_tokens = kRowTokens)
      : draw_document_(std::move(draw)),
        row_tokens_(static_cast<std::size_t>(row_tokens)),
        byte_token_(byte_tokens()) {}

  std::vector<std::uint16_t> block(std::uint64_t seed, std::uint64_t number) {
    Rng rng(seed, number);
    std::deque<std::vector<std::uint16_t>> waiting;
    std::vector<std::uint16_t> tokens;
    // Longer rows are fewer, but so many that what waits at the end is little.
    const std::size_t rows = row_tokens_ > kRowTokens ? kBlockRows / 4 : kBlockRows;
    tokens.reserve(rows * row_tokens_);
    for (std::size_t row = 0; row < rows; ++row) {
      std::size_t room = row_tokens_;
      for (;;) {
        while (waiting.size() < kWaiting) waiting.push_back(draw(rng));
        // The oldest if it fits, so that long documents are not put off for ever; else the longest
        // that fits.
        auto best = waiting.begin();
        if (best->size() > room)
          for (auto it = waiting.begin(); it != waiting.end(); ++it)
            if (it->size() <= room && (best->size() > room || it->size() > best->size())) best = it;
        if (best->size() > room) break;
        tokens.insert(tokens.end(), best->begin(), best->end());
        room -= best->size();
        waiting.erase(best);
      }
      tokens.insert(tokens.end(), room, kPad);
    }
    return tokens;
  }

 private:
  /// One document as tokens, behind <bos>. One that is too long for a row is drawn again.
  std::vector<std::uint16_t> draw(Rng& rng) {
    for (;;) {
      const Document document = draw_document_(rng);
      if (document.text.size() + 2 + document.asks_for_call > row_tokens_) continue;
      std::vector<std::uint16_t> tokens{kBos};
      if (document.asks_for_call) tokens.push_back(kCall);
      for (std::size_t i = 0; i < document.text.size(); ++i) {
        const std::uint16_t token = byte_token_[static_cast<unsigned char>(document.text[i])];
        if (!document.marks.empty())
          tokens.push_back(token | document.marks[i]);
        else
          tokens.push_back(i >= document.learnt_from ? token | kLearnt : token);
      }
      if (document.ends) tokens.push_back(kEos | kLearnt);
      return tokens;
    }
  }

  Draw draw_document_;
  std::size_t row_tokens_;
  std::array<std::uint16_t, 256> byte_token_;
};

/// Blocks 0, 1, 2, ... to stdout, made by `threads` threads, each with a Draw of its own. A thread
/// whose block is not next waits, so at most one block a thread is held back. Ends after `blocks`
/// (0: never) or when the reader closes the pipe.
inline void write_rows(const std::function<Draw()>& make_draw, std::uint64_t seed, int threads,
                       std::uint64_t blocks, int row_tokens = kRowTokens) {
  std::atomic<std::uint64_t> next_to_make{0};
  std::uint64_t next_to_write = 0;
  bool closed = false;
  std::mutex mutex;
  std::condition_variable turn;
  const auto work = [&] {
    Packer packer(make_draw(), row_tokens);
    for (;;) {
      const std::uint64_t number = next_to_make.fetch_add(1);
      if (blocks > 0 && number >= blocks) return;
      const std::vector<std::uint16_t> tokens = packer.block(seed, number);
      std::unique_lock lock(mutex);
      turn.wait(lock, [&] { return closed || next_to_write == number; });
      if (closed) return;
      closed = std::fwrite(tokens.data(), sizeof tokens[0], tokens.size(), stdout) != tokens.size();
      ++next_to_write;
      turn.notify_all();
      if (closed) return;
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work);
}

/// One document a line: where learning starts, whether <eos> follows, and the text with "\n"
/// escaped.
inline void print_documents(const Draw& draw, int count, std::uint64_t seed) {
  Rng rng(seed, 0);
  for (int i = 0; i < count; ++i) {
    const Document document = draw(rng);
    std::string escaped;
    for (const char c : document.text) c == '\n' ? escaped += "\\n" : escaped += c;
    std::printf("%zu\t%d\t%s\n", document.learnt_from, document.ends, escaped.c_str());
  }
}

}  // namespace train
