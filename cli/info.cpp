#include <iomanip>
#include <iostream>

#include "common.h"

namespace dendrite::cli {
namespace {

int run(const CommonFlags& flags) {
  const Engine engine = flags.load(/*weights=*/false);
  const EngineInfo& i = engine.info();
  const Json model{{"path", i.model_path},
                   {"model_type", i.model_type},
                   {"parameters", i.parameters},
                   {"weight_bytes", i.weight_bytes},
                   {"layers", i.layers},
                   {"dim", i.dim},
                   {"ffn_dim", i.ffn_dim},
                   {"heads", i.heads},
                   {"kv_heads", i.kv_heads},
                   {"head_dim", i.head_dim},
                   {"vocab", i.vocab},
                   {"max_positions", i.max_positions},
                   {"rope", i.rope},
                   {"stored_dtype", i.stored_dtype},
                   {"compute_dtype", i.compute_dtype},
                   {"bos", i.bos},
                   {"eos", i.eos},
                   {"tokenizer", i.has_tokenizer},
                   {"chat_template", i.has_chat_template}};
  const Json device{{"kind", i.device},
                    {"name", i.device_name},
                    {"threads", i.threads},
                    {"kernels", i.kernels},
                    {"available_kernels", i.available_kernels},
                    {"attention", i.attention},
                    {"graphs", i.graphs},
                    {"numerics_key", i.numerics_key}};
  if (flags.json) {
    print_json({{"model", model}, {"device", device}});
    return 0;
  }
  for (const auto& [section, values] : {std::pair{"model", &model}, std::pair{"device", &device}}) {
    std::cout << section << "\n";
    for (const auto& [key, value] : values->items()) {
      std::cout << "  " << std::left << std::setw(18) << key
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
  }
  return 0;
}

}  // namespace

void add_info(CLI::App& app, int& status) {
  auto flags = std::make_shared<CommonFlags>();
  CLI::App* command = app.add_subcommand(
      "info", "What a model folder holds, what the machine offers, which kernels would run");
  flags->add_to(*command);
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
