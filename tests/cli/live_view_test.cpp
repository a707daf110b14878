#include "live_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace dendrite::cli {
namespace {

using Kind = SearchEvent::Kind;

/// What a terminal shows of what was written to it: the control sequences that a live view uses.
/// Text is one column a code point. A line that is too long, or an unknown sequence, is an error.
class FakeTerminal {
 public:
  explicit FakeTerminal(TerminalSize size) : size_(size), lines_(1) {}

  void write(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] == '\033') {
        i += sequence(text.substr(i));
      } else if (text[i] == '\r') {
        column_ = 0;
        ++i;
      } else if (text[i] == '\n') {
        if (++row_ == lines_.size()) lines_.emplace_back();
        ++i;
      } else {
        std::size_t end = i + 1;
        while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
        put(text.substr(i, end - i));
        i = end;
      }
    }
  }
  /// Lines that are too long now are broken; what no longer fits goes off the top.
  void resize(TerminalSize size) {
    size_ = size;
    const auto columns = static_cast<std::size_t>(size.columns);
    for (std::size_t row = 0; row < lines_.size(); ++row) {
      if (lines_[row].size() <= columns) continue;
      lines_.insert(lines_.begin() + static_cast<std::ptrdiff_t>(row) + 1,
                    {lines_[row].begin() + size.columns, lines_[row].end()});
      lines_[row].resize(columns);
      if (row < row_) ++row_;
    }
    while (static_cast<int>(lines_.size()) > size.rows) {
      lines_.erase(lines_.begin());
      --row_;
    }
  }
  TerminalSize size() const { return size_; }
  bool cursor_shown() const { return cursor_shown_; }
  bool wraps() const { return wraps_; }

  /// All lines up to the cursor's, without blanks behind.
  std::string screen() const {
    std::string out;
    for (std::size_t row = 0; row < lines_.size() - 1; ++row) {
      std::string line;
      for (const std::string& sign : lines_[row]) line += sign;
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::size_t sequence(std::string_view text) {
    const std::size_t end = text.find_first_of("ABCDHJKhlm", 1);
    const std::string_view whole = text.substr(0, end + 1);
    const int number = std::atoi(std::string(text.substr(2)).c_str());
    switch (text[end]) {
      case 'A':
        EXPECT_LE(static_cast<std::size_t>(number), row_);
        row_ -= static_cast<std::size_t>(number);
        break;
      case 'H':
        row_ = column_ = 0;
        break;
      case 'J':
        if (number == 2) lines_.assign(1, {});
        lines_.resize(row_ + 1);
        lines_[row_].resize(std::min(lines_[row_].size(), column_));
        break;
      case 'K':
        lines_[row_].resize(std::min(lines_[row_].size(), column_));
        break;
      case 'm':
        break;
      default:
        if (whole == "\033[?25l" || whole == "\033[?25h") {
          cursor_shown_ = whole.back() == 'h';
        } else if (whole == "\033[?7l" || whole == "\033[?7h") {
          wraps_ = whole.back() == 'h';
        } else {
          ADD_FAILURE() << "unknown sequence " << whole.substr(1);
        }
    }
    return end + 1;
  }

  void put(std::string_view sign) {
    std::vector<std::string>& line = lines_[row_];
    if (line.size() <= column_) line.resize(column_ + 1, " ");
    line[column_++] = sign;
    EXPECT_LE(static_cast<int>(column_), size_.columns);
    EXPECT_LT(static_cast<int>(row_) + 1, size_.rows) << "the screen would scroll";
  }

  TerminalSize size_;
  std::vector<std::vector<std::string>> lines_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  bool cursor_shown_ = true;
  bool wraps_ = true;
};

/// A thought's line: its value ends at this column.
std::string row(const std::string& text, const std::string& value, std::size_t end) {
  const auto columns = static_cast<std::size_t>(one_line(text).columns);
  return text + std::string(end - columns - value.size(), ' ') + value + "\n";
}

Stats some_stats() {
  Stats stats;
  stats.tokens_computed = 741;
  stats.tokens_independent = 6215;
  stats.fork_ns = 45.2;
  stats.branches_live = 12;
  stats.kv_bytes_unique = 1'200'000;
  stats.kv_bytes_naive = 9'360'000;
  return stats;
}

/// Tells a view of a search that is made up here.
class Script {
 public:
  Script(LiveView& view) : view_(view), thoughts_(1) {}

  std::size_t propose(std::size_t parent, std::string text, double value) {
    Thought& thought = thoughts_.emplace_back();
    const std::size_t id = thoughts_.size() - 1;
    thought.node = static_cast<NodeId>(id);
    thought.parent = static_cast<NodeId>(parent);
    thought.depth = thoughts_[parent].depth + 1;
    thought.text = std::move(text);
    thought.tokens = 9;
    thought.logprob = -0.25;
    tell(Kind::kProposed, id);
    thoughts_[id].value = value;
    tell(Kind::kJudged, id);
    return id;
  }
  void visit(std::size_t id, double value, std::int64_t visits) {
    thoughts_[id].value = value;
    thoughts_[id].visits = visits;
    tell(Kind::kVisited, id);
  }
  void tell(Kind kind, std::size_t id) { view_.on({kind, &thoughts_[id]}); }

 private:
  LiveView& view_;
  std::vector<Thought> thoughts_;
};

/// Three steps, of which two go on; one of their children solves it.
void small_search(Script& script) {
  script.propose(0, "13-9=4 | 3 4 5\n", 0.93);
  script.propose(0, "9-3=6 | 5 6 13", 0.41);
  script.propose(0, "5+3=8 | 8 9 13", 0.2);
  script.tell(Kind::kKept, 1);
  script.tell(Kind::kKept, 2);
  script.tell(Kind::kPruned, 3);
  script.propose(1, "5+3=8 | 4 8", 0.5);
  script.propose(2, "13+5=18 | 6 18", std::numeric_limits<double>::quiet_NaN());
  script.propose(1, "5*4=20 | 3 20", 0.1);
}

class LiveViewTest : public testing::Test {
 protected:
  ViewPort port(TerminalSize size) {
    terminal.emplace(size);
    ViewPort port;
    port.write = [this](std::string_view text) { terminal->write(text); };
    port.size = [this] { return terminal->size(); };
    port.stats = [this] { return stats; };
    port.seconds = [this] { return seconds; };
    return port;
  }

  std::optional<FakeTerminal> terminal;
  Stats stats = some_stats();
  double seconds = 1.5;
};

TEST_F(LiveViewTest, DrawsTheTreeAndItsStatus) {
  LiveView view(port({100, 30}), "3 5 9 13 -> 24");
  EXPECT_FALSE(terminal->cursor_shown());
  EXPECT_FALSE(terminal->wraps());
  Script script(view);
  small_search(script);
  view.draw();
  EXPECT_EQ(terminal->screen(),
            "3 5 9 13 -> 24\n" + row("● 13-9=4 | 3 4 5", "0.930", 41) +
                row("├ ○ 5+3=8 | 4 8", "0.500", 41) + row("└ ○ 5*4=20 | 3 20", "0.100", 41) +
                row("● 9-3=6 | 5 6 13", "0.410", 41) + row("└ ○ 13+5=18 | 6 18", "-", 41) +
                row("× 5+3=8 | 8 9 13", "0.200", 41) +
                "1.5 s   494 tokens/s   6 thoughts, 2 kept, 1 pruned\n"
                "741 tokens computed, 6,215 as independent prompts (8.4x)   fork 45 ns   12 live "
                "branches\n"
                "KV at most 1.2 MB in shared pages, 9.4 MB without (7.8x)\n");
}

TEST_F(LiveViewTest, RedrawsInPlaceAndGivesTheTerminalBack) {
  LiveView view(port({60, 20}), "title");
  Script script(view);
  small_search(script);
  view.draw();
  const std::string before = terminal->screen();
  script.tell(Kind::kSolved, 4);
  seconds = 2;
  stats.tokens_computed = 1741;  // 1000 in half a second
  view.draw();
  const std::string after = terminal->screen();
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'),
            std::count(after.begin(), after.end(), '\n'));
  EXPECT_NE(before.find("○ 5+3=8 | 4 8"), std::string::npos);
  EXPECT_NE(after.find("★ 5+3=8 | 4 8"), std::string::npos);
  EXPECT_NE(after.find("2.0 s   870 tokens/s"), std::string::npos) << after;  // from the start
  seconds = 4;
  stats.tokens_computed = 1941;
  view.draw();
  EXPECT_NE(terminal->screen().find("4.0 s   100 tokens/s"), std::string::npos);  // two seconds
  view.close();
  EXPECT_TRUE(terminal->cursor_shown());
  EXPECT_TRUE(terminal->wraps());
  EXPECT_NE(terminal->screen().find("★ 5+3=8 | 4 8"), std::string::npos);
}

TEST_F(LiveViewTest, BeginsAnewWhenTheTerminalIsResized) {
  LiveView view(port({60, 20}), "title");
  Script script(view);
  small_search(script);
  view.draw();
  for (const TerminalSize size : {TerminalSize{40, 30}, {80, 12}, {30, 10}}) {
    terminal->resize(size);
    view.draw();
    const std::string screen = terminal->screen();
    EXPECT_EQ(screen.substr(0, 6), "title\n") << screen;
    EXPECT_EQ(screen.find("title", 1), std::string::npos) << screen;
    EXPECT_EQ(screen.find("1.5 s"), screen.rfind("1.5 s")) << screen;
  }
}

TEST_F(LiveViewTest, CountsWhatDoesNotFitBestFirst) {
  LiveView view(port({80, 12}), "title");
  Script script(view);
  for (int i = 0; i < 40; ++i) {
    const std::size_t id = script.propose(0, "first " + std::to_string(i), i * 0.01);
    script.tell(i >= 37 ? Kind::kKept : Kind::kPruned, id);
  }
  for (int i = 0; i < 5; ++i) script.propose(40, "second " + std::to_string(i), i);
  view.draw();
  EXPECT_EQ(terminal->screen(),
            "title\n" + row("● first 37", "0.370", 25) + row("● first 38", "0.380", 25) +
                row("● first 39", "0.390", 25) + row("├ ○ second 2", "2.000", 25) +
                row("├ ○ second 3", "3.000", 25) + row("├ ○ second 4", "4.000", 25) +
                "└ + 2 more, best 1.000\n"
                "+ 37 pruned, best 0.360\n"
                "1.5 s   494 tokens/s   45 thoughts, 3 kept, 37 pruned\n"
                "741 tokens computed, 6,215 as independent prompts (8.4x)   fork 45 ns\n");
}

TEST_F(LiveViewTest, CollapsesWhatWasPrunedEvenWhereSomeOfItWouldFit) {
  LiveView view(port({80, 24}), "title");
  Script script(view);
  for (int i = 0; i < 30; ++i) {
    script.tell(i == 10 ? Kind::kKept : Kind::kPruned, script.propose(0, "step", 0.25));
  }
  view.draw();
  EXPECT_EQ(
      terminal->screen().substr(0, 60),
      ("title\n" + row("● step", "0.250", 25) + "+ 29 pruned, best 0.250\n1.5 s").substr(0, 60));
}

TEST_F(LiveViewTest, UsesAllLinesThereAre) {
  LiveView view(port({24, 6}), "title");  // four for the tree
  Script script(view);
  for (const char* text : {"one", "two", "three"}) script.propose(0, text, 1);
  for (int i = 0; i < 5; ++i) script.tell(Kind::kPruned, script.propose(1, "below", 0.5));
  view.draw();
  EXPECT_EQ(terminal->screen(),
            "○ one\n"
            "└ + 5 pruned, best 0.500\n"
            "○ two\n"
            "○ three\n"
            "1.5 s   494 tokens/s\n");
}

TEST_F(LiveViewTest, ShowsTheSolutionHoweverSmallTheScreenIs) {
  LiveView view(port({24, 6}), "title");
  Script script(view);
  std::size_t parent = 0;
  for (int depth = 0; depth < 3; ++depth) {
    const std::size_t first = script.propose(parent, "step " + std::to_string(depth), 0.01);
    script.tell(Kind::kKept, first);
    for (int i = 0; i < 30; ++i) script.tell(Kind::kKept, script.propose(parent, "other", 0.9));
    parent = first;
  }
  script.tell(Kind::kSolved, parent);
  view.draw();
  // Its path would take six lines with the counts of what is beside it; there are four.
  EXPECT_EQ(terminal->screen().find("step 2"), std::string::npos);
  terminal->resize({24, 8});
  view.draw();
  EXPECT_EQ(terminal->screen(),
            "● step 0\n"
            "├ ● step 1\n"
            "│ ├ ★ step 2\n"
            "│ └ + 30 more, best 0.9…\n"
            "└ + 30 more, best 0.900\n"
            "+ 30 more, best 0.900\n"
            "1.5 s   494 tokens/s\n");
}

TEST_F(LiveViewTest, ShowsVisitsOfSearchesThatCountThem) {
  LiveView view(port({60, 20}), "title");
  Script script(view);
  script.propose(0, "one", 0.25);
  script.visit(1, 0.75, 12);
  script.propose(0, "two", 0.5);
  view.draw();
  const std::string screen = terminal->screen();
  const std::string lines = row("○ one", "0.750      12", 33) + row("○ two", "0.500", 25);
  EXPECT_NE(screen.find(lines), std::string::npos) << screen;
}

TEST_F(LiveViewTest, ChainsDeeperThanTheScreenIsWideStayReadable) {
  LiveView view(port({40, 24}), "title");
  Script script(view);
  std::size_t parent = 0;
  for (int depth = 0; depth < 18; ++depth) parent = script.propose(parent, "token", 1);
  view.draw();
  std::istringstream lines(terminal->screen());
  int tokens = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("token ") != std::string::npos) ++tokens;
  }
  EXPECT_EQ(tokens, 18);
}

TEST_F(LiveViewTest, EventsAreLinesWithoutATerminal) {
  std::string out;
  ViewPort plain = port({80, 24});
  plain.write = [&](std::string_view text) { out += text; };
  plain.size = [] { return std::nullopt; };
  seconds = 0.25;
  LiveView view(std::move(plain), "title");
  Script script(view);
  script.propose(0, "10-4=6\033[2J | 5\n6 6\n", 0.93);
  script.visit(1, 0.5, 3);
  script.tell(Kind::kKept, 1);
  view.draw();
  script.tell(Kind::kSolved, 1);
  view.close();
  EXPECT_EQ(out,
            "    0.250 s  proposed  1 of 0: 10-4=6\uFFFD[2J | 5↵6 6  (9 tokens, logprob -0.250)\n"
            "    0.250 s  judged    1: value 0.930\n"
            "    0.250 s  visited   1: value 0.500 after 3 visits\n"
            "    0.250 s  kept      1: 10-4=6\uFFFD[2J | 5↵6 6\n"
            "    0.250 s  solved    1: 10-4=6\uFFFD[2J | 5↵6 6\n"
            "    0.250 s  end   0.2 s   2964 tokens/s   1 thoughts, 1 kept, 0 pruned   "
            "741 tokens computed, 6,215 as independent prompts (8.4x)   fork 45 ns   "
            "12 live branches   KV at most 1.2 MB in shared pages, 9.4 MB without (7.8x)\n");
}

TEST(OneLine, CutsByColumnsOfTheTerminal) {
  const auto text = [](std::string_view from, int columns) { return one_line(from, columns).text; };
  EXPECT_EQ(text("abcdef", 6), "abcdef");
  EXPECT_EQ(text("abcdef", 5), "abcd…");
  EXPECT_EQ(text("abcdef", 1), "…");
  EXPECT_EQ(text("abcdef", 0), "");
  EXPECT_EQ(text("日本語", 6), "日本語");  // two columns each
  EXPECT_EQ(text("日本語", 5), "日本…");
  EXPECT_EQ(text("日本語", 4), "日…");
  EXPECT_EQ(one_line("日本語", 4).columns, 3);
  EXPECT_EQ(one_line("e\u0301tude", 5).columns, 5);  // the accent takes none
  EXPECT_EQ(text("e\u0301tude", 5), "e\u0301tude");
}

TEST(OneLine, CannotHarmATerminal) {
  const auto text = [](std::string_view from) { return one_line(from).text; };
  EXPECT_EQ(text("\n\ra\nb\r\n"), "a↵b");
  EXPECT_EQ(text("a\tb"), "a b");
  EXPECT_EQ(text("\033]0;x\a"), "\uFFFD]0;x\uFFFD");
  EXPECT_EQ(text("\u009b2J"), "\uFFFD2J");              // one code point for ESC [
  EXPECT_EQ(text("a\u202Eb\u2066"), "a\uFFFDb\uFFFD");  // turn the line's direction
  EXPECT_EQ(text(std::string_view("a\0b", 3)), "a\uFFFDb");
  EXPECT_EQ(text("a\xff\xc3"), "a\uFFFD\uFFFD");
  EXPECT_EQ(text("\xe6\x97"), "\uFFFD\uFFFD");  // cut off
}

}  // namespace
}  // namespace dendrite::cli
