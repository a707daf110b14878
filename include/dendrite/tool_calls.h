#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Calls of tools in generated text, as the text comes. It needs no engine.
namespace dendrite {

/// A call that a model asked for.
struct ToolCall {
  std::string id;         ///< of this call alone ("call_" and 24 hex digits), for its result
  std::string name;       ///< a tool's
  std::string arguments;  ///< JSON text, an object; of one that is not complete, its beginning
  /// False: its text broke off, or went on as no call does, behind what had told that it is one.
  bool complete = true;

  /// The id aside, which two readings of a text do not share.
  bool operator==(const ToolCall& other) const {
    return name == other.name && arguments == other.arguments && complete == other.complete;
  }
};

/// What the next piece of an answer is. Texts are put together in the order of events.
struct ReplyEvent {
  enum class Kind : std::uint8_t {
    kReasoning,      ///< `text`: thought before the answer (ReplyParser alone)
    kContent,        ///< `text`: said
    kCallBegin,      ///< `call`, `id` and `name`
    kCallArguments,  ///< `call`; `text`: what follows of the arguments' JSON text
    kCallEnd,        ///< `call`, `complete`
  };
  Kind kind = Kind::kContent;
  std::string text{};
  std::size_t call = 0;  ///< which call of the answer, from 0
  std::string id{}, name{};
  bool complete = true;
};

/// Splits the text of one answer, as it is generated, into content and calls of tools. The formats
/// are told apart by what stands in the text; all but the last may stand anywhere in it:
///
/// - `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, or an array of such (Qwen, Hermes,
///   Granite 4), also between `<|tool_call|>` and `<|/tool_call|>` (Phi-4, Granite 3);
/// - `<function=f><parameter=p>value</parameter></function>`, in `<tool_call>` (Qwen's coders),
///   `<seed:tool_call>` (Seed-OSS) or bare; `<invoke name="f"><parameter name="p">value</parameter>
///   </invoke>`, in `<minimax:tool_call>` (MiniMax) or bare; and `<tool_call>f<arg_key>p</arg_key>
///   <arg_value>value</arg_value></tool_call>` (GLM): values become what the tool's JSON schema
///   says they are;
/// - `[TOOL_CALLS]f[ARGS]{...}`, also with `[CALL_ID]` and an id, and `[TOOL_CALLS]` before JSON
///   (Mistral);
/// - `<|tool_call>call:f{p:value}<tool_call|>`, with texts between `<|"|>` (Gemma 4);
/// - `<|tool_call_start|>[f(p=value)]<|tool_call_end|>`, where values are literals of Python
/// (LFM2);
/// - an answer that begins with JSON: `{"name": "f", "arguments": {...}}`, also with "parameters",
///   several separated by `;` or `,` or in an array, also behind `<|python_tag|>` (Llama,
///   dendrite-tools).
///
/// A call names a known tool and has an object of arguments. What does not is content, unchanged.
/// It is told (kCallBegin) as soon as both are known: with the `{` of the arguments; as a function,
/// with its first parameter or its end; in Python when it is whole. JSON that is not valid, that
/// has arguments twice, or that ends too early makes of a call that has been told one that is not
/// complete; from where it broke on the text is content. Blanks before and between calls are
/// dropped, and so is an end tag behind a call. Strings of JSON are opaque: tags inside of them are
/// none.
///
/// Content put together, and the calls, are the same however the text is cut into pieces. Arguments
/// are the bytes that were generated, but for control characters in strings, which are escaped;
/// those of functions are written as json.dumps does. A copy goes on from where this one is, as
/// forks of a branch do. Not safe to use from several threads.
class ToolCallParser {
 public:
  /// `tools_json`: a JSON array of functions in OpenAI's form ({"type": "function", "function":
  /// {"name", "parameters"}}) or bare ({"name", "parameters"}). Empty: none, all is content. Throws
  /// Error for anything else.
  explicit ToolCallParser(std::string_view tools_json);
  ToolCallParser(const ToolCallParser& other);
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(const ToolCallParser& other);
  ToolCallParser& operator=(ToolCallParser&&) noexcept;
  ~ToolCallParser();

  /// What is decided with a further piece of text; O(its length). Text that may turn out to be part
  /// of a call, and blanks that may stand before one, are held back.
  std::vector<ReplyEvent> feed(std::string_view text);
  /// What was held back, when the answer has ended. `cut_short`: not by the model itself, so that a
  /// function without its end tag is not complete. Nothing may be fed afterwards.
  std::vector<ReplyEvent> finish(bool cut_short = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// An answer whose text has come.
struct ParsedReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  /// What further events say.
  void add(std::span<const ReplyEvent> events);
};

/// A whole text at once, to the same result. Throws Error as the parser does.
ParsedReply parse_tool_calls(std::string_view text, std::string_view tools_json,
                             bool cut_short = false);

}  // namespace dendrite
