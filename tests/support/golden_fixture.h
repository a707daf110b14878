#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/golden_data.h"
#include "support/paths.h"

namespace dendrite::test {

/// Tests of a golden, by its name, in types that the device may lack: a GPU computes mixtures of
/// experts in bf16 alone.
class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (on_cuda() && is_mixture(GetParam())) GTEST_SKIP() << "in bf16 alone on a GPU";
  }
};

}  // namespace dendrite::test
