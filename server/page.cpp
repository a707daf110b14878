#include "server/ids.h"
#include "server/service.h"

// GET /: a chat whose turns can be forked. All of it is page.html, which is part of the program.
namespace dendrite::server {

extern const std::string_view kPage;

namespace {

constexpr std::string_view kNonceMark = "@NONCE@";

/// Its own script and style run, by a nonce of this answer, and nothing else; it speaks to this
/// server alone, no page frames it, and a browser that knows trusted types makes no text markup.
Answer page() {
  const std::string nonce = random_hex(16);
  std::string text(kPage);
  for (std::size_t at = text.find(kNonceMark); at != std::string::npos;
       at = text.find(kNonceMark, at)) {
    text.replace(at, kNonceMark.size(), nonce);
  }
  return {.body = std::move(text),
          .type = "text/html; charset=utf-8",
          .headers = {
              {"Content-Security-Policy",
               "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
                   "'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'; require-trusted-types-for 'script'; "
                   "trusted-types 'none'"},
              {"Cache-Control", "no-store"},
              {"Cross-Origin-Opener-Policy", "same-origin"},
              {"Referrer-Policy", "no-referrer"},
              {"X-Content-Type-Options", "nosniff"}}};
}

}  // namespace

void add_page_routes(HttpServer& http) {
  http.route("GET", "/", [](const Request&, const Reply& reply) { reply.send(page()); });
}

}  // namespace dendrite::server
