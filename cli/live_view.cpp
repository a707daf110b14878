#include "live_view.h"

#include <algorithm>
#include <cstdio>

namespace dendrite::cli {
namespace {

// No line wraps, so that lines drawn are lines of the screen; no cursor in the picture.
constexpr std::string_view kPrepareTerminal = "\033[?7l\033[?25l";
constexpr std::string_view kGap = "   ";
constexpr double kSpeedSeconds = 2;  // over which the speed is taken

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

/// 1234567 as 1,234,567.
std::string count(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return text;
}

std::string bytes(std::int64_t number) {
  const auto value = static_cast<double>(number);
  if (value >= 1e9) return format("%.2f GB", value / 1e9);
  if (value >= 1e6) return format("%.1f MB", value / 1e6);
  return format("%.1f kB", value / 1e3);
}

std::string times(std::int64_t more, std::int64_t less) {
  if (less <= 0) return "";
  return format(" (%.1fx)", static_cast<double>(more) / static_cast<double>(less));
}

}  // namespace

std::string to_line(const SearchEvent& event) {
  const Thought& thought = *event.thought;
  const std::string text = one_line(thought.text).text;
  std::string line =
      format("%-8s  %lld", name_of(event.kind), static_cast<long long>(thought.node));
  switch (event.kind) {
    case SearchEvent::Kind::kProposed:
      return line + format(" of %lld: ", static_cast<long long>(thought.parent)) + text +
             format("  (%lld tokens, logprob %.3f)", static_cast<long long>(thought.tokens),
                    thought.logprob);
    case SearchEvent::Kind::kJudged:
      return line + format(": value %.3f", thought.value);
    case SearchEvent::Kind::kVisited:
      return line + format(": value %.3f after %lld visits", thought.value,
                           static_cast<long long>(thought.visits));
    case SearchEvent::Kind::kKept:
    case SearchEvent::Kind::kPruned:
    case SearchEvent::Kind::kSolved:
      break;
  }
  return line + ": " + text;
}

LiveView::LiveView(ViewPort port, std::string title)
    : port_(std::move(port)), title_(std::move(title)) {
  if (port_.size()) port_.write(kPrepareTerminal);
}

void LiveView::on(const SearchEvent& event) {
  tree_.on(event);
  if (!port_.size()) port_.write(format("%9.3f s  ", port_.seconds()) + to_line(event) + "\n");
}

void LiveView::close() {
  if (port_.size()) {
    draw();
    port_.write(kRestoreTerminal);
    return;
  }
  std::string line = format("%9.3f s  end", port_.seconds());
  for (const std::string& part : status(kAnyColumns, 1)) line += std::string(kGap) + part;
  port_.write(line + "\n");
}

void LiveView::draw() {
  const std::optional<TerminalSize> size = port_.size();
  if (!size) return;
  std::string out;
  if (drawn_ > 0 && (size->columns != size_.columns || size->rows != size_.rows)) {
    out += "\033[H\033[2J";  // the terminal has moved what was drawn: begin anew
    drawn_ = 0;
  }
  if (drawn_ > 0) out += format("\r\033[%zuA", drawn_);
  const std::vector<std::string> lines = frame(*size);
  for (const std::string& line : lines) out += line + "\033[K\r\n";
  out += "\033[J";
  port_.write(out);
  drawn_ = lines.size();
  size_ = *size;
}

std::vector<std::string> LiveView::frame(TerminalSize size) {
  const int rows = std::max(1, size.rows - 1);  // the cursor's line is below the picture
  std::vector<std::string> lines;
  if (rows >= 8) {
    lines.push_back(port_.paint.bold + one_line(title_, size.columns).text + port_.paint.off);
  }
  std::vector<std::string> end = status(size.columns, std::clamp(rows / 4, 1, 4));
  const int left = rows - static_cast<int>(lines.size() + end.size());
  for (std::string& line : tree_.lines(size.columns, left, port_.paint)) {
    lines.push_back(std::move(line));
  }
  for (const std::string& line : end) lines.push_back(port_.paint.dim + line + port_.paint.off);
  return lines;
}

std::vector<std::string> LiveView::status(int columns, int rows) {
  const Stats s = port_.stats();
  const double now = port_.seconds();
  const std::string parts[] = {
      format("%.1f s", now),
      format("%.0f tokens/s", tokens_per_second(s.tokens_computed, now)),
      format("%zu thoughts, %zu kept, %zu pruned", tree_.thoughts(), tree_.kept(), tree_.pruned()),
      count(s.tokens_computed) + " tokens computed, " + count(s.tokens_independent) +
          " as independent prompts" + times(s.tokens_independent, s.tokens_computed),
      format("fork %.0f ns", s.fork_ns),
      count(s.branches_live) + " live branches",
      "KV at most " + bytes(s.kv_bytes_unique) + " in shared pages, " + bytes(s.kv_bytes_naive) +
          " without" + times(s.kv_bytes_naive, s.kv_bytes_unique),
  };
  std::vector<Line> lines(1);
  for (const std::string& part : parts) {
    const Line next = one_line(part, columns);
    const int gap = lines.back().columns > 0 ? static_cast<int>(kGap.size()) : 0;
    if (gap > 0 && lines.back().columns + gap + next.columns > columns) {
      if (static_cast<int>(lines.size()) == rows) break;
      lines.push_back(next);
      continue;
    }
    if (gap > 0) lines.back().text += kGap;
    lines.back().text += next.text;
    lines.back().columns += gap + next.columns;
  }
  std::vector<std::string> out;
  for (Line& line : lines) out.push_back(std::move(line.text));
  return out;
}

/// Over the last kSpeedSeconds, or all the time that there was.
double LiveView::tokens_per_second(std::int64_t tokens, double now) {
  if (samples_.empty()) samples_.emplace_back(0, 0);
  samples_.emplace_back(now, tokens);
  while (samples_.size() > 2 && samples_[1].first <= now - kSpeedSeconds) samples_.pop_front();
  const auto [then, before] = samples_.front();
  return now > then ? static_cast<double>(tokens - before) / (now - then) : 0;
}

}  // namespace dendrite::cli
