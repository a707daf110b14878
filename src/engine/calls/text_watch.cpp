#include "engine/calls/text_watch.h"

#include <algorithm>

namespace dendrite {

bool TextWatch::add(std::string_view piece, bool may_end) {
  const std::size_t before = text_.size();
  text_ += piece;
  if (!may_end) looked_ = text_.size();
  return may_end && cut_at_stop(before);
}

bool TextWatch::replace(std::string text, bool may_end) {
  text_ = std::move(text);
  if (!may_end) looked_ = text_.size();
  return may_end && cut_at_stop(std::min(looked_, text_.size()));
}

/// Cuts the text before the first stop string that ends after `from`, the shortest of several.
bool TextWatch::cut_at_stop(std::size_t from) {
  std::size_t cut = std::string::npos;
  for (const std::string& stop : *stops_) {
    const std::size_t at = text_.find(stop, from >= stop.size() ? from - stop.size() + 1 : 0);
    if (at == std::string::npos || at > cut) continue;
    if (at == cut && stop_->size() <= stop.size()) continue;
    cut = at;
    stop_ = &stop;
  }
  if (cut == std::string::npos) return false;
  text_.resize(cut);
  return true;
}

std::string TextWatch::take_visible(bool final) {
  std::size_t end = text_.size();
  if (!final) {
    for (const std::string& stop : *stops_) {
      for (std::size_t n = std::min(stop.size() - 1, text_.size()); n > 0; --n) {
        if (std::string_view(text_).ends_with(std::string_view(stop).substr(0, n))) {
          end = std::min(end, text_.size() - n);
          break;
        }
      }
    }
  }
  if (end <= shown_) return {};
  std::string out = text_.substr(shown_, end - shown_);
  shown_ = end;
  return out;
}

}  // namespace dendrite
