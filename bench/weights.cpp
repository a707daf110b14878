#include <filesystem>

#include "models.h"
#include "options.h"
#include "peers/llama_cpp/gguf_writer.h"

namespace dendrite::bench {
namespace {

struct WeightsOptions {
  std::string shape;
  std::string folder;
  std::string gguf;
  std::string tokenizer;
};

}  // namespace

void add_weights(CLI::App& app) {
  auto options = std::make_shared<WeightsOptions>();
  CLI::App* command =
      app.add_subcommand("weights", "Write a checkpoint with random weights of a shape");
  command->add_option("--shape", options->shape, "Which")
      ->check(CLI::IsMember(shape_names()))
      ->required();
  command->add_option("--out", options->folder, "Folder; weights that are there are kept")
      ->required();
  command->add_option("--gguf", options->gguf, "The same weights as FOLDER/model-TYPE.gguf, too")
      ->check(CLI::IsMember({"bf16", "f16"}));
  command->add_option("--tokenizer", options->tokenizer,
                      "A folder with a tokenizer.json, whose vocabulary takes the shape's place");
  command->callback([options] {
    write_checkpoint(options->shape, options->folder, options->tokenizer);
    if (options->gguf.empty()) return;
    const std::filesystem::path folder = options->folder;
    write_gguf(folder, options->gguf, folder / ("model-" + options->gguf + ".gguf"));
  });
}

}  // namespace dendrite::bench
