#pragma once

#include "server/service.h"

namespace dendrite::server {

/// Who may come in: keys, the Host header where there are none, browsers' origins; and nobody once
/// the server drains. Before bodies are read.
Gate make_gate(Service& service);

/// In the form of the API that the path is of.
Answer error_for(const Service& service, const Request& request, const Fault& fault);

/// Whether `host`, a name or an address without a port, is this machine alone.
bool is_loopback(std::string_view host);

}  // namespace dendrite::server
