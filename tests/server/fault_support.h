#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "server/json.h"

namespace dendrite::server {

/// The field that a call refuses, with status 400.
inline std::string param_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.status, 400);
    return fault.param;
  }
  return "nothing was refused";
}

}  // namespace dendrite::server
