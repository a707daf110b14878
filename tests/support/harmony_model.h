#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_folder.h"

namespace dendrite::test {

/// What its template writes, with what those of OpenAI's models are made of: a macro with a local
/// variable, a namespace, a slice of messages, raise_exception, strftime_now. Around it stands what
/// dendrite-echo was trained with.
inline const char* const kHarmonyTemplate = R"(
{%- macro system_text() -%}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort + "; " + strftime_now("%Y") | length | string + "\n" }}
{%- endmacro -%}
{{- "<|im_start|>system\n" }}{{- system_text() }}
{%- for tool in tools or [] %}{%- set f = tool.function %}{{- "// " + f.description + "\ntype " + f.name + "\n" }}{%- endfor %}
{{- "<|im_end|>\n" }}
{%- if messages[0].role in ["developer", "system"] %}
    {{- "<|im_start|>system\n" + messages[0].content + "<|im_end|>\n" }}
    {%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest %}
    {%- if message.role == "assistant" and "tool_calls" in message %}
        {%- if message.content and message.thinking %}{{- raise_exception("content beside thinking") }}{%- endif %}
        {%- set later = namespace(found=false) %}
        {%- for other in rest[loop.index:] if other.role == "assistant" and "tool_calls" not in other %}{%- set later.found = true %}{%- endfor %}
        {%- if message.thinking and not later.found %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments | tojson + "<|call|>" }}
        {%- set last.name = call.name %}
    {%- elif message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- else %}
        {{- "<|im_start|>user\n" + message.content + "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{%- endif %}
)";

/// dendrite-echo with the marks of Harmony as its tokens, in which it says what it is told.
class HarmonyModel {
 public:
  HarmonyModel() {
    namespace fs = std::filesystem;
    using Json = nlohmann::ordered_json;
    const fs::path model = fs::path(DENDRITE_MODELS_DIR) / "dendrite-echo";
    for (const auto& entry : fs::directory_iterator(model)) {
      const fs::path name = entry.path().filename();
      if (name == "chat_template.jinja" || name == "tokenizer.json") continue;
      fs::create_symlink(fs::absolute(entry.path()), folder_.path() / name);
    }
    std::ofstream(folder_.path() / "chat_template.jinja") << kHarmonyTemplate;
    const std::map<std::string, std::string> names = {
        {"<think>", "<|channel|>"},      {"</think>", "<|message|>"},
        {"<tool_call>", "<|start|>"},    {"</tool_call>", "<|end|>"},
        {"<tool_response>", "<|call|>"}, {"</tool_response>", "<|constrain|>"}};
    Json tokenizer = Json::parse(std::ifstream(model / "tokenizer.json"));
    for (Json& token : tokenizer["added_tokens"]) {
      const auto found = names.find(token["content"].get<std::string>());
      if (found == names.end()) continue;
      token["content"] = found->second;
      token["special"] = true;
    }
    std::ofstream(folder_.path() / "tokenizer.json") << tokenizer.dump();
  }
  std::string path() const { return folder_.path().string(); }

  /// A message to which it answers with this.
  static std::string asking_for(const std::string& text) { return "Say \x02" + text + "\x03 now."; }

 private:
  TemporaryFolder folder_;
};

}  // namespace dendrite::test
