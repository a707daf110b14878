// How a model writes calls, seen from what its template makes of one.
#include <regex>

#include "chat/call_tags.h"
#include "chat/harmony_chat.h"
#include "dendrite/error.h"
#include "dendrite/tool_grammar.h"

namespace dendrite {
namespace {

using Kind = CallForm::Kind;

/// What the template makes of a tool and a call of it; empty: it knows none.
std::string rendered_call(const Engine& engine) {
  const std::string call = R"({"role": "user", "content": "probe"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "probe1234", "type": "function",
      "function": {"name": "probe_tool", "arguments": {"probe_key": "probe"}}}]})";
  const std::string result =
      R"(, {"role": "tool", "content": "probe", "tool_call_id": "probe1234", "name": "probe_tool"})";
  const char* const tools = R"([{"type": "function", "function":
    {"name": "probe_tool", "description": "probe", "parameters": {"type": "object",
      "properties": {"probe_key": {"type": "string", "description": "probe"}},
      "required": ["probe_key"]}}}])";
  for (const std::string& messages : {"[" + call + result + "]", "[" + call + "]"}) {
    try {
      return engine.render_chat(messages, {.tools_json = tools});
    } catch (const Error&) {  // it knows no results, or no tools
    }
  }
  return {};
}

/// The tags, if the call stands behind the first of them.
bool set_tags(CallForm& form, std::string_view text, std::string_view open) {
  if (text.find(open) == std::string_view::npos) return false;
  for (const chats::CallTag& tag : chats::kCallTags) {
    if (tag.open != open) continue;
    form.open = tag.open;
    form.close = tag.close;
  }
  return true;
}

CallForm json_form(const std::string& text) {
  CallForm form;
  for (const chats::CallTag& tag : chats::kCallTags) {
    if (!tag.json) continue;
    const std::string open =
        std::regex_replace(std::string(tag.open), std::regex(R"([\[\]|])"), R"(\$&)");
    std::smatch found;
    if (!std::regex_search(text, found, std::regex(open + R"(\s*(\[?)\s*\{\s*")"))) continue;
    set_tags(form, text, tag.open);
    form.list = found[1].length() > 0;
    break;
  }
  if (std::regex_search(text,
                        std::regex(R"x("parameters"\s*:\s*\{\s*"probe_key"\s*:\s*"probe")x"))) {
    form.key = "parameters";
  }
  return form;
}

}  // namespace

CallForm call_form_of(const Engine& engine) {
  if (chats::harmony_tokens_of(engine)) return {.kind = Kind::kHarmony};
  const std::string text = rendered_call(engine);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  CallForm form;
  if (has(chats::kFunctionBegin)) {
    form.kind = Kind::kFunction;
    form.lines = !has("<parameter=probe_key>probe");
    if (!set_tags(form, text, "<seed:tool_call>")) set_tags(form, text, "<tool_call>");
  } else if (has(chats::kInvokeBegin)) {
    form.kind = Kind::kInvoke;
    set_tags(form, text, "<minimax:tool_call>");
  } else if (has("<arg_key>probe_key</arg_key>")) {
    form.kind = Kind::kKeys;
    form.lines = !has("<tool_call>probe_tool<arg_key>");
    set_tags(form, text, "<tool_call>");
  } else if (has("<|tool_call>call:probe_tool{")) {
    form.kind = Kind::kGemma;
    form.results = !has("<|tool_response>");
    set_tags(form, text, "<|tool_call>");
  } else if (has("[TOOL_CALLS]probe_tool")) {
    form.kind = Kind::kNamed;
    form.id = has("[CALL_ID]");
    set_tags(form, text, "[TOOL_CALLS]");
  } else if (has("<|tool_call_start|>[probe_tool(") ||
             (has("<|tool_list_start|>") && !has("<|tool_call_start|>[{"))) {
    form.kind = Kind::kPython;
    form.open = "<|tool_call_start|>";
    form.close = "<|tool_call_end|>";
  } else {
    form = json_form(text);
  }
  return form;
}

}  // namespace dendrite
