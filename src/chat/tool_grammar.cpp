#include "dendrite/tool_grammar.h"

#include <mutex>

#include "chat/call_grammar.h"
#include "chat/harmony_chat.h"
#include "chat/harmony_grammar.h"
#include "chat/model_files.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

using chats::CallGrammarWriter;
using chats::HarmonyGrammarWriter;
using chats::Json;
using chats::json_string;

constexpr std::size_t kKept = 64;  // grammars

}  // namespace

class ToolGrammars::Impl {
 public:
  explicit Impl(const Engine& engine)
      : engine_(engine), writer_(writer_of(engine)), harmony_(harmony_of(engine)) {}

  const CallForm& form() const { return writer_.form(); }
  ToolGrammar of(std::string_view tools_json, const ToolChoice& choice,
                 const std::optional<Constraint>& answer);
  Constraint final_answer(const Constraint& schema) const {
    return constraint({}, {}, json_of(schema));
  }

 private:
  static CallGrammarWriter writer_of(const Engine& engine) {
    const EngineInfo& info = engine.info();
    std::map<std::string, Token> known = chats::added_tokens(info.model_path);
    std::erase_if(known, [&](const auto& token) { return token.second >= info.vocab; });
    return {call_form_of(engine), std::move(known), {info.eos.begin(), info.eos.end()}};
  }
  static std::optional<HarmonyGrammarWriter> harmony_of(const Engine& engine) {
    const auto tokens = chats::harmony_tokens_of(engine);
    if (!tokens) return std::nullopt;
    const std::vector<Token>& eos = engine.info().eos;
    return HarmonyGrammarWriter(*tokens, {eos.begin(), eos.end()});
  }
  static Json json_of(const Constraint& schema) {
    Json json = Json::parse(schema.text(), nullptr, false);
    if (json.is_discarded()) throw ConstraintError("the schema of an answer is no JSON");
    return json;
  }
  Constraint constraint(std::span<const Json> functions, const ToolChoice& choice,
                        const Json& answer) const {
    return Constraint::lark(harmony_ ? harmony_->grammar(functions, choice, answer)
                                     : writer_.grammar(functions, choice, answer));
  }
  std::optional<std::string> problem_of(std::span<const Json> functions, const ToolChoice& choice,
                                        const Json& answer) const;
  ToolGrammar make(const std::vector<Json>& functions, const ToolChoice& choice,
                   const Json& answer) const;

  Engine engine_;
  CallGrammarWriter writer_;
  std::optional<HarmonyGrammarWriter> harmony_;  // of a model that writes it
  std::mutex mutex_;
  std::map<std::string, ToolGrammar> made_;
};

/// Why there is no such grammar; nullopt: there is one.
std::optional<std::string> ToolGrammars::Impl::problem_of(std::span<const Json> functions,
                                                          const ToolChoice& choice,
                                                          const Json& answer) const {
  try {
    engine_.check(constraint(functions, choice, answer));
    return std::nullopt;
  } catch (const ConstraintError& error) {
    return error.what();
  }
}

ToolGrammar ToolGrammars::Impl::make(const std::vector<Json>& functions, const ToolChoice& choice,
                                     const Json& answer) const {
  const bool is_held = choice.required || !answer.is_null();
  Json any = {{"name", "any"}, {"parameters", {{"additionalProperties", true}}}};
  if (const auto problem = problem_of(std::span(&any, 1), choice, answer)) {
    if (is_held) throw ConstraintError(*problem);
    return {};  // the model cannot be constrained at all
  }
  if (!problem_of(functions, choice, answer)) return {constraint(functions, choice, answer), {}};
  ToolGrammar made;
  std::vector<Json> known;
  std::string refused;
  for (const Json& each : functions) {
    const auto problem = problem_of(std::span(&each, 1), {.required = true}, Json());
    if (!problem) {
      known.push_back(each);
      continue;
    }
    const std::string line =
        "tool " + json_string(each["name"].get<std::string>()) + ": " + *problem;
    refused += (refused.empty() ? "" : "; ") + line;
    made.warnings.push_back(line + "; it " +
                            (is_held ? "is left out" : "may be called with any arguments"));
    if (is_held) continue;
    any["name"] = each["name"];
    known.push_back(any);
  }
  if (known.empty()) throw ConstraintError(refused);
  made.constraint = constraint(known, choice, answer);
  engine_.check(*made.constraint);
  return made;
}

ToolGrammar ToolGrammars::Impl::of(std::string_view tools_json, const ToolChoice& choice,
                                   const std::optional<Constraint>& answer) {
  if (answer && answer->kind() != Constraint::Kind::kJsonSchema) {
    throw Error(std::string("tools: got a constraint of kind ") + name_of(answer->kind()) +
                "; expected a json_schema beside tools");
  }
  const std::vector<Json> functions = chats::functions_of(tools_json);
  if (functions.empty()) throw Error("tools: there are none; expected at least one");
  const Json schema = answer ? json_of(*answer) : Json();
  const std::string key =
      Json{Json(functions), choice.required, choice.parallel, answer ? answer->text() : ""}.dump(
          -1, ' ', false, Json::error_handler_t::replace);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
  }
  ToolGrammar made = make(functions, choice, schema);
  const std::lock_guard lock(mutex_);
  if (made_.size() >= kKept) made_.clear();
  return made_.insert_or_assign(key, std::move(made)).first->second;
}

ToolGrammars::ToolGrammars(const Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
ToolGrammars::ToolGrammars(ToolGrammars&&) noexcept = default;
ToolGrammars& ToolGrammars::operator=(ToolGrammars&&) noexcept = default;
ToolGrammars::~ToolGrammars() = default;

const CallForm& ToolGrammars::form() const {
  return impl_->form();
}

ToolGrammar ToolGrammars::of(std::string_view tools_json, const ToolChoice& choice,
                             const std::optional<Constraint>& answer) const {
  return impl_->of(tools_json, choice, answer);
}

Constraint ToolGrammars::final_answer(const Constraint& schema) const {
  return impl_->final_answer(schema);
}

}  // namespace dendrite
