#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/constraint.h"
#include "dendrite/engine.h"

// What an answer with tools must be: grammars of calls as the model's family writes them.
namespace dendrite {

/// Whether an answer must call a tool, and whether it may call more than one.
struct ToolChoice {
  bool required = false;  ///< it has to call one, and says nothing else
  bool parallel = true;   ///< it may call several
};

/// How a model writes a call, of the forms that ToolCallParser and HarmonyParser read.
struct CallForm {
  enum class Kind : std::uint8_t {
    kJson,      ///< {"name": "f", key: {...}}
    kFunction,  ///< <function=f><parameter=p>value</parameter></function>
    kInvoke,    ///< <invoke name="f"><parameter name="p">value</parameter></invoke>
    kKeys,      ///< f<arg_key>p</arg_key><arg_value>value</arg_value>
    kNamed,     ///< f[ARGS]{"p": value}
    kGemma,     ///< call:f{p:value}
    kPython,    ///< [f(p=value)]
    kHarmony,   ///< a message in Harmony
  };
  Kind kind = Kind::kJson;
  std::string open{}, close{};    ///< the tags that it stands between; empty: none
  std::string key = "arguments";  ///< of kJson; or "parameters"
  bool list = false;              ///< kJson: calls are an array's, also a single one
  bool id = false;                ///< kNamed: with [CALL_ID] and nine characters
  bool lines = true;              ///< kFunction, kKeys: lines end between the parts
  bool results = false;           ///< results stand in the message with their calls

  bool operator==(const CallForm&) const = default;
};

/// From what the model's chat template makes of a tool and of a call; without one, or where it
/// knows no tools, JSON.
CallForm call_form_of(const Engine& engine);

/// What an answer must be.
struct ToolGrammar {
  /// Unset: anything, of a model that cannot be constrained at all, where a call is not required.
  std::optional<Constraint> constraint;
  /// A line for each tool whose schema cannot be compiled, with the reason and what it comes to.
  std::vector<std::string> warnings;
};

/// The grammars of one model's answers; it keeps the last ones. Safe to use from several threads.
class ToolGrammars {
 public:
  explicit ToolGrammars(const Engine& engine);
  ToolGrammars(ToolGrammars&&) noexcept;
  ToolGrammars& operator=(ToolGrammars&&) noexcept;
  ~ToolGrammars();

  const CallForm& form() const;
  /// Where a call is required, an answer is calls and nothing else. Where it is not, it is free
  /// text, in which a call that has begun is held to the name of a known tool and to its schema;
  /// with `answer`, a JSON schema, calls or JSON of that schema. Objects have no properties beside
  /// those that a schema lists, unless it says so itself.
  ///
  /// `tools_json`: a JSON array of functions in OpenAI's form or bare, one at least. One whose
  /// schema cannot be compiled takes no other with it: where an answer may be free text it may be
  /// called with any arguments, and where it must be a call or `answer` it is left out. Throws
  /// ConstraintError where no tool is left then, and where a call is required of a model that
  /// cannot be constrained; Error for what is no tool, and an answer of another kind.
  ///
  /// In Harmony an answer may think first, whatever it has to be, and ends with its first call.
  ToolGrammar of(std::string_view tools_json, const ToolChoice& choice,
                 const std::optional<Constraint>& answer = std::nullopt) const;
  /// Of a model that writes Harmony: thoughts, or none, and a final message that is JSON of this
  /// schema.
  Constraint final_answer(const Constraint& schema) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dendrite
