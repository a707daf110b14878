#include "bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <thread>

namespace dendrite::python {
namespace {

unsigned long this_thread() {
  return PyThread_get_thread_ident();
}

/// A PyBranch made where it stays, of these arguments: what a fork costs is mostly this.
template <typename Handle>
nb::object make_handle(const std::shared_ptr<SessionState>& session, Handle&& handle) {
  static const nb::handle type = nb::type<PyBranch>();
  nb::object object = nb::inst_alloc(type);
  new (nb::inst_ptr<PyBranch>(object)) PyBranch(session, std::forward<Handle>(handle));
  nb::inst_mark_ready(object);
  return object;
}

/// What `for` takes; a text, whose characters are no branches, is told from a list at once.
nb::object branches_of(nb::handle branches, const char* what) {
  constexpr const char* kExpected = "a Branch, or a sequence of them";
  const std::string where = std::string(what) + ": branches";
  if (nb::isinstance<nb::str>(branches)) fail_type(where, branches, kExpected);
  return items_of(branches, where, kExpected);
}

}  // namespace

// --- EngineState

void EngineState::refuse_fork() const {
  if (!is_foreign()) return;
  throw EngineClosed(
      "this process is a fork of the one that loaded the engine, whose threads are not here; load "
      "an engine of its own in this process");
}

Engine& EngineState::live() {
  refuse_fork();
  if (!engine) throw EngineClosed("the engine was closed; load it again");
  return *engine;
}

void EngineState::start() {
  Engine& loaded = live();
  if (!thread.running()) thread = loaded.start();
}

void EngineState::close() {
  if (is_foreign()) {
    new EngineThread(std::move(thread));  // not here: neither to be joined nor to be freed
    if (engine) new Engine(std::move(*engine));
    engine.reset();
    new std::shared_ptr(std::move(grammars));
    return;
  }
  if (!engine) return;
  for (const std::weak_ptr<SessionState>& weak : sessions) {
    if (const auto session = weak.lock()) session->close();
  }
  sessions.clear();
  std::vector<Chunk> held;
  for (PyChunk* chunk : chunks) held.push_back(std::exchange(chunk->own, Chunk()));
  std::optional<Engine> last = std::move(engine);
  engine.reset();
  auto last_grammars = std::move(grammars);
  EngineThread driver = std::move(thread);
  const nb::gil_scoped_release released;
  driver.stop();
  held.clear();
  last_grammars.reset();
  last.reset();
}

// --- PyBranch

PyBranch::PyBranch(std::shared_ptr<SessionState> of, Branch branch)
    : session(std::move(of)), own(std::move(branch)) {
  insert();
}

PyBranch::PyBranch(std::shared_ptr<SessionState> of, Branch* theirs)
    : session(std::move(of)), at(theirs) {
  insert();
}

PyBranch::~PyBranch() {
  *link = next;
  if (next != nullptr) next->link = link;
  if (session->engine->is_foreign())
    new Branch(std::move(own));  // dropping it would wait for a lock
}

void PyBranch::insert() {
  next = session->branches;
  if (next != nullptr) next->link = &next;
  link = &session->branches;
  session->branches = this;
}

Branch& PyBranch::read(const char* what) {
  session->engine->refuse_fork();
  if (exclusive != 0 && exclusive != this_thread()) {
    throw BranchBusy(std::string(what) +
                     ": the branch is in a call of another thread that may prune it (enough); "
                     "expected to be called when that has ended, or in its callbacks");
  }
  return *at;
}

Branch& PyBranch::change(const char* what) {
  session->engine->refuse_fork();
  if (calls > 0) {
    throw BranchBusy(std::string(what) +
                     ": the branch is in a call that computes on it; expected to be called when "
                     "that has ended. It may be forked and read meanwhile");
  }
  return *at;
}

// --- SessionState

SessionState::~SessionState() {
  if (!session) return;
  std::optional<Session> last = std::move(session);
  session.reset();
  if (engine->is_foreign()) {
    new Session(std::move(*last));
    return;
  }
  const nb::gil_scoped_release released;  // with the engine's last handle, its memory goes
  last.reset();
}

Session& SessionState::live() {
  engine->refuse_fork();
  if (!session) throw EngineClosed("the session was closed; expected one that is open");
  return *session;
}

void SessionState::close() {
  engine->refuse_fork();
  if (!session) return;
  if (std::ranges::find(callers, this_thread()) != callers.end()) {
    throw BranchBusy("close: in a callback of one of the session's calls; expected after it");
  }
  *closing = true;
  end_calls();
  while (!callers.empty()) {  // they end with their next step
    const nb::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (branches != nullptr) {
    PyBranch& branch = *branches;
    branches = branch.next;
    if (branches != nullptr) branches->link = &branches;
    branch.next = nullptr;
    branch.link = &branch.next;
    branch.at = &branch.own;
    branch.own.prune();
  }
  std::optional<Session> last = std::move(session);
  session.reset();
  const nb::gil_scoped_release released;
  last.reset();
}

SessionState::InCall::InCall(SessionState& session) : of(session) {
  of.live();
  if (*of.closing) throw EngineClosed("the session is being closed; expected one that is open");
  of.callers.push_back(this_thread());
}

SessionState::InCall::~InCall() {
  of.callers.erase(std::ranges::find(of.callers, this_thread()));
}

// --- Marked, Borrowed

Marked::Marked(SessionState& session, nb::handle branches, const char* what, bool enough)
    : enough_(enough) {
  std::vector<PyBranch*> found;
  const auto add = [&](nb::handle object) {
    const std::string where = std::string(what) + ": branch " + std::to_string(found.size());
    PyBranch& branch = to_branch(object, where);
    if (!branch.is_live()) {
      throw BranchEmpty(where + " is empty (pruned, or closed with its session)");
    }
    if (branch.session.get() != &session) throw Error(where + " belongs to another session");
    found.push_back(&branch);
    objects_.push_back(nb::borrow(object));
    handles_.push_back(&branch.change(what));
  };
  if (nb::isinstance<PyBranch>(branches)) {
    add(branches);
  } else {
    for (const nb::handle branch : branches_of(branches, what)) add(branch);
  }
  for (PyBranch* branch : found) {
    ++branch->calls;
    if (enough) branch->exclusive = this_thread();
  }
}

Marked& Marked::operator=(Marked&& other) noexcept {
  std::swap(objects_, other.objects_);
  std::swap(handles_, other.handles_);
  std::swap(enough_, other.enough_);
  return *this;
}

void Marked::clear() {
  for (const nb::object& object : objects_) {
    auto& branch = nb::cast<PyBranch&>(object);
    --branch.calls;
    if (enough_) branch.exclusive = 0;
  }
  objects_.clear();
  handles_.clear();
}

Borrowed::Borrowed(const std::shared_ptr<SessionState>& session, std::span<Branch> branches) {
  for (Branch& branch : branches) add(session, &branch);
}

Borrowed::Borrowed(const std::shared_ptr<SessionState>& session, const Branch& branch)
    : for_reading_(true) {
  add(session, const_cast<Branch*>(&branch));  // (which Python cannot change: see below)
  ++nb::cast<PyBranch&>(objects_.front()).calls;
}

void Borrowed::add(const std::shared_ptr<SessionState>& session, Branch* branch) {
  objects_.push_back(make_handle(session, branch));
}

Borrowed::~Borrowed() {
  for (const nb::object& object : objects_) {
    auto& branch = nb::cast<PyBranch&>(object);
    if (for_reading_) --branch.calls;
    if (branch.calls > 0) branch.session->end_calls_on(branch.at);
    branch.at = &branch.own;
  }
}

nb::list Borrowed::list() const {
  nb::list all;
  for (const nb::object& object : objects_) all.append(object);
  return all;
}

nb::object own(const std::shared_ptr<SessionState>& session, Branch branch) {
  return make_handle(session, std::move(branch));
}

nb::list own(const std::shared_ptr<SessionState>& session, std::vector<Branch> branches) {
  const auto all = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(branches.size())));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    PyList_SetItem(all.ptr(), static_cast<Py_ssize_t>(i),
                   own(session, std::move(branches[i])).release().ptr());
  }
  return all;
}

// --- conversions

nb::str to_str(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(decoded);
}

std::string_view to_view(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

std::vector<Token> to_prompt(const Engine& engine, nb::handle prompt, nb::handle add_special,
                             const char* what) {
  const bool special = add_special.is_none()
                           ? !nb::isinstance<nb::str>(prompt) || !nb::hasattr(prompt, "is_rendered")
                           : to_bool(add_special, "add_special");
  if (nb::isinstance<nb::str>(prompt)) return engine.encode(to_view(prompt), special);
  if (PyBytes_Check(prompt.ptr()) || prompt.is_none() || PyLong_Check(prompt.ptr()) ||
      PyFloat_Check(prompt.ptr())) {
    fail_type(what, prompt, "a str, or token ids");
  }
  return to_tokens(prompt, what);
}

std::vector<Token> to_continuation(const Branch& branch, nb::handle text_or_ids, const char* what) {
  return nb::isinstance<nb::str>(text_or_ids) ? branch.encode(to_view(text_or_ids))
                                              : to_tokens(text_or_ids, what);
}

PyBranch& to_branch(nb::handle object, const std::string& what) {
  if (!nb::isinstance<PyBranch>(object)) fail_type(what, object, "a Branch");
  return nb::cast<PyBranch&>(object);
}

std::vector<std::vector<std::vector<Token>>> to_continuations(std::span<Branch* const> branches,
                                                              nb::handle continuations) {
  constexpr const char* kExpected = "a sequence of texts, or of sequences of token ids";
  if (nb::isinstance<nb::str>(continuations)) fail_type("continuations", continuations, kExpected);
  nb::list all;
  for (const nb::handle one : items_of(continuations, "continuations", kExpected)) all.append(one);
  std::vector<std::vector<std::vector<Token>>> of_each;
  for (const Branch* branch : branches) {
    auto& of_branch = of_each.emplace_back();
    for (const nb::handle one : all) {
      const std::string what = "continuations[" + std::to_string(of_branch.size()) + "]";
      of_branch.push_back(to_continuation(*branch, one, what.c_str()));
    }
  }
  return of_each;
}

nb::object to_array(std::vector<Token> tokens) {
  auto* kept = new std::vector<Token>(std::move(tokens));
  const nb::capsule owner(
      kept, [](void* data) noexcept { delete static_cast<std::vector<Token>*>(data); });
  return nb::cast(nb::ndarray<nb::numpy, Token, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::object parent_of(BranchId id) {
  return id == BranchId::kNone ? nb::none() : nb::cast(id_of(id));
}

std::stop_token to_stop_token(nb::handle cancel) {
  if (cancel.is_none()) return {};
  if (!nb::isinstance<std::stop_source>(cancel)) fail_type("cancel", cancel, "a Cancel or None");
  return nb::cast<std::stop_source&>(cancel).get_token();
}

}  // namespace dendrite::python
