#include <algorithm>
#include <utility>

#include "server/completion.h"
#include "server/openai.h"
#include "server/read.h"
#include "server/turn_log.h"

// /v1/completions: several prompts, each a turn, to one answer or one stream.
namespace dendrite::server {
namespace {

constexpr std::size_t kMostPrompts = 2048;
constexpr std::int64_t kMaxTokens = 16;  // OpenAI's, where a request says nothing

/// A text, texts, ids, or lists of ids: what each comes to.
std::vector<std::vector<Token>> read_prompts(Fields& body, const Service& service) {
  const Json* prompt = body.find("prompt");
  if (prompt == nullptr) throw bad_request("prompt", "it is missing");
  const std::int64_t vocab = service.engine.info().vocab;
  const bool special = body.boolean("add_special_tokens").value_or(true);
  const auto encoded = [&](const Json& text) {
    return service.engine.encode(text.get_ref<const std::string&>(), special);
  };
  if (prompt->is_string()) return {encoded(*prompt)};
  if (!prompt->is_array() || prompt->empty()) {
    throw wrong_type("prompt", *prompt, "a text, texts, tokens, or lists of tokens");
  }
  if (prompt->front().is_number()) return {read_ids(*prompt, "prompt", vocab)};
  if (prompt->size() > kMostPrompts) {
    throw bad_request("prompt", "it has " + std::to_string(prompt->size()) +
                                    " prompts; expected at most " + std::to_string(kMostPrompts));
  }
  std::vector<std::vector<Token>> out;
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    const Json& each = (*prompt)[i];
    const std::string path = at_index("prompt", i);
    if (each.is_string()) {
      out.push_back(encoded(each));
    } else if (each.is_array()) {
      out.push_back(read_ids(each, path, vocab));
    } else {
      throw wrong_type(path, each, "a text or a list of tokens");
    }
  }
  return out;
}

}  // namespace

void read_completion(Fields& fields, const Service& service, CompletionBody& out,
                     TurnRequest& common) {
  out.model = service.model_name(fields.text("model").value_or(""));
  read_sampling(fields, service, common);
  read_constraint(fields, service, common);
  out.n = static_cast<int>(fields.integer("n", 1, service.options.max_n).value_or(1));
  if (const auto best = fields.integer("best_of", 1, 1 << 20); best && *best != out.n) {
    throw bad_request("best_of", "it is not n", "unsupported_parameter");
  }
  common.max_tokens = fields.integer("max_tokens", 0, INT32_MAX).value_or(kMaxTokens);
  out.echo = fields.boolean("echo").value_or(false);
  if (const auto logprobs = fields.integer("logprobs", 0, service.options.max_logprobs)) {
    out.logprobs = static_cast<int>(*logprobs);
    common.chat.generate.decode.top_logprobs = *out.logprobs;
    if (out.echo) common.prompt_logprobs = *out.logprobs;
  }
  out.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    if (!out.stream) throw bad_request("stream_options", "there is no stream");
    Fields of(*options, "stream_options");
    out.include_usage = of.boolean("include_usage").value_or(false);
    of.accept("include_obfuscation");
    of.rest(out.ignored);
  }
  out.token_ids = common.tokens = fields.boolean("return_token_ids").value_or(false);
  fields.refuse("suffix", "it is not supported");
}

namespace {

CompletionBody read_prompted(const Service& service, const Json& body) {
  Fields fields(body, "");
  CompletionBody out;
  TurnRequest common;
  std::vector<std::vector<Token>> prompts = read_prompts(fields, service);
  read_completion(fields, service, out, common);
  fields.rest(out.ignored);
  if (!common.seed) common.seed = draw_seed();
  out.seed = *common.seed;
  for (std::vector<Token>& ids : prompts) {
    TurnRequest& turn = out.turns.emplace_back();
    if (out.echo) out.texts.push_back(service.engine.decode(ids, true));
    turn.ids = std::move(ids);
    turn.chat = common.chat;
    turn.max_tokens = common.max_tokens;
    turn.n = out.n;
    turn.seed = common.seed;
    turn.priority = common.priority;
    turn.cache_salt = common.cache_salt;
    turn.tokens = out.token_ids;
    turn.prompt_logprobs = common.prompt_logprobs;
  }
  return out;
}

/// In characters.
std::int64_t length_of(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

/// "logprobs" of a choice: lists of equal length.
class LogprobLists {
 public:
  /// The first token of a prompt: nothing stands before it.
  void add_first(const Service& service, Token token) {
    add(service, token, token_text(service, token), nullptr, nullptr);
  }
  void add(const Service& service, const ChosenToken& token, bool with_top) {
    const std::string text = token_text(service, token.id);
    const double logprob = logprob_number(token.logprob);
    if (!with_top) return add(service, token.id, text, logprob, nullptr);
    Json top = {{text, logprob}};
    for (const TokenLogprob& each : token.top) {
      if (each.id == token.id) continue;
      std::string key = token_text(service, each.id);
      if (top.contains(key)) key = "token_id:" + std::to_string(each.id);
      top[key] = logprob_number(each.logprob);
    }
    add(service, token.id, text, logprob, std::move(top));
  }
  bool empty() const { return tokens_.empty(); }
  /// What was added since the last time.
  Json take() {
    return {{"tokens", std::exchange(tokens_, Json::array())},
            {"token_logprobs", std::exchange(logprobs_, Json::array())},
            {"top_logprobs", std::exchange(tops_, Json::array())},
            {"text_offset", std::exchange(offsets_, Json::array())}};
  }

 private:
  void add(const Service& service, Token token, const std::string& text, Json logprob, Json top) {
    tokens_.push_back(text);
    logprobs_.push_back(std::move(logprob));
    tops_.push_back(std::move(top));
    offsets_.push_back(offset_);
    offset_ += length_of(service.engine.decode(std::span(&token, 1), true));
  }

  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(),
       offsets_ = Json::array();
  std::int64_t offset_ = 0;
};

/// The answer, put together of the turns. In the I/O thread.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(const Service& service, CompletionBody body, Reply reply)
      : service_(service),
        body_(std::move(body)),
        reply_(std::move(reply)),
        id_(new_id("cmpl-")),
        created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
        choices_(body_.turns.size() * static_cast<std::size_t>(body_.n)),
        turns_left_(body_.turns.size()),
        chunk_head_(dump(object())) {
    reply_.account([&](Account& account) { account.made = id_; });
  }

  void start(Service& service, Caller caller, Keepers keepers);

  void begin(std::size_t prompt, const TurnUsage& usage) {
    if (body_.stream && !std::exchange(has_begun_, true)) reply_.begin();
    (void)usage;
    if (!body_.echo || body_.logprobs) return;
    for (const std::size_t i : choices_of(prompt)) say(i, body_.texts[prompt]);
  }
  void prompt(std::size_t prompt, const std::vector<Token>& ids,
              const std::vector<ChosenToken>& logprobs) {
    for (const std::size_t i : choices_of(prompt)) {
      choices_[i].logprobs.add_first(service_, ids.front());
      for (const ChosenToken& token : logprobs) {
        choices_[i].logprobs.add(service_, token, *body_.logprobs > 0);
      }
      say(i, body_.texts[prompt]);
    }
  }
  void piece(std::size_t prompt, std::size_t sample, const TurnPiece& piece) {
    const std::size_t i = choices_of(prompt)[sample];
    for (const ChosenToken& token : piece.logprobs) {
      choices_[i].logprobs.add(service_, token, *body_.logprobs > 0);
    }
    choices_[i].ids.insert(choices_[i].ids.end(), piece.tokens.begin(), piece.tokens.end());
    std::string text;
    for (const ReplyEvent& event : piece.events) text += event.text;
    say(i, text);
  }
  void end(std::size_t prompt, std::size_t sample, const TurnEnd& end) {
    const std::size_t i = choices_of(prompt)[sample];
    choices_[i].end = end;
    if (body_.stream) write(i, "", end.openai());
  }
  void done(const TurnUsage& usage) {
    usage_.prompt += usage.prompt;
    usage_.cached += usage.cached;
    usage_.computed += usage.computed;
    usage_.output += usage.output;
    if (--turns_left_ > 0 || is_over_) return;
    if (!when_safe_) return finish();
    when_safe_([self = shared_from_this(), &http = service_.http](std::optional<Fault> fault) {
      http.post([self, fault] { fault ? self->fault(*fault) : self->finish(); });
    });
  }
  void finish() {
    if (std::exchange(is_over_, true)) return;
    if (body_.stream) return finish_stream();
    Json out = object();
    out["choices"] = Json::array();
    Json finishes = Json::array();
    bool is_unusual = false;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      out["choices"].push_back(choice_json(i, choices_[i].text, choices_[i].end.openai()));
      finishes.push_back(unusual_finish(choices_[i].end));
      is_unusual = is_unusual || !finishes.back().is_null();
    }
    out["usage"] = openai_usage(usage_);
    out["dendrite"] = extension();
    if (is_unusual) out["dendrite"]["finish"] = std::move(finishes);
    reply_.send({.body = dump(out)});
  }
  void fault(const Fault& fault) {
    if (std::exchange(is_over_, true)) return;
    for (const Turn& turn : turns_) turn.cancel();
    if (!has_begun_) return reply_.send(openai_error(fault));
    reply_.write("data: " + error_json(fault) + "\n\n");
    reply_.end();
  }

 private:
  struct Choice {
    std::string text;
    std::vector<Token> ids;
    LogprobLists logprobs;
    TurnEnd end;
  };

  /// The places of a prompt's samples.
  std::vector<std::size_t> choices_of(std::size_t prompt) const {
    std::vector<std::size_t> out;
    const auto n = static_cast<std::size_t>(body_.n);
    for (std::size_t i = 0; i < n; ++i) out.push_back(prompt * n + i);
    return out;
  }
  void say(std::size_t choice, const std::string& text) {
    if (!body_.stream) {
      choices_[choice].text += text;
    } else if (!text.empty() || !choices_[choice].ids.empty()) {  // (ids of half a character)
      write(choice, text, nullptr);
    }
  }
  Json object() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", body_.model},
            {"system_fingerprint", service_.fingerprint}};
  }
  Json extension() const {
    Json out = Json::object();
    if (body_.seed) out["seed"] = *body_.seed;
    if (!body_.ignored.empty()) out["ignored"] = body_.ignored.paths();
    return out;
  }
  Json choice_json(std::size_t index, const std::string& text, const char* finish) {
    Choice& choice = choices_[index];
    Json out = {{"index", index},
                {"text", text},
                {"logprobs", nullptr},
                {"finish_reason", finish == nullptr ? Json() : Json(finish)}};
    if (body_.logprobs && (!body_.stream || !choice.logprobs.empty())) {
      out["logprobs"] = choice.logprobs.take();
    }
    if (finish != nullptr && !choice.end.stop.empty()) out["stop_reason"] = choice.end.stop;
    if (body_.token_ids) out["token_ids"] = std::exchange(choice.ids, {});
    return out;
  }
  void write(std::size_t choice, const std::string& text, const char* finish) {
    Json out = {{"choices", Json::array({choice_json(choice, text, finish)})}};
    if (!std::exchange(has_told_, true)) out["dendrite"] = extension();
    if (finish != nullptr) {
      const Json unusual = unusual_finish(choices_[choice].end);
      if (!unusual.is_null()) out["dendrite"]["finish"] = unusual;
    }
    if (body_.include_usage) out["usage"] = nullptr;
    reply_.write(chunk_event(chunk_head_, out));
  }
  void finish_stream() {
    if (body_.include_usage) {
      const Json out = {{"choices", Json::array()}, {"usage", openai_usage(usage_)}};
      reply_.write(chunk_event(chunk_head_, out));
    }
    reply_.write("data: [DONE]\n\n");
    reply_.end();
  }

  const Service& service_;
  CompletionBody body_;
  Reply reply_;
  std::string id_;
  std::int64_t created_;
  std::vector<Choice> choices_;
  std::vector<Turn> turns_;
  std::size_t turns_left_;
  std::string chunk_head_;
  TurnUsage usage_;
  std::function<void(std::function<void(std::optional<Fault>)>)> when_safe_;
  bool has_begun_ = false, has_told_ = false, is_over_ = false;
};

/// What one prompt's turn says.
class PromptSink final : public TurnSink {
 public:
  PromptSink(std::shared_ptr<Completion> all, std::size_t prompt, std::function<void(Branch)> keep)
      : all_(std::move(all)), prompt_(prompt), keep_(std::move(keep)) {}
  void admitted(const TurnHead& head) override { ids_ = head.prompt; }
  void begin(const TurnUsage& usage) override { all_->begin(prompt_, usage); }
  void prompt(std::vector<ChosenToken> logprobs) override { all_->prompt(prompt_, ids_, logprobs); }
  void piece(std::size_t choice, const TurnPiece& piece) override {
    all_->piece(prompt_, choice, piece);
  }
  void end(std::size_t choice, const TurnEnd& end) override { all_->end(prompt_, choice, end); }
  void done(const TurnUsage& usage) override { all_->done(usage); }
  void fault(const Fault& fault) override { all_->fault(fault); }
  void keep(std::size_t, Branch branch) override { keep_(std::move(branch)); }

 private:
  std::shared_ptr<Completion> all_;
  std::size_t prompt_;
  std::function<void(Branch)> keep_;
  std::vector<Token> ids_;
};

void Completion::start(Service& service, Caller caller, Keepers keepers) {
  std::vector<TurnRequest> turns = std::move(body_.turns);
  when_safe_ = std::move(keepers.when_safe);
  const auto self = shared_from_this();
  // In the I/O thread, so that nothing is heard before all are known.
  service.http.post([self, &service, caller, keepers = std::move(keepers),
                     all = std::make_shared<std::vector<TurnRequest>>(std::move(turns))] {
    for (std::size_t i = 0; i < all->size(); ++i) {
      self->turns_.push_back(service.turns.start(
          std::move((*all)[i]), caller,
          accounted(self->reply_, std::make_shared<PromptSink>(self, i, keepers.kept))));
      if (keepers.started) keepers.started(self->turns_.back());
    }
    self->reply_.on_gone([turns = self->turns_] {
      for (const Turn& turn : turns) turn.cancel();
    });
  });
}

}  // namespace

void complete(Service& service, Caller caller, CompletionBody body, const Reply& reply,
              Keepers keepers) {
  tell_ignored(reply, body.ignored);
  std::make_shared<Completion>(service, std::move(body), reply)
      ->start(service, caller, std::move(keepers));
}

void add_completion_routes(Service& service) {
  service.route("POST", "/v1/completions", [&service](Request request, const Reply& reply) {
    with_body(service, std::move(request), reply, openai_form,
              [&service](const Request& head, const Json& body, const Reply& out) {
                complete(service, service.caller(head), read_prompted(service, body), out);
              });
  });
}

}  // namespace dendrite::server
