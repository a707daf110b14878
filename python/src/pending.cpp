// Calls that somebody awaits.
#include "pending.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "params.h"

namespace dendrite::python {

void Inbox::post(std::uint64_t number) {
  {
    const std::scoped_lock lock(mutex_);
    numbers_.push_back(number);
    if (numbers_.size() > 1 || !wake_) return;  // it is awake already, or about to be; or it asks
  }
  const WithGil gil;
  try {
    wake_.get()();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("dendrite: waking an event loop");  // it was closed
  }
}

bool Inbox::empty() {
  const std::scoped_lock lock(mutex_);
  return numbers_.empty();
}

std::vector<std::uint64_t> Inbox::take() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(numbers_, {});
}

void SessionState::end_calls() {
  while (!pending.empty()) {
    const std::shared_ptr<PendingState> call = pending.begin()->second;
    call->cancel_and_wait();
  }
}

void SessionState::end_calls_on(const Branch* branch) {
  std::vector<std::shared_ptr<PendingState>> found;
  for (const auto& [state, call] : pending) {
    const std::span<Branch* const> handles = call->branches().handles();
    if (std::ranges::find(handles, branch) != handles.end()) found.push_back(call);
  }
  for (const std::shared_ptr<PendingState>& call : found) call->cancel_and_wait();
}

PendingState::PendingState(std::shared_ptr<SessionState> session, Marked branches)
    : session_(std::move(session)), branches_(std::move(branches)) {
  for (const Branch* branch : branches_.handles()) ids_.push_back(branch->id());
}

PendingState::~PendingState() {
  if (session_->engine->is_foreign()) {
    new std::shared_ptr<Handle>(std::move(handle_));
    return;
  }
  const nb::gil_scoped_release released;
  handle_.reset();
}

void PendingState::set(Handle handle) {
  *handle_ = std::move(handle);
  session_->pending.emplace(this, shared_from_this());
}

void PendingState::release() {
  branches_.clear();
  session_->pending.erase(this);  // (whoever calls this has another reference)
}

void PendingState::drop() {
  release();
  std::shared_ptr<Handle> gone = std::exchange(handle_, std::make_shared<Handle>());
  const nb::gil_scoped_release released;
  gone.reset();
}

Pending& PendingState::pending() {
  return std::visit([](auto& handle) -> Pending& { return handle; }, *handle_);
}

void PendingState::cancel_and_wait() {
  if (!session_->pending.contains(this)) return;
  Pending& call = pending();
  call.cancel();
  {
    std::shared_ptr<Handle> kept = handle_;
    const nb::gil_scoped_release released;
    call.wait();
    kept.reset();
  }
  release();
}

void PendingState::wait_for_step(std::chrono::milliseconds timeout) {
  auto& call = as<PendingDecode>();
  std::shared_ptr<Handle> kept = handle_;
  const nb::gil_scoped_release released;
  call.wait_for_step(timeout);
  kept.reset();
}

std::shared_ptr<PendingState> submit(const PySession& self, Marked branches, const Submit& how) {
  SessionState& state = *self.state;
  state.live();
  if (*state.closing) throw EngineClosed("the session is being closed; expected one that is open");
  auto call = std::make_shared<PendingState>(self.state, std::move(branches));
  call->set(how(*state.session, call->branches()));
  return call;
}

namespace {

using Shared = std::shared_ptr<PendingState>;

Shared submit_prefill(const PySession& self, nb::handle prompt, nb::handle stream,
                      nb::handle add_special, nb::handle salt, nb::handle cancel) {
  const std::vector<Token> tokens =
      to_prompt(self.state->engine->live(), prompt, add_special, "prompt");
  const PrefillOptions options{.stream = to_optional_unsigned(stream, "stream"),
                               .salt = to_text(salt, "salt"),
                               .cancel = to_stop_token(cancel)};
  return submit(self, {}, [&](Session& session, const Marked&) {
    return session.submit_prefill(tokens, options);
  });
}

Shared submit_decode(const PySession& self, nb::handle branches, const NativeParams& native,
                     nb::handle on_token, nb::handle on_step, nb::handle enough, nb::handle cancel,
                     const std::shared_ptr<Inbox>& inbox, std::uint64_t number) {
  DecodeParams params = with_callables(
      native.params,
      {Callable(on_token, "on_token"), Callable(on_step, "on_step"), Callable(enough, "enough")});
  params.cancel = to_stop_token(cancel);
  if (inbox != nullptr) {  // who streams is told of each step
    params.on_step = [inbox, number, also = params.on_step](std::span<const TokenEvent> events) {
      inbox->post(number);
      return !also || also(events);
    };
  }
  if (params.constraint) check(self.state->engine->live(), *params.constraint);
  return submit(self, Marked(*self.state, branches, "decode", !enough.is_none()),
                [&](Session& session, const Marked& marked) {
                  return session.submit_decode(marked.handles(), params);
                });
}

Shared submit_score(const PySession& self, nb::handle branches, nb::handle continuations,
                    nb::handle top_logprobs) {
  const ScoreParams params{.top_logprobs = to_small_int(top_logprobs, "score: top_logprobs")};
  return submit(self, Marked(*self.state, branches, "score"),
                [&](Session& session, const Marked& marked) {
                  const auto tokens = to_continuations(marked.handles(), continuations);
                  return session.submit_score_tokens_of_each(marked.handles(), tokens, params);
                });
}

Shared submit_expand(const PySession& self, nb::handle branches, nb::handle top,
                     nb::handle min_prob) {
  const ExpandParams params{.top = to_small_int(top, "top"),
                            .min_prob = to_number(min_prob, "min_prob")};
  return submit(self, Marked(*self.state, branches, "expand"),
                [&](Session& session, const Marked& marked) {
                  return session.submit_next_tokens(marked.handles(), params);
                });
}

std::vector<Generation> generations_of(PendingState& self) {
  self.release();
  return self.as<PendingDecode>().get();
}

std::vector<std::vector<Score>> scores_of(PendingState& self) {
  self.release();
  return self.as<PendingScore>().get();
}

nb::list children_of(PendingState& self) {
  const std::vector<std::vector<TokenLogprob>> tokens = self.as<PendingTokens>().get();
  auto children = self.session().live().children(self.branches().handles(), tokens);
  self.release();
  nb::list all;
  for (std::vector<Branch>& of_one : children) {
    all.append(own(self.shared_session(), std::move(of_one)));
  }
  return all;
}

/// What a call of that kind gave, Python's from now on.
template <typename Kind>
nb::object result_of(PendingState& self) {
  self.release();
  return own(self.shared_session(), self.as<Kind>().get());
}

/// The tokens since the last time, a list a step.
nb::list steps_of(PendingState& self) {
  auto& call = self.as<PendingDecode>();
  nb::list steps;
  nb::list step;
  std::int64_t turn = -1;
  for (StreamToken& token : call.take()) {
    if (token.step != turn && turn >= 0) {
      steps.append(step);
      step = nb::list();
    }
    turn = token.step;
    const BranchId id = self.id_of(token.index);
    step.append(OwnedTokenEvent(id, std::move(token)));
  }
  if (turn >= 0) steps.append(step);
  return steps;
}

/// Waits for at least one step; no steps: the call has ended.
nb::list next_steps(PendingState& self) {
  for (;;) {
    nb::list steps = steps_of(self);
    auto& call = self.as<PendingDecode>();
    if (nb::len(steps) > 0) return steps;
    const bool ended = call.done();
    steps = steps_of(self);  // what came with its end
    if (ended || nb::len(steps) > 0) return steps;
    self.wait_for_step(std::chrono::milliseconds(50));
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// Makes steps, or waits for those of who makes them, until there is something in the inbox.
void step_until(EngineState& self, const std::shared_ptr<Inbox>& inbox) {
  using Clock = std::chrono::steady_clock;
  const Engine engine = self.live();
  while (inbox->empty()) {
    {
      const nb::gil_scoped_release released;
      const Clock::time_point until = Clock::now() + std::chrono::milliseconds(50);
      while (inbox->empty() && Clock::now() < until) {
        if (!engine.step()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void bind_pending(nb::module_& module) {
  nb::class_<Inbox>(module, "Inbox", "What an engine has to tell an event loop.")
      .def(
          "__init__", [](Inbox* self, nb::object wake) { new (self) Inbox(wake); },
          nb::arg("wake").none())
      .def("take", &Inbox::take);
  nb::class_<PendingState>(module, "Pending", "A call that was submitted.")
      .def("done", [](PendingState& self) { return self.pending().done(); })
      .def("cancel", [](PendingState& self) { self.pending().cancel(); })
      .def("cancel_and_wait", &PendingState::cancel_and_wait)
      .def(
          "on_done",
          [](PendingState& self, std::shared_ptr<Inbox> inbox, std::uint64_t number) {
            self.pending().on_done([inbox = std::move(inbox), number] { inbox->post(number); });
          },
          nb::arg("inbox"), nb::arg("number"))
      .def("release", &PendingState::release)
      .def("drop", &PendingState::drop)
      .def("branch", &result_of<PendingPrefill>, nb::sig("def branch(self) -> Branch"))
      .def("composed", &result_of<PendingCompose>,
           nb::sig("def composed(self) -> tuple[Branch, Composition]"))
      .def("joins", &result_of<PendingJoins>,
           nb::sig("def joins(self) -> list[tuple[Branch, Composition]]"))
      .def("chunk", &result_of<PendingChunk>, nb::sig("def chunk(self) -> Chunk"))
      .def("generations", &generations_of)
      .def("scores", &scores_of)
      .def("children", &children_of, nb::sig("def children(self) -> list[list[Branch]]"))
      .def("steps", &steps_of, nb::sig("def steps(self) -> list[list[TokenEvent]]"))
      .def("next_steps", &next_steps, nb::sig("def next_steps(self) -> list[list[TokenEvent]]"));
  module.def(
      "step",
      [](EngineState& self) {
        const Engine engine = self.live();
        const nb::gil_scoped_release released;
        return engine.step();
      },
      nb::arg("engine"));
  module.def("step_until", &step_until, nb::arg("engine"), nb::arg("inbox"));
  module.def("submit_prefill", &submit_prefill, nb::arg("session"), nb::arg("prompt").none(),
             nb::arg("stream").none(), nb::arg("add_special").none(), nb::arg("salt").none(),
             nb::arg("cancel").none());
  module.def("submit_decode", &submit_decode, nb::arg("session"), nb::arg("branches").none(),
             nb::arg("params"), nb::arg("on_token").none(), nb::arg("on_step").none(),
             nb::arg("enough").none(), nb::arg("cancel").none(), nb::arg("inbox").none(),
             nb::arg("number"));
  module.def("submit_score", &submit_score, nb::arg("session"), nb::arg("branches").none(),
             nb::arg("continuations").none(), nb::arg("top_logprobs").none());
  module.def("submit_expand", &submit_expand, nb::arg("session"), nb::arg("branches").none(),
             nb::arg("top").none(), nb::arg("min_prob").none());
}

}  // namespace dendrite::python
