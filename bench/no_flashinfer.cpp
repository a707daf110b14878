#include "options.h"

// In place of peers/flashinfer/ where the build has none.

namespace dendrite::bench {

void add_flashinfer(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("flashinfer", "Tree attention beside FlashInfer's (not in this build)");
  command->callback([] {
    throw Error(
        "flashinfer: this build has none of it; expected one that was configured with "
        "--preset cuda -DDENDRITE_BENCH_FLASHINFER=ON");
  });
}

}  // namespace dendrite::bench
