#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dendrite {

/// Watches the text of one decode call for stop strings. Text that may be the beginning of a stop
/// string is held back from streaming until it is decided.
class TextWatch {
 public:
  explicit TextWatch(const std::vector<std::string>* stops) : stops_(stops) {}

  /// Adds what a token brought. True when a stop string is complete: text() then ends before it.
  /// `may_end`: false: one that is complete by now is text like any other.
  bool add(std::string_view piece, bool may_end = true);
  /// The same where a token may change earlier text: `text` is all of it.
  bool replace(std::string text, bool may_end = true);
  /// What may be shown and has not been yet; all of it when `final`.
  std::string take_visible(bool final);

  const std::string& text() const { return text_; }
  /// The stop string before which the text ends; empty: none.
  std::string_view stop() const { return stop_ == nullptr ? std::string_view() : *stop_; }

 private:
  bool cut_at_stop(std::size_t from);

  const std::vector<std::string>* stops_;
  const std::string* stop_ = nullptr;
  std::string text_;
  std::size_t looked_ = 0;  // stop strings that end up to there are none
  std::size_t shown_ = 0;
};

}  // namespace dendrite
