#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dendrite::chats {

/// What a character of a call's text was.
enum class CallNow : std::uint8_t {
  kMore,
  kNoCall,     ///< it is no call; the character, and unread() before it, are not taken
  kCallEnded,  ///< one that had begun
  kBroken,     ///< one that had begun goes on as none does; the character is not taken
};

/// How a call is written that is no JSON as a whole.
enum class CallStyle : std::uint8_t {
  kFunction,  ///< <function=f><parameter=p>value</parameter></function>
  kInvoke,    ///< <invoke name="f"><parameter name="p">value</parameter></invoke>
  kKeys,      ///< f<arg_key>p</arg_key><arg_value>value</arg_value>
  kNamed,     ///< f[ARGS]{"p": value}
  kGemma,     ///< call:f{p:value}
  kPython,    ///< [f(p=value)]
};

/// A tag that stands before calls.
struct CallTag {
  std::string_view open, close;     ///< `close` empty: there is none
  bool json = false;                ///< an object, or an array of such, may follow
  std::optional<CallStyle> kind{};  ///< ... or this; kFunction and kInvoke may anywhere
  std::string_view begin{};         ///< with which that begins; empty: with its name
};

inline constexpr std::array<CallTag, 7> kCallTags = {{
    {"<tool_call>", "</tool_call>", true, CallStyle::kKeys},
    {"<|tool_call>", "<tool_call|>", false, CallStyle::kGemma, "call:"},
    {"<|tool_call|>", "<|/tool_call|>", true},
    {"[TOOL_CALLS]", "", true, CallStyle::kNamed},
    {"<|tool_call_start|>", "<|tool_call_end|>", true, CallStyle::kPython},
    {"<minimax:tool_call>", "</minimax:tool_call>"},
    {"<seed:tool_call>", "</seed:tool_call>"},
}};

/// What else stands in calls and may be a special token, which is no text.
inline constexpr std::array<std::string_view, 7> kCallMarks = {
    "[ARGS]", "[CALL_ID]", "<|\"|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

/// What functions and their kin begin with, in tags or without.
inline constexpr std::string_view kFunctionBegin = "<function=";
inline constexpr std::string_view kInvokeBegin = "<invoke name=\"";

}  // namespace dendrite::chats
