#include <algorithm>
#include <atomic>

#include "dendrite/error.h"
#include "server/decision_questions.h"
#include "server/openai.h"
#include "server/read.h"
#include "server/turns.h"

// /v1/decisions and /v1/systemone, the same in another form: questions about one input, answered by
// the chances of their labels. One prefill of what all have in common, a fork a question, and one
// call that scores all labels.
namespace dendrite::server {
namespace {

enum class Form { kDecisions, kSystemOne };

class Decision final : public Admitted, public std::enable_shared_from_this<Decision> {
 public:
  Decision(Service& service, Form form, Caller caller, Reply reply)
      : service_(service),
        form_(form),
        admission_(static_cast<EngineTurns&>(service.turns).admission()),
        session_(service.turns.session(caller)),
        caller_(caller),
        reply_(std::move(reply)) {}

  /// In a helper thread. Throws Fault.
  void start(const Json& body);

  int choices() const override { return 1; }
  int priority() const override { return 0; }
  Caller caller() const override { return caller_; }
  void run() override;
  void fail(const Fault& fault) override;

 private:
  void post(void (Decision::*function)()) {
    service_.http.post([self = shared_from_this(), function] { ((*self).*function)(); });
  }
  void read(const Json& body, Json& messages);
  void add_prompt(const Json& messages, const Question& question);
  Json answer(const Json& answers, std::int64_t tokens) const;
  void have_input();
  void have_prompts();
  void have_scores();
  void let_go();
  /// What a step of it throws is told.
  template <typename Step>
  void attempt(const Step& step);

  Service& service_;
  const Form form_;
  Admission& admission_;
  Session& session_;
  Caller caller_;
  Reply reply_;
  std::string model_;
  std::vector<Question> questions_;
  std::vector<std::vector<Token>> prompts_;
  std::vector<std::vector<std::vector<Token>>> labels_;
  std::vector<Token> common_;
  std::string salt_;
  std::int64_t cached_ = 0;
  std::atomic<bool> over_ = false;
  std::atomic<std::size_t> prompts_left_ = 0;
  // In the I/O thread; branches before the calls that have them.
  Branch input_;
  std::vector<Branch> branches_;
  PendingPrefill input_call_;
  std::vector<PendingPrefill> prompt_calls_;
  PendingScore scores_;
};

void Decision::read(const Json& body, Json& messages) {
  Fields fields(body, "");
  Ignored ignored;
  const bool is_named = form_ == Form::kSystemOne;
  const std::string model = fields.text("model").value_or("");
  const bool is_others = is_named && model.starts_with("jev-");  // which its clients ask for
  model_ = service_.model_name(is_others ? "" : model);
  if (is_others) ignored.add("model(" + model + ")");
  const char* name = is_named ? "state" : "input";
  const Json* input = fields.find(name);
  if (input == nullptr) throw bad_request(name, "it is missing");
  const Json* questions = fields.find("questions");
  if (questions == nullptr) throw bad_request("questions", "it is missing");
  messages = is_named ? read_state(*input) : read_decision_input(*input, name);
  questions_ = is_named ? read_named_questions(*questions, "questions")
                        : read_questions(*questions, "questions");
  salt_ = service_.salt_of(caller_, read_cache_salt(fields));
  for (const char* each : {"safety_identifier", "prompt_cache_key", "prompt_cache_options"}) {
    fields.accept(each);
  }
  fields.rest(ignored);
  tell_ignored(reply_, ignored);
}

void Decision::start(const Json& body) {
  Json messages;
  read(body, messages);
  for (const Question& question : questions_) add_prompt(messages, question);
  common_ = prompts_.front();
  for (const std::vector<Token>& prompt : prompts_) {
    const auto place = std::ranges::mismatch(common_, prompt).in1;
    common_.erase(place, common_.end());
  }
  if (admission_.enter(shared_from_this())) run();
}

/// The input comes first, so that all questions share it.
void Decision::add_prompt(const Json& messages, const Question& question) {
  Json asked = messages;
  if (!asked.empty() && asked.back()["role"] == "user") {
    const std::string text = asked.back()["content"];
    asked.back()["content"] = text + "\n\n" + question.text;
  } else {
    asked.push_back({{"role", "user"}, {"content", question.text}});
  }
  // (A choice says that the answer is constrained: a model that thinks is told that it has.)
  std::vector<std::string> options;
  for (const Question::Option& option : question.options) options.push_back(option.label);
  ChatParams params;
  params.generate.decode.constraint = Constraint::choice(options);
  prompts_.push_back(service_.model.request(dump(asked), params).prompt);
  const std::vector<Token>& prompt = prompts_.back();
  if (std::ssize(prompt) + 8 > service_.context_length()) {
    throw bad_request(form_ == Form::kSystemOne ? "state" : "input",
                      "this model's maximum context length is " +
                          std::to_string(service_.context_length()) +
                          " tokens, and input and question have " + std::to_string(prompt.size()),
                      "context_length_exceeded");
  }
  std::vector<std::vector<Token>>& labels = labels_.emplace_back();
  for (const std::string& option : options) {
    labels.push_back(service_.engine.encode_after(prompt, option));
  }
}

template <typename Step>
void Decision::attempt(const Step& step) {
  admission_.progress();
  if (over_) return let_go();
  try {
    step();
  } catch (const std::exception& error) {
    fail({500, "server_error", "", "", error.what()});
  }
}

void Decision::run() {
  service_.http.post([self = shared_from_this()] {
    self->attempt([&] {
      self->reply_.on_gone([self] {
        self->over_ = true;
        self->let_go();
      });
      self->input_call_ = self->session_.submit_prefill(
          std::span<const Token>(self->common_.empty() ? self->prompts_.front() : self->common_),
          {.stream = 0, .salt = self->salt_});
      self->input_call_.on_done([self] { self->post(&Decision::have_input); });
    });
  });
}

void Decision::have_input() {
  attempt([&] {
    input_ = input_call_.get();
    cached_ = std::max<std::int64_t>(0, input_.length() - input_.stats().tokens_computed);
    prompts_left_ = prompts_.size();
    for (const std::vector<Token>& prompt : prompts_) {
      prompt_calls_.push_back(
          session_.submit_prefill(std::span<const Token>(prompt), {.stream = 0, .salt = salt_}));
    }
    for (PendingPrefill& call : prompt_calls_) {
      call.on_done([self = shared_from_this()] {
        if (--self->prompts_left_ == 0) self->post(&Decision::have_prompts);
      });
    }
  });
}

void Decision::have_prompts() {
  attempt([&] {
    for (PendingPrefill& call : prompt_calls_) branches_.push_back(call.get());
    scores_ = session_.submit_score_tokens_of_each(branches_, labels_);
    scores_.on_done([self = shared_from_this()] { self->post(&Decision::have_scores); });
  });
}

void Decision::have_scores() {
  attempt([&] {
    const std::vector<std::vector<Score>> scores = scores_.get();
    const bool is_named = form_ == Form::kSystemOne;
    Json answers = is_named ? Json::object() : Json::array();
    std::int64_t tokens = std::ssize(common_);
    for (std::size_t i = 0; i < questions_.size(); ++i) {
      std::vector<double> logprobs;
      for (const Score& score : scores[i]) {
        if (score.tokens.empty()) {
          return fail(unavailable("server_overloaded", "there is no memory for the answers now"));
        }
        logprobs.push_back(score.logprob);
      }
      if (is_named) {
        answers[questions_[i].name.get<std::string>()] = named_answer_json(questions_[i], logprobs);
      } else {
        answers.push_back(answer_json(questions_[i], logprobs));
      }
      tokens += std::ssize(prompts_[i]) - std::ssize(common_);
    }
    over_ = true;
    reply_.account([&](Account& account) {
      account.prompt_tokens = tokens;
      account.cached_tokens = cached_;
    });
    reply_.send({.body = dump(answer(answers, tokens))});
    let_go();
  });
}

Json Decision::answer(const Json& answers, std::int64_t tokens) const {
  Json usage = {{"input_tokens", tokens}, {"output_tokens", 0}};
  if (form_ == Form::kDecisions) {
    usage = {{"input_tokens", tokens},
             {"input_tokens_details", {{"cached_tokens", cached_}, {"cache_write_tokens", 0}}},
             {"output_tokens", 0},
             {"output_tokens_details", {{"reasoning_tokens", 0}}},
             {"total_tokens", tokens}};
  }
  return {{"model", model_}, {"answers", answers}, {"usage", usage}};
}

void Decision::fail(const Fault& fault) {
  if (!over_.exchange(true)) reply_.send(openai_error(fault));
  post(&Decision::let_go);
}

/// Dropping calls cancels them.
void Decision::let_go() {
  admission_.leave(shared_from_this());
  scores_ = {};
  prompt_calls_.clear();
  input_call_ = {};
  branches_.clear();
  input_ = {};
}

}  // namespace

void add_decision_routes(Service& service) {
  const auto route = [&service](const char* path, Form form) {
    service.route("POST", path, [&service, form](Request request, const Reply& reply) {
      with_body(service, std::move(request), reply, openai_form,
                [&service, form](const Request& head, const Json& body, const Reply& out) {
                  std::make_shared<Decision>(service, form, service.caller(head), out)->start(body);
                });
    });
  };
  route("/v1/decisions", Form::kDecisions);
  route("/v1/systemone", Form::kSystemOne);
}

}  // namespace dendrite::server
