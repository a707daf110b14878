#include "dendrite/chat.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "chat/blank.h"
#include "chat/messages.h"
#include "chat/model_files.h"
#include "chat/tool_schema.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

using chats::Json;

/// The tools that the model is shown, in OpenAI's form, and whether it has to call one.
struct Offer {
  std::string tools_json;  // empty: none
  ToolChoice choice;
};

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
  Offer offer{"", {required, params.parallel_calls && !named}};
  if (functions.empty()) return offer;
  Json tools = Json::array();
  for (const Json& each : functions) tools.push_back({{"type", "function"}, {"function", each}});
  offer.tools_json = tools.dump(-1, ' ', false, Json::error_handler_t::replace);
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
        tags_(chats::reasoning_tags_of(engine.info().model_path,
                                       chats::added_tokens(engine.info().model_path))) {}

  const std::optional<ReasoningTags>& tags() const { return tags_; }
  const CallForm& form() const { return grammars_.form(); }
  ChatRequest request(std::string_view messages_json, const ChatParams& params) const;
  std::string text_with_tags(const Generation& generation) const;

 private:
  Engine engine_;
  ToolGrammars grammars_;
  std::optional<ReasoningTags> tags_;
};

ChatRequest ChatModel::Impl::request(std::string_view messages_json,
                                     const ChatParams& params) const {
  const Offer offer = offer_of(params);
  std::string text =
      engine_.render_chat(chats::for_template(messages_json),
                          {.tools_json = offer.tools_json, .extra_json = params.template_json});
  DecodeParams decode = params.generate.decode;
  if (decode.constraint || offer.choice.required) text = without_thoughts(std::move(text));
  std::vector<std::string> warnings;
  if (!offer.tools_json.empty()) {
    ToolGrammar grammar = grammars_.of(offer.tools_json, offer.choice, decode.constraint);
    decode.constraint = std::move(grammar.constraint);
    warnings = std::move(grammar.warnings);
  }
  const bool inside = tags_ && ends_inside(text, tags_->begin, tags_->end);
  return {engine_.encode(text, false), std::move(decode),
          ReplyParser(tags_, inside, offer.tools_json), std::move(warnings)};
}

/// The text of a generation with the tags of thoughts in it, where these are special tokens.
std::string ChatModel::Impl::text_with_tags(const Generation& generation) const {
  const std::string& text = generation.text;
  if (!tags_ || !tags_->begin_token || !tags_->end_token ||
      text.find(tags_->end) != std::string::npos) {
    return text;
  }
  const std::vector<Token>& ids = generation.ids;
  const auto opened = std::ranges::find(ids, *tags_->begin_token);
  const bool opens = opened != ids.end() && text.find(tags_->begin) == std::string::npos;
  const std::string begin = opens ? tags_->begin : "";
  const auto closed =
      std::find(opened == ids.end() ? ids.begin() : opened, ids.end(), *tags_->end_token);
  if (closed == ids.end()) return begin + text;
  const std::string thought = engine_.decode(std::span(ids.begin(), closed), true);
  if (!text.starts_with(thought)) return text;
  return begin + thought + tags_->end + text.substr(thought.size());
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
  ReplyParser parser = request.parser;
  ParsedReply read;
  read.add(parser.feed(impl_->text_with_tags(generation)));
  read.add(parser.finish(generation.finish));
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
