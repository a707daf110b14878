#include "trace_page.h"

namespace dendrite::cli {

std::string trace_page(std::string_view lines) {
  constexpr std::string_view kPlace = "@TRACE@";
  const std::size_t place = kTracePage.find(kPlace);
  std::string page(kTracePage.substr(0, place));
  // A "<" of a thought could end the element that the lines are in. In JSON it only stands in
  // texts, where it may be written as an escape.
  for (const char c : lines) {
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  return page += kTracePage.substr(place + kPlace.size());
}

}  // namespace dendrite::cli
