#include "texts.h"

#include <sstream>
#include <utility>

#include "common.h"

namespace dendrite::cli {
namespace {

TextSample sample_of(const std::string& line, const std::string& where) {
  const auto fail = [&where]() {
    throw Error(where + R"(: expected {"text": "..."}, or {"prompt": "...", "text": "..."})");
  };
  const Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object() || !value.contains("text")) fail();
  const Json prompt = value.value("prompt", Json(""));
  if (!value["text"].is_string() || !prompt.is_string()) fail();
  return {value["text"].get<std::string>(), prompt.get<std::string>()};
}

void read_lines(const std::string& file, std::vector<TextSample>& samples) {
  std::istringstream lines(read_file(file));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    samples.push_back(sample_of(line, file + ":" + std::to_string(number)));
  }
}

}  // namespace

std::vector<TextSample> read_samples(const std::vector<std::string>& files) {
  std::vector<TextSample> samples;
  for (const std::string& file : files) {
    if (file.ends_with(".jsonl")) {
      read_lines(file, samples);
    } else {
      samples.push_back({.text = read_file(file)});
    }
  }
  return samples;
}

}  // namespace dendrite::cli
