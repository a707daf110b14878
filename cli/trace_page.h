#pragma once

#include <string>
#include <string_view>

namespace dendrite::cli {

/// The text of trace_page.html, which is part of the program.
extern const std::string_view kTracePage;

/// One HTML page with everything in it that shows a trace: its lines, as SearchTrace writes them.
std::string trace_page(std::string_view lines);

}  // namespace dendrite::cli
