#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/tool_calls.h"
#include "dendrite/types.h"

// Answers in Harmony, the format of OpenAI's open models (gpt-oss). It needs no engine.
namespace dendrite {

/// What stands between the parts of a message: <|start|>role<|channel|>name<|message|>text<|end|>,
/// with <|constrain|> before a type, and <|call|> and <|return|> as ends of an answer.
enum class HarmonyMark : std::uint8_t {
  kStart,
  kChannel,
  kConstrain,
  kMessage,
  kEnd,
  kCall,
  kReturn
};
inline constexpr std::array<std::string_view, 7> kHarmonyMarks = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
    "<|end|>",   "<|call|>",    "<|return|>"};

/// The token that each mark is, in the order of HarmonyMark.
using HarmonyTokens = std::array<std::optional<Token>, kHarmonyMarks.size()>;

/// Splits one answer in Harmony, as it is generated, into thoughts, content and calls of tools.
///
/// - Messages of the channel `analysis` are thoughts; those of `commentary`, `final` and any other
///   are content, and so is text that stands in no message. An empty line is put between two
///   messages of a kind; all else in them is as it was generated.
/// - A message to a known tool, with `to=functions.name` (or `to=name`) behind its role or its
///   channel, is a call, from the `{` of its arguments on; without any text it is one without
///   arguments. One to anything else, or with what is no object, is what its channel says.
/// - JSON that breaks off or is not valid makes of a call that has been told one that is not
///   complete; from where it broke on the text is content.
///
/// All of it is the same however the text is cut into pieces. A copy goes on from where this one
/// is, as forks of a branch do. Not safe to use from several threads.
class HarmonyParser {
 public:
  /// `tools_json`: as ToolCallParser has them. Marks without a token are read where they stand in
  /// the text; those with one are not. `prompt` is what the answer follows, which
  /// goes on with the opening that stands at its end. Throws Error for tools that are none.
  explicit HarmonyParser(std::string_view tools_json, const HarmonyTokens& tokens = {},
                         std::string_view prompt = "<|start|>assistant");
  HarmonyParser(const HarmonyParser& other);
  HarmonyParser(HarmonyParser&&) noexcept;
  HarmonyParser& operator=(const HarmonyParser& other);
  HarmonyParser& operator=(HarmonyParser&&) noexcept;
  ~HarmonyParser();

  std::vector<ReplyEvent> feed(std::string_view text);
  /// One token with the text that it added (TokenEvent::text).
  std::vector<ReplyEvent> feed(Token token, std::string_view text);
  /// What was held back, when the answer has ended. `cut_short`: not by the model itself.
  std::vector<ReplyEvent> finish(bool cut_short = false);

  /// The answer begins with this, said: how it stands behind the prompt.
  std::string begin(std::string_view said);
  bool is_mark(Token token) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dendrite
