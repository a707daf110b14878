#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

// What HTTP is as text: paths, queries, heads of answers.
namespace dendrite::server {

/// %41 to A; nullopt for what is no escape, and for a NUL.
std::optional<std::string> percent_decoded(std::string_view text);

/// What stands at each {} where `path` is of this pattern; nullopt: it is not.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path);

/// Status line and headers, with the empty line. `length`: of the body; nullopt: it comes in
/// chunks, or until the end of the connection where `chunked` is false.
std::string answer_head(int status, std::string_view type, const std::vector<Header>& headers,
                        std::optional<std::size_t> length, bool chunked, bool keep_alive);

}  // namespace dendrite::server
