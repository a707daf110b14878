// Composed context (dendrite/compose.h): chunks, and the calls that put branches together.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "params.h"
#include "search.h"

namespace dendrite::python {
namespace {

using InCall = SessionState::InCall;

/// Branches that a call reads: they stay what and where they are until this is gone, though they
/// may be in other calls.
class Sources {
 public:
  Sources(SessionState& session, const char* what) : session_(session), what_(what) {}
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources() {
    for (const nb::object& object : objects_) --nb::cast<PyBranch&>(object).calls;
  }

  const char* what() const { return what_; }
  /// Throws TypeError, BranchEmpty, as PyBranch::read, and Error for one of another session.
  Branch& add(nb::handle object) {
    if (!nb::isinstance<PyBranch>(object)) fail_type(what_, object, "a Branch");
    auto& branch = nb::cast<PyBranch&>(object);
    if (!branch.is_live()) {
      throw BranchEmpty(std::string(what_) +
                        ": a branch is empty (pruned, or closed with its session)");
    }
    if (branch.session.get() != &session_) {
      throw Error(std::string(what_) + ": a branch belongs to another session");
    }
    Branch& handle = branch.read(what_);
    objects_.push_back(nb::borrow(object));
    ++branch.calls;
    return handle;
  }
  std::vector<const Branch*> add_all(nb::handle branches) {
    std::vector<const Branch*> all;
    for (const nb::handle branch : branches) all.push_back(&add(branch));
    return all;
  }

 private:
  SessionState& session_;
  const char* what_;
  std::vector<nb::object> objects_;
};

std::string text_of(nb::handle text) {
  return std::string(to_view(text));
}

Repair to_repair(nb::handle repair) {
  Repair out;
  out.first = nb::cast<std::int64_t>(repair.attr("first"));
  out.last = nb::cast<std::optional<std::int64_t>>(repair.attr("last"));
  return out;
}

/// Of what dendrite.Piece holds.
Piece to_piece(Sources& sources, nb::handle content) {
  if (nb::isinstance<nb::str>(content)) return Piece::text(text_of(content));
  if (nb::isinstance<PyChunk>(content)) {
    return Piece::chunk(nb::cast<PyChunk&>(content).live(sources.what()));
  }
  if (nb::hasattr(content, "branch")) {
    return Piece::span(sources.add(content.attr("branch")),
                       nb::cast<std::int64_t>(content.attr("begin")),
                       nb::cast<std::int64_t>(content.attr("end")));
  }
  return Piece::tokens(to_tokens(content));
}

std::vector<Piece> to_pieces(Sources& sources, nb::handle pieces) {
  std::vector<Piece> all;
  for (const nb::handle piece : pieces) {
    if (!nb::hasattr(piece, "content") || !nb::hasattr(piece, "repair")) {
      fail_type(sources.what(), piece, "a Piece");
    }
    Piece made = to_piece(sources, piece.attr("content"));
    const nb::object repair = piece.attr("repair");
    if (!repair.is_none()) made = std::move(made).with(to_repair(repair));
    all.push_back(std::move(made));
  }
  return all;
}

/// Of (begin, end).
std::vector<Span> to_spans(nb::handle spans) {
  std::vector<Span> all;
  for (const nb::handle span : spans) {
    all.push_back({nb::cast<std::int64_t>(span[0]), nb::cast<std::int64_t>(span[1])});
  }
  return all;
}

void make_params(ComposeParams* self, nb::handle repair, const std::string& mode, double target_kl,
                 nb::handle cancel) {
  ComposeParams params;
  if (!repair.is_none()) params.repair = to_repair(repair);
  if (mode == "exact") {
    params.mode = ComposeParams::Mode::kExact;
  } else if (mode != "composed") {
    throw Error("mode is '" + mode + "'; expected composed or exact");
  }
  params.target_kl = target_kl;
  params.cancel = to_stop_token(cancel);
  new (self) ComposeParams(std::move(params));
}

/// (branch, report)
nb::tuple own(const std::shared_ptr<SessionState>& session, Composed composed) {
  return nb::make_tuple(python::own(session, std::move(composed.branch)),
                        std::move(composed.report));
}

std::unique_ptr<PyChunk> register_chunk(const PySession& self, nb::handle content,
                                        nb::handle prefix, bool stub, const std::string& name,
                                        nb::handle cancel) {
  SessionState& state = *self.state;
  const InCall in_call(state);
  ChunkParams params{.stub = stub, .name = name, .cancel = to_stop_token(cancel)};
  if (!prefix.is_none()) params.prefix = to_prompt(state.engine->live(), prefix, false);
  const bool is_text = nb::isinstance<nb::str>(content);
  const std::string text = is_text ? text_of(content) : "";
  const std::vector<Token> tokens = is_text ? std::vector<Token>() : to_tokens(content);
  Chunk chunk;
  {
    const nb::gil_scoped_release released;
    chunk = is_text ? state.session->register_chunk(text, params)
                    : state.session->register_chunk(tokens, params);
  }
  return std::make_unique<PyChunk>(state.engine, std::move(chunk));
}

nb::tuple compose(const PySession& self, nb::handle pieces, const ComposeParams& params) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "compose");
  const std::vector<Piece> all = to_pieces(sources, pieces);
  Composed composed;
  {
    const nb::gil_scoped_release released;
    composed = self.state->session->compose(all, params);
  }
  return own(self.state, std::move(composed));
}

Generation generate_from_chunks(const PySession& self, nb::handle pieces,
                                const NativeParams& native, const ComposeParams& compose_params,
                                nb::handle on_token, nb::handle on_step) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "generate_from_chunks");
  const std::vector<Piece> all = to_pieces(sources, pieces);
  DecodeParams params =
      with_callables(native.params, {.on_token = Callable(on_token), .on_step = Callable(on_step)});
  params.cancel = compose_params.cancel;
  const nb::gil_scoped_release released;
  return self.state->session->generate_from_chunks(all, params, compose_params);
}

/// `edits`: of (begin, end, pieces).
nb::tuple edit(const PySession& self, nb::handle branch, nb::handle edits,
               const ComposeParams& params) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "edit");
  const Branch& edited = sources.add(branch);
  const std::vector<Span> spans = to_spans(edits);
  std::vector<Edit> all;
  for (const nb::handle edit : edits) {
    all.push_back({spans[all.size()], to_pieces(sources, edit[2])});
  }
  Composed composed;
  {
    const nb::gil_scoped_release released;
    composed = self.state->session->edit(edited, all, params);
  }
  return own(self.state, std::move(composed));
}

nb::tuple compact(const PySession& self, nb::handle branch, nb::handle keep, nb::handle summary,
                  const ComposeParams& params) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "compact");
  const Branch& compacted = sources.add(branch);
  const std::vector<Span> spans = to_spans(keep);
  const std::string text = text_of(summary);
  Composed composed;
  {
    const nb::gil_scoped_release released;
    composed = self.state->session->compact(compacted, spans, text, params);
  }
  return own(self.state, std::move(composed));
}

JoinParams to_join(const ComposeParams& params, nb::handle before_each, nb::handle after_all) {
  JoinParams join;
  static_cast<ComposeParams&>(join) = params;
  join.before_each = text_of(before_each);
  join.after_all = text_of(after_all);
  return join;
}

nb::tuple join(const PySession& self, nb::handle siblings, nb::handle before_each,
               nb::handle after_all, const ComposeParams& params) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "join");
  const std::vector<const Branch*> all = sources.add_all(siblings);
  const JoinParams join = to_join(params, before_each, after_all);
  Composed composed;
  {
    const nb::gil_scoped_release released;
    composed = self.state->session->join(all, join);
  }
  return own(self.state, std::move(composed));
}

nb::list join_many(const PySession& self, nb::handle groups, nb::handle before_each,
                   nb::handle after_all, const ComposeParams& params) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "join");
  std::vector<std::vector<const Branch*>> all;
  for (const nb::handle group : groups) all.push_back(sources.add_all(group));
  const JoinParams join = to_join(params, before_each, after_all);
  std::vector<Composed> joined;
  {
    const nb::gil_scoped_release released;
    joined = self.state->session->join_many(all, join);
  }
  nb::list out;
  for (Composed& composed : joined) out.append(own(self.state, std::move(composed)));
  return out;
}

nb::object settle(const PySession& self, nb::handle branch, nb::handle cancel) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "settle");
  const Branch& composed = sources.add(branch);
  const std::stop_token stop = to_stop_token(cancel);
  Branch exact;
  {
    const nb::gil_scoped_release released;
    exact = self.state->session->settle(composed, stop);
  }
  return python::own(self.state, std::move(exact));
}

Estimate audit(const PySession& self, nb::handle branch, nb::handle cancel) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "audit");
  Branch& composed = sources.add(branch);
  const std::stop_token stop = to_stop_token(cancel);
  const nb::gil_scoped_release released;
  return self.state->session->audit(composed, stop);
}

nb::str describe(const PyChunk& self) {
  if (!self.is_live()) return nb::str("<Chunk: of a closed engine>");
  const Chunk& chunk = self.live("repr");
  const std::string key = chunk.key().substr(0, 8);
  return chunk.name().empty() ? nb::str("<Chunk {}: {} tokens>").format(key, chunk.length())
                              : nb::str("<Chunk {}: {} tokens, {!r}>")
                                    .format(key, chunk.length(), to_str(chunk.name()));
}

void bind_chunk(nb::module_& module) {
  nb::class_<PyChunk>(
      module, "Chunk", nb::is_weak_referenceable(),
      "Text with K and V of its own, which any number of compositions take; made by "
      "Session.register_chunk. While handles live its tokens are known, and its K and V go after "
      "those of chunks without. Its copies are itself; closing the engine empties it.")
      .def_prop_ro(
          "tokens", [](const PyChunk& self) { return to_array(self.live("tokens").tokens()); },
          "int32 [length], without what it was computed behind: a new array each time.",
          nb::sig("def tokens(self) -> NDArray[numpy.int32]"))
      .def_prop_ro(
          "name", [](const PyChunk& self) { return to_str(self.live("name").name()); },
          "For people; that of who registered it first.")
      .def_prop_ro(
          "key", [](const PyChunk& self) { return self.live("key").key(); },
          "SHA-256 of its content, in hex.")
      .def(
          "__len__",
          [](const PyChunk& self) { return static_cast<std::size_t>(self.live("len").length()); },
          "Tokens, without what it was computed behind.")
      .def("__bool__", &PyChunk::is_live, "Whether its engine is open.")
      .def("__repr__", &describe)
      .def(
          "__copy__", [](nb::object self) { return self; }, "Itself.",
          nb::sig("def __copy__(self) -> Self"))
      .def(
          "__deepcopy__", [](nb::object self, nb::handle) { return self; }, nb::arg("memo"),
          "Itself.", nb::sig("def __deepcopy__(self, memo: object) -> Self"))
      .def(
          "__reduce_ex__",
          [](nb::handle, nb::args) -> nb::object {
            throw nb::type_error(
                "a Chunk cannot be pickled: it is a place in its engine's memory. Register its "
                "text, or its tokens, where it is wanted");
          },
          "Raises TypeError: it tells what to do instead.",
          nb::sig("def __reduce_ex__(self, protocol: object) -> Any"));
}

}  // namespace

PyChunk::PyChunk(std::shared_ptr<EngineState> of, Chunk chunk)
    : engine(std::move(of)), own(std::move(chunk)) {
  engine->chunks.insert(this);
}

PyChunk::~PyChunk() {
  engine->chunks.erase(this);
  if (is_forked()) new Chunk(std::move(own));  // dropping it would wait for a lock
}

const Chunk& PyChunk::live(const char* what) const {
  engine->live();
  if (!own.valid()) {
    throw EngineClosed(std::string(what) + ": the chunk's engine was closed; expected an open one");
  }
  return own;
}

void bind_compose(nb::module_& module, nb::class_<PySession>& session) {
  bind_chunk(module);
  nb::class_<ComposeParams>(module, "ComposeParams", "How to compose, as C++ has it.")
      .def("__init__", &make_params, nb::arg("repair").none(), nb::arg("mode"),
           nb::arg("target_kl"), nb::arg("cancel").none());
  session
      .def("register_chunk", &register_chunk, nb::arg("content"), nb::arg("prefix").none(),
           nb::arg("stub"), nb::arg("name"), nb::arg("cancel").none())
      .def("compose", &compose, nb::arg("pieces"), nb::arg("params"),
           nb::sig("def compose(self, pieces: object, params: ComposeParams) -> "
                   "tuple[Branch, Composition]"))
      .def("generate_from_chunks", &generate_from_chunks, nb::arg("pieces"), nb::arg("params"),
           nb::arg("compose_params"), nb::arg("on_token").none(), nb::arg("on_step").none())
      .def("edit", &edit, nb::arg("branch"), nb::arg("edits"), nb::arg("params"),
           nb::sig("def edit(self, branch: object, edits: object, params: ComposeParams) -> "
                   "tuple[Branch, Composition]"))
      .def("compact", &compact, nb::arg("branch"), nb::arg("keep"), nb::arg("summary"),
           nb::arg("params"),
           nb::sig("def compact(self, branch: object, keep: object, summary: str, params: "
                   "ComposeParams) -> tuple[Branch, Composition]"))
      .def("join", &join, nb::arg("siblings"), nb::arg("before_each"), nb::arg("after_all"),
           nb::arg("params"),
           nb::sig("def join(self, siblings: object, before_each: str, after_all: str, params: "
                   "ComposeParams) -> tuple[Branch, Composition]"))
      .def("join_many", &join_many, nb::arg("groups"), nb::arg("before_each"), nb::arg("after_all"),
           nb::arg("params"),
           nb::sig("def join_many(self, groups: object, before_each: str, after_all: str, params: "
                   "ComposeParams) -> list[tuple[Branch, Composition]]"))
      .def("settle", &settle, nb::arg("branch"), nb::arg("cancel").none(),
           nb::sig("def settle(self, branch: object, cancel: Cancel | None) -> Branch"))
      .def("audit", &audit, nb::arg("branch"), nb::arg("cancel").none());
}

}  // namespace dendrite::python
