#include "dendrite/chat.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "chat/blank.h"
#include "chat/harmony_chat.h"
#include "chat/messages.h"
#include "chat/model_files.h"
#include "chat/tool_schema.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

using chats::Json;
using Marks = std::map<Token, std::string>;

/// The tools that the model is shown, in OpenAI's form, and whether it has to call one.
struct Offer {
  Json tools;  // null: none
  ToolChoice choice;
};

std::string text_of(const Json& tools) {
  return tools.is_null() ? "" : tools.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Offer offer_of(const ChatParams& params) {
  std::vector<Json> functions = chats::functions_of(params.tools_json);
  const std::string& wanted = params.tool_choice;
  const auto is_wanted = [&](const Json& function) { return function["name"] == wanted; };
  const bool named = std::ranges::any_of(functions, is_wanted);
  if (named) {
    std::erase_if(functions, [&](const Json& function) { return !is_wanted(function); });
  } else if (wanted == "none") {
    functions.clear();
  } else if (wanted != "auto" && wanted != "required") {
    std::string names;
    for (const Json& function : functions) {
      names += (names.empty() ? "" : ", ") + function["name"].dump();
    }
    throw Error("chat: tool_choice is " + chats::json_string(wanted) +
                "; expected auto, required, none, or the name of a tool (" +
                (names.empty() ? "there is none" : names) + ")");
  }
  const bool required = named || wanted == "required";
  if (required && functions.empty()) {
    throw Error("chat: a call is required, and there are no tools; expected at least one");
  }
  Offer offer{Json(), {required, params.parallel_calls && !named}};
  if (functions.empty()) return offer;
  for (const Json& each : functions) {
    offer.tools.push_back({{"type", "function"}, {"function", each}});
  }
  return offer;
}

/// Whether the last of these tags is the opening one.
bool ends_inside(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t opened = text.rfind(begin);
  const std::size_t closed = text.rfind(end);
  return opened != std::string_view::npos && (closed == std::string_view::npos || opened > closed);
}

/// The prompt of an answer that is constrained from its first token on: one that had to think
/// before is told that it has thought, in the way of templates that know `enable_thinking`.
std::string without_thoughts(std::string prompt) {
  if (!ends_inside(prompt, "<think>", "</think>")) return prompt;
  prompt.resize(prompt.find_last_not_of(chats::kBlanks) + 1);
  return prompt + "\n\n</think>\n\n";
}

}  // namespace

class ChatModel::Impl {
 public:
  explicit Impl(const Engine& engine)
      : engine_(engine),
        grammars_(engine),
        harmony_(chats::harmony_tokens_of(engine)),
        tags_(harmony_ ? std::nullopt
                       : chats::reasoning_tags_of(engine.info().model_path,
                                                  chats::added_tokens(engine.info().model_path))),
        marks_(chats::call_marks_of(engine)) {}

  const std::optional<ReasoningTags>& tags() const { return tags_; }
  const CallForm& form() const { return grammars_.form(); }
  ChatRequest request(std::string_view messages_json, const ChatParams& params) const;
  ParsedReply read(const Generation& generation, ReplyParser parser) const;

 private:
  std::string prompt(std::string_view messages_json, const ChatParams& params,
                     const Json& tools) const;
  void end_with_marks(DecodeParams& decode) const;

  Engine engine_;
  ToolGrammars grammars_;
  std::optional<HarmonyTokens> harmony_;
  std::optional<ReasoningTags> tags_;
  Marks marks_;
};

std::string ChatModel::Impl::prompt(std::string_view messages_json, const ChatParams& params,
                                    const Json& tools) const {
  Json messages = chats::for_template(messages_json);
  const CallForm& form = grammars_.form();
  if (form.open == "[TOOL_CALLS]") messages = chats::with_short_ids(std::move(messages));
  if (form.results) messages = chats::with_results_in_calls(messages);
  if (!harmony_) {
    return engine_.render_chat(messages.dump(),
                               {.tools_json = text_of(tools), .extra_json = params.template_json});
  }
  return engine_.render_chat(chats::messages_for_harmony(messages).dump(),
                             {.tools_json = text_of(chats::tools_for_harmony(tools)),
                              .extra_json = chats::variables_for_harmony(params.template_json)});
}

/// The marks that end an answer do so also where the model's files don't list them.
void ChatModel::Impl::end_with_marks(DecodeParams& decode) const {
  if (!harmony_ || decode.ignore_eos) return;
  const std::vector<Token>& eos = engine_.info().eos;
  for (const HarmonyMark each : {HarmonyMark::kCall, HarmonyMark::kReturn}) {
    const auto& token = (*harmony_)[static_cast<std::size_t>(each)];
    if (token && std::ranges::count(eos, *token) == 0) decode.stop_tokens.push_back(*token);
  }
}

ChatRequest ChatModel::Impl::request(std::string_view messages_json,
                                     const ChatParams& params) const {
  const Offer offer = offer_of(params);
  const std::string tools_json = text_of(offer.tools);
  std::string text = prompt(messages_json, params, offer.tools);
  DecodeParams decode = params.generate.decode;
  end_with_marks(decode);
  if (!harmony_ && (decode.constraint || offer.choice.required)) {
    text = without_thoughts(std::move(text));
  }
  const bool inside = tags_ && ends_inside(text, tags_->begin, tags_->end);
  ReplyParser parser =
      harmony_ ? ReplyParser(HarmonyParser(tools_json, *harmony_, text))
               : ReplyParser(tags_, inside, tools_json, tools_json.empty() ? Marks() : marks_);
  std::vector<std::string> warnings;
  if (!tools_json.empty()) {
    ToolGrammar grammar = grammars_.of(tools_json, offer.choice, decode.constraint);
    decode.constraint = std::move(grammar.constraint);
    warnings = std::move(grammar.warnings);
  } else if (harmony_ && decode.constraint) {
    const std::string opening = ReplyParser(parser).begin("");
    if (!opening.empty() && decode.constraint->kind() == Constraint::Kind::kJsonSchema) {
      decode.constraint = grammars_.final_answer(*decode.constraint);
    } else {
      text += parser.begin("");
    }
  }
  return {engine_.encode(text, false), std::move(decode), std::move(parser), std::move(warnings)};
}

/// What the parser, told of the tokens that may be no text where they stand, makes of it.
ParsedReply ChatModel::Impl::read(const Generation& generation, ReplyParser parser) const {
  const std::string_view text = generation.text;
  const std::span<const Token> ids = generation.ids;
  ParsedReply reply;
  std::size_t told = 0;  // of the text
  std::size_t next = 0;  // of the tokens
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!parser.is_mark(ids[i])) continue;
    if (i > next) {
      const std::string before = engine_.decode(ids.first(i), true);
      const auto differs = std::ranges::mismatch(before, text.substr(0, before.size())).in1;
      const auto until = std::max(told, static_cast<std::size_t>(differs - before.begin()));
      reply.add(parser.feed(text.substr(told, until - told)));
      told = until;
    }
    const std::string own = engine_.decode(ids.subspan(i, 1), true);
    const bool is_text = text.substr(told).starts_with(own);
    reply.add(parser.feed(ids[i], is_text ? own : ""));
    told += is_text ? own.size() : 0;
    next = i + 1;
  }
  reply.add(parser.feed(text.substr(told)));
  reply.add(parser.finish(generation.finish));
  return reply;
}

ChatModel::ChatModel(const Engine& engine) : impl_(std::make_unique<Impl>(engine)) {}
ChatModel::ChatModel(ChatModel&&) noexcept = default;
ChatModel& ChatModel::operator=(ChatModel&&) noexcept = default;
ChatModel::~ChatModel() = default;

const std::optional<ReasoningTags>& ChatModel::reasoning_tags() const {
  return impl_->tags();
}

const CallForm& ChatModel::call_form() const {
  return impl_->form();
}

ChatRequest ChatModel::request(std::string_view messages_json, const ChatParams& params) const {
  return impl_->request(messages_json, params);
}

ChatReply ChatModel::reply(const ChatRequest& request, Generation generation) const {
  ParsedReply read = impl_->read(generation, request.parser);
  const Finish finish = generation.finish;
  return {std::move(read.content),    std::move(read.calls), std::move(read.reasoning), finish,
          std::ssize(request.prompt), std::move(generation), request.warnings};
}

class ChatBranches::Impl {
 public:
  explicit Impl(std::size_t size) : size_(size) {}

  void keep(Branch branch) {
    const std::vector<Token> tokens = branch.tokens();
    const auto is_continued = [&](const Kept& kept) {
      return kept.tokens.size() <= tokens.size() &&
             std::equal(kept.tokens.begin(), kept.tokens.end(), tokens.begin());
    };
    const std::lock_guard lock(mutex_);
    kept_.remove_if(is_continued);
    kept_.push_back({tokens, std::move(branch)});
    if (kept_.size() > size_) kept_.pop_front();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return kept_.size();
  }

 private:
  struct Kept {
    std::vector<Token> tokens;
    Branch branch;
  };
  std::size_t size_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the last one last
};

ChatBranches::ChatBranches(std::size_t size) : impl_(std::make_unique<Impl>(size)) {}
ChatBranches::~ChatBranches() = default;

void ChatBranches::keep(Branch branch) {
  impl_->keep(std::move(branch));
}

void ChatBranches::clear() {
  impl_->clear();
}

std::size_t ChatBranches::size() const {
  return impl_->size();
}

std::vector<std::vector<ChatReply>> chat(Session& session, const ChatModel& model,
                                         std::span<const std::string> conversations,
                                         const ChatParams& params) {
  if (!params.generate.decode_each.empty()) {
    throw Error("chat: got decode_each; expected decode alone, for all conversations");
  }
  std::vector<ChatRequest> requests;
  std::vector<Prompt> prompts;
  GenerateParams generate_params = params.generate;
  for (const std::string& messages : conversations) {
    try {
      requests.push_back(model.request(messages, params));
    } catch (const ConstraintError&) {
      throw;
    } catch (const Error& error) {
      throw Error("chat: conversation " + std::to_string(requests.size()) + ": " + error.what());
    }
    prompts.emplace_back(requests.back().prompt);
    generate_params.decode = requests.back().decode;  // the same of all
  }
  if (params.keep != nullptr) {
    generate_params.on_done = [&](std::size_t index, const PromptResult& result,
                                  std::span<Branch> branches) {
      if (params.generate.on_done) params.generate.on_done(index, result, branches);
      for (Branch& branch : branches) {
        if (!branch.valid() || branch.finish() == Finish::kCancelled) continue;
        params.keep->keep(std::move(branch));
      }
    };
  }
  std::vector<std::vector<ChatReply>> replies;
  std::vector<PromptResult> results = generate(session, prompts, generate_params);
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto& of_one = replies.emplace_back();
    for (Generation& each : results[i].generations) {
      of_one.push_back(model.reply(requests[i], std::move(each)));
    }
  }
  return replies;
}

std::vector<ChatReply> chat(Session& session, const std::string& messages_json,
                            const ChatParams& params) {
  const ChatModel model(session.engine());
  return std::move(chat(session, model, std::span(&messages_json, 1), params).front());
}

}  // namespace dendrite
