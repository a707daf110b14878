#include <unistd.h>

#include <iostream>

#include "chat_compaction.h"
#include "common.h"
#include "constraint_flags.h"

namespace dendrite::cli {
namespace {

struct ChatFlags {
  CommonFlags common;
  std::string messages;
  std::string resume;
  bool render = false;
  ConstraintFlags constraint;
  CompactionFlags compaction;
  DecodeParams decode;
};

/// A conversation on its own branch of the tree.
struct Conversation {
  Json messages = Json::array();
  Branch branch;
};

/// A compaction whose estimated KL is above this repairs more, and at last computes all. Estimates
/// are scaled for contexts that refer to what went (KlRecord::kUsual): two repairs differ by 0.006.
constexpr double kTargetKl = 0.3;

constexpr const char* kHelp =
    "/fork        go on in a copy of this conversation\n"
    "/branch N    switch to conversation N\n"
    "/branches    list the conversations\n"
    "/back N      forget the last N exchanges\n"
    "/save FILE   save all conversations; dendrite chat --resume FILE goes on with them\n"
    "/quit        leave (also: end of input)\n";

/// What /save attaches to its snapshot; the branches are in there by their ids.
constexpr const char* kAttachment = "dendrite chat";

struct Talk {
  Session session;
  std::vector<Conversation> conversations{};
  std::size_t current = 0;
};

Talk start(const Engine& engine, const ChatFlags& flags) {
  Talk talk{Session(engine, {.seed = flags.common.seed})};
  Conversation& first = talk.conversations.emplace_back();
  if (flags.messages.empty()) return talk;
  first.messages = Json::parse(read_file(flags.messages), nullptr, false);
  if (!first.messages.is_array()) {
    throw Error(flags.messages + ": is not a JSON array; expected [{\"role\": …, \"content\": …}]");
  }
  return talk;
}

Talk resume(const Engine& engine, const std::string& file) {
  Restored restored = engine.restore(file);
  const Json saved = Json::parse(restored.attachment, nullptr, false);
  if (!saved.is_object() || saved.value("program", Json()) != kAttachment) {
    throw Error(file +
                ": holds no conversation; expected a file that /save of dendrite chat wrote");
  }
  if (!restored.note.empty()) std::cerr << "note: " << restored.note << "\n";
  Talk talk{std::move(restored.session)};
  try {
    for (const Json& one : saved.at("conversations")) {
      Conversation& conversation = talk.conversations.emplace_back();
      conversation.messages = one.at("messages").get<Json::array_t>();
      const auto id = one.at("branch").get<std::uint64_t>();
      for (Branch& branch : restored.branches) {
        if (static_cast<std::uint64_t>(branch.id()) == id) conversation.branch = std::move(branch);
      }
      if (id != 0 && !conversation.branch.valid()) {
        throw Error(file + ": holds a conversation on branch " + std::to_string(id) +
                    ", which is not in it");
      }
    }
    talk.current = saved.at("current").get<std::size_t>();
  } catch (const Json::exception& error) {
    throw Error(file + ": its conversations cannot be read: " + error.what());
  }
  if (talk.current >= talk.conversations.size()) {
    throw Error(file + ": was in conversation " + std::to_string(talk.current + 1) +
                "; expected one of its " + std::to_string(talk.conversations.size()));
  }
  return talk;
}

/// An answer as it comes: what of it is shown, and the message that it becomes.
class Said {
 public:
  explicit Said(ReplyParser parser) : parser_(std::move(parser)) {}

  void add(const TokenEvent& event) {
    told_ += event.text.size();
    show(parser_.feed(event.token, event.text));
  }
  Json message(const Generation& whole) {
    if (whole.text.size() > told_) show(parser_.feed(std::string_view(whole.text).substr(told_)));
    show(parser_.finish(whole.finish));
    Json message = {{"role", "assistant"}, {"content", reply_.content}};
    if (!reply_.reasoning.empty()) message["reasoning_content"] = reply_.reasoning;
    return message;
  }

 private:
  void show(const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) {
      const bool is_first = event.kind == ReplyEvent::Kind::kContent && reply_.content.empty();
      if (is_first && !reply_.reasoning.empty()) std::cout << "\n\n";  // behind what was thought
      std::cout << event.text << std::flush;
      reply_.add(std::span(&event, 1));
    }
  }

  ReplyParser parser_;
  ParsedReply reply_;
  std::size_t told_ = 0;  // bytes of the text
};

class Chat {
 public:
  Chat(const Engine& engine, const ChatFlags& flags, Talk talk)
      : engine_(engine),
        flags_(flags),
        model_(engine),
        constraint_(flags.constraint.constraint(engine)),
        session_(std::move(talk.session)),
        conversations_(std::move(talk.conversations)),
        current_(talk.current) {}

  int run() {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal) {
      if (!flags_.resume.empty()) command("/branches");
      std::cout << "Type a message, or /help.\n";
    }
    std::string line;
    for (;;) {
      if (terminal) std::cout << "[" << current_ + 1 << "] > " << std::flush;
      if (!std::getline(std::cin, line)) break;
      if (line.empty()) continue;
      if (line == "/quit") break;
      if (line.front() == '/') {
        command(line);
      } else if (const int status = answer(line); status != 0) {
        return status;
      }
    }
    return 0;
  }

 private:
  Conversation& now() { return conversations_[current_]; }

  void command(const std::string& line) {
    const std::string name = line.substr(0, line.find(' '));
    const std::size_t number =
        static_cast<std::size_t>(std::max(0, std::atoi(line.c_str() + name.size())));
    if (name == "/fork") {
      Conversation copy;
      copy.messages = now().messages;
      if (now().branch.valid()) copy.branch = now().branch.fork();
      conversations_.push_back(std::move(copy));
      current_ = conversations_.size() - 1;
      std::cout << "now in conversation " << current_ + 1 << "\n";
    } else if (name == "/branch" && number >= 1 && number <= conversations_.size()) {
      current_ = number - 1;
    } else if (name == "/branches") {
      for (std::size_t i = 0; i < conversations_.size(); ++i) {
        const Conversation& c = conversations_[i];
        std::cout << (i == current_ ? "* " : "  ") << i + 1 << ": " << c.messages.size()
                  << " messages, " << (c.branch.valid() ? c.branch.length() : 0) << " tokens\n";
      }
    } else if (name == "/back") {
      for (std::size_t i = 0; i < std::max<std::size_t>(1, number); ++i) forget_exchange();
      std::cout << now().messages.size() << " messages left\n";
    } else if (name == "/save" && line.size() > name.size() + 1) {
      save(line.substr(name.size() + 1));
    } else {
      std::cout << kHelp;
    }
  }

  /// What goes wrong is said, and the conversation goes on.
  void save(const std::string& file) {
    const std::int64_t live = session_.stats().branches_live;
    if (live == 0) {
      std::cout << "nothing to save yet\n";
      return;
    }
    Json all{{"program", kAttachment}, {"current", current_}, {"conversations", Json::array()}};
    for (const Conversation& c : conversations_) {
      const auto branch = static_cast<std::uint64_t>(c.branch.id());  // 0: none yet
      all["conversations"].push_back({{"messages", c.messages}, {"branch", branch}});
    }
    try {
      session_.save(file, std::span<const Branch>(),
                    {.attachment = all.dump(-1, ' ', false, Json::error_handler_t::replace)});
      std::cout << "saved " << live << (live == 1 ? " conversation" : " conversations") << " to "
                << file << "\n";
    } catch (const Error& error) {
      std::cout << "not saved: " << error.what() << "\n";
    }
  }

  void forget_exchange() {
    Json& messages = now().messages;
    while (!messages.empty()) {
      const bool user = messages.back().value("role", "") == "user";
      messages.erase(messages.size() - 1);
      if (user) return;
    }
  }

  /// The conversation's branch, brought to `tokens`: what both have in common is kept.
  void move_to(const std::vector<Token>& tokens, std::stop_token cancel) {
    std::size_t common = 0;
    if (now().branch.valid()) {
      const std::vector<Token> have = now().branch.tokens();
      while (common < std::min(have.size(), tokens.size()) && have[common] == tokens[common])
        ++common;
    }
    if (common == 0) {
      now().branch =
          session_.prefill(std::span<const Token>(tokens), {.cancel = std::move(cancel)});
      return;
    }
    Branch rewound = now().branch.at(static_cast<std::int64_t>(common));
    rewound.unconstrain();  // of the answer that it was cut from
    rewound.append(std::span(tokens).subspan(common));
    now().branch = std::move(rewound);
  }

  /// Brings the conversation to at most half of its limit, where its answer might pass that; says
  /// what that took. False: it need not, or cannot.
  bool compact(const std::vector<Token>& prompt, std::stop_token cancel) {
    const std::int64_t limit = flags_.compaction.limit(engine_);
    const std::int64_t answer = flags_.decode.max_tokens;
    if (!flags_.compaction.wanted() || std::ssize(prompt) + answer <= limit) return false;
    const std::optional<ShortChat> chat = shorten(
        engine_, now().messages, std::max<std::int64_t>(0, std::min(limit / 2, limit - answer)));
    if (!chat) return false;
    Composition report;
    if (now().branch.valid()) {
      ComposeParams params{.target_kl = kTargetKl, .cancel = std::move(cancel)};
      if (flags_.compaction.mode == "exact") params.mode = ComposeParams::Mode::kExact;
      Composed composed = change_prompt(session_, now().branch, prompt, chat->prompt, params);
      now().branch = std::move(composed.branch);
      report = std::move(composed.report);
      if (settle_where_short_of_pages(params.cancel)) {
        const std::int64_t dropped = report.dropped;
        report = now().branch.composition();
        report.dropped = dropped;
      }
    } else {
      move_to(chat->prompt, std::move(cancel));
      report = now().branch.composition();
      report.dropped = std::ssize(prompt) - std::ssize(chat->prompt);
    }
    now().messages = chat->messages;
    std::cerr << "note: " << describe_compaction(chat->dropped, report) << "\n";
    return true;
  }

  /// Moved K and V that were evicted need pages for what they came from as well. Where those do not
  /// fit, the branch is computed anew, without.
  bool settle_where_short_of_pages(std::stop_token cancel) {
    const Branch& branch = now().branch;
    if (branch.finish() != Finish::kBudget ||
        branch.composition().exactness == Exactness::kExactPrefix) {
      return false;
    }
    now().branch = session_.settle(branch, std::move(cancel));
    return true;
  }

  int answer(const std::string& line) {
    now().messages.push_back({{"role", "user"}, {"content", line}});
    const Interrupt interrupt;
    ChatParams asked;
    asked.generate.decode = flags_.decode;
    asked.generate.decode.constraint = constraint_;
    ChatRequest request = model_.request(now().messages.dump(), asked);
    if (!compact(request.prompt, interrupt.token())) move_to(request.prompt, interrupt.token());
    const std::optional<Constraint> constraint = std::exchange(request.decode.constraint, {});
    Said said(request.parser);
    DecodeParams& params = request.decode;
    params.cancel = interrupt.token();
    params.on_token = [&](const TokenEvent& event) { said.add(event); };
    const auto decode = [&] {
      if (constraint) now().branch.constrain(*constraint);
      return session_.decode(now().branch, params);
    };
    Generation out = decode();
    if (out.ids.empty() && settle_where_short_of_pages(interrupt.token())) out = decode();
    Json message = said.message(out);
    std::cout << std::endl;
    if (out.finish == Finish::kBudget && session_.shortage()) {
      std::cerr << "note: the answer was cut short: " << session_.shortage()->message() << "\n";
    }
    note_unfinished(std::span(&now().branch, 1));
    now().branch.unconstrain();
    now().messages.push_back(std::move(message));
    return interrupt.requested() ? kExitInterrupted : 0;
  }

  const Engine& engine_;
  const ChatFlags& flags_;
  const ChatModel model_;
  const std::optional<Constraint> constraint_;  // of every answer
  Session session_;
  std::vector<Conversation> conversations_;
  std::size_t current_;
};

int run(const ChatFlags& flags) {
  if (!flags.render) {
    const Engine engine = flags.common.load();
    Talk talk = flags.resume.empty() ? start(engine, flags) : resume(engine, flags.resume);
    engine.render_chat(R"([{"role":"user","content":"x"}])");  // a missing template is said at once
    return Chat(engine, flags, std::move(talk)).run();
  }
  if (flags.messages.empty()) throw Error("chat --render: expected --messages FILE.json");
  const Engine engine = flags.common.load(/*weights=*/false);
  const std::string text = engine.render_chat(read_file(flags.messages));
  if (!flags.common.json) {
    std::cout << text << std::flush;
    return 0;
  }
  Json out{{"text", text}};
  out["ids"] = engine.encode(text, false);
  print_json(out);
  return 0;
}

}  // namespace

void add_chat(CLI::App& app, int& status) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = app.add_subcommand(
      "chat",
      "A conversation with the model's own template; /fork, /back, /branches, /save, /quit");
  command->footer(
      "Every answer is JSON of one form: it is whole unless --max-tokens cuts it short.\n"
      "  dendrite chat --model DIR_OR_ID --json-schema answer.json\n"
      "/save keeps the conversations, not the flag: give it again with --resume.");
  flags->common.add_to(*command);
  command->add_option("--messages", flags->messages, "Start from these messages (a JSON array)")
      ->type_name("FILE.json");
  command
      ->add_option("--resume", flags->resume,
                   "Go on with the conversations that /save left there; their seed goes on, too")
      ->type_name("FILE")
      ->excludes(command->get_option("--messages"));
  command->add_flag("--render", flags->render, "Only print the rendered prompt of --messages");
  flags->constraint.add_json_to(*command);
  flags->compaction.add_to(*command);
  command->add_option("--max-tokens", flags->decode.max_tokens, "New tokens an answer")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", flags->decode.temperature, "0: greedy");
  command->add_option("--top-p", flags->decode.top_p, "Keep the likeliest up to this probability");
  command->add_option("--top-k", flags->decode.top_k, "Keep the k likeliest; 0: all");
  command->callback([flags, &status] { status = run(*flags); });
}

}  // namespace dendrite::cli
