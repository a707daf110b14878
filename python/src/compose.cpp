// Composed context (dendrite/compose.h): chunks, and the calls that put branches together.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "params.h"
#include "pending.h"
#include "search.h"

namespace dendrite::python {
namespace {

using InCall = SessionState::InCall;

/// Branches that a call reads: they stay what and where they are until this is gone, though they
/// may be in other calls.
class Sources {
 public:
  /// Throws EngineClosed.
  Sources(SessionState& session, const char* what) : session_(session), what_(what) {
    session.live();
  }
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources() {
    for (const nb::object& object : objects_) --nb::cast<PyBranch&>(object).calls;
  }

  const char* what() const { return what_; }
  /// Throws TypeError, BranchEmpty, as PyBranch::read, and Error for one of another session.
  Branch& add(nb::handle object) {
    PyBranch& branch = to_branch(object, what_);
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
    for (const nb::handle branch : items_of(branches, what_, "a sequence of branches")) {
      all.push_back(&add(branch));
    }
    return all;
  }

 private:
  SessionState& session_;
  const char* what_;
  std::vector<nb::object> objects_;
};

Repair to_repair(nb::handle repair) {
  Repair out;
  out.first = to_int(repair.attr("first"), "Repair.first");
  const nb::object last = repair.attr("last");
  out.last.reset();
  if (!last.is_none()) out.last = to_int(last, "Repair.last");
  out.top = to_number(repair.attr("top"), "Repair.top");
  return out;
}

/// Of what dendrite.Piece holds.
Piece to_piece(Sources& sources, nb::handle content) {
  if (nb::isinstance<nb::str>(content)) return Piece::text(std::string(to_view(content)));
  if (nb::isinstance<PyChunk>(content)) {
    return Piece::chunk(nb::cast<PyChunk&>(content).live(sources.what()));
  }
  if (nb::hasattr(content, "branch")) {
    return Piece::span(sources.add(content.attr("branch")), to_int(content.attr("begin"), "begin"),
                       to_int(content.attr("end"), "end"));
  }
  return Piece::tokens(to_tokens(content, "Piece.content"));
}

std::vector<Piece> to_pieces(Sources& sources, nb::handle pieces) {
  std::vector<Piece> all;
  for (const nb::handle piece : items_of(pieces, sources.what(), "a sequence of pieces")) {
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

void make_params(ComposeParams* self, nb::handle repair, nb::handle given_mode,
                 nb::handle target_kl, nb::handle cancel, nb::handle exact_behind) {
  const std::string mode = to_text(given_mode, "mode");
  ComposeParams params;
  if (!repair.is_none()) params.repair = to_repair(repair);
  if (mode == "exact") {
    params.mode = ComposeParams::Mode::kExact;
  } else if (mode != "composed") {
    throw Error("mode is '" + mode + "'; expected composed or exact");
  }
  params.target_kl = to_number(target_kl, "target_kl");
  params.exact_behind = to_bool(exact_behind, "exact_behind");
  params.cancel = to_stop_token(cancel);
  new (self) ComposeParams(std::move(params));
}

enum class Until { kEnded, kSubmitted };

/// A call that returns when it has ended, with what it gave, or as soon as it was submitted.
template <typename Out>
nb::object run(Until until, const PySession& self, const std::function<Out(Session&)>& wait,
               const Submit& how) {
  if (until == Until::kSubmitted) return nb::cast(submit(self, {}, how));
  const InCall in_call(*self.state);
  Out out;
  {
    const nb::gil_scoped_release released;
    out = wait(*self.state->session);
  }
  return own(self.state, std::move(out));
}

nb::object register_chunk(Until until, const PySession& self, nb::handle content, nb::handle prefix,
                          nb::handle stub, nb::handle name, nb::handle cancel) {
  SessionState& state = *self.state;
  state.live();
  ChunkParams params{.stub = to_bool(stub, "stub"),
                     .name = to_text(name, "name"),
                     .cancel = to_stop_token(cancel)};
  if (!prefix.is_none()) {
    params.prefix = to_prompt(state.engine->live(), prefix, nb::bool_(false), "prefix");
  }
  const bool is_text = nb::isinstance<nb::str>(content);
  const std::string text(is_text ? to_view(content) : "");
  const std::vector<Token> tokens = is_text ? std::vector<Token>() : to_tokens(content, "content");
  return run<Chunk>(
      until, self,
      [&](Session& session) {
        return is_text ? session.register_chunk(text, params)
                       : session.register_chunk(tokens, params);
      },
      [&](Session& session, const Marked&) {
        return is_text ? session.submit_register_chunk(text, params)
                       : session.submit_register_chunk(tokens, params);
      });
}

nb::object compose(Until until, const PySession& self, nb::handle pieces,
                   const ComposeParams& params) {
  Sources sources(*self.state, "compose");
  const std::vector<Piece> all = to_pieces(sources, pieces);
  return run<Composed>(
      until, self, [&](Session& session) { return session.compose(all, params); },
      [&](Session& session, const Marked&) { return session.submit_compose(all, params); });
}

Generation generate_from_chunks(const PySession& self, nb::handle pieces,
                                const NativeParams& native, const ComposeParams& compose_params,
                                nb::handle on_token, nb::handle on_step) {
  const InCall in_call(*self.state);
  Sources sources(*self.state, "generate_from_chunks");
  const std::vector<Piece> all = to_pieces(sources, pieces);
  DecodeParams params = with_callables(native.params, {.on_token = Callable(on_token, "on_token"),
                                                       .on_step = Callable(on_step, "on_step")});
  params.cancel = compose_params.cancel;
  const nb::gil_scoped_release released;
  return self.state->session->generate_from_chunks(all, params, compose_params);
}

/// `edits`: of (begin, end, pieces).
nb::object edit(Until until, const PySession& self, nb::handle branch, nb::handle edits,
                const ComposeParams& params) {
  Sources sources(*self.state, "edit");
  const Branch& edited = sources.add(branch);
  const std::vector<Span> spans = to_spans(edits);
  std::vector<Edit> all;
  for (const nb::handle edit : edits) {
    all.push_back({spans[all.size()], to_pieces(sources, edit[2])});
  }
  return run<Composed>(
      until, self, [&](Session& session) { return session.edit(edited, all, params); },
      [&](Session& session, const Marked&) { return session.submit_edit(edited, all, params); });
}

nb::object compact(Until until, const PySession& self, nb::handle branch, nb::handle keep,
                   nb::handle summary, const ComposeParams& params) {
  Sources sources(*self.state, "compact");
  const Branch& compacted = sources.add(branch);
  const std::vector<Span> spans = to_spans(keep);
  const std::string text = to_text(summary, "summary");
  return run<Composed>(
      until, self,
      [&](Session& session) { return session.compact(compacted, spans, text, params); },
      [&](Session& session, const Marked&) {
        return session.submit_compact(compacted, spans, text, params);
      });
}

JoinParams to_join(const ComposeParams& params, nb::handle before_each, nb::handle after_all) {
  JoinParams join;
  static_cast<ComposeParams&>(join) = params;
  join.before_each = to_text(before_each, "before_each");
  join.after_all = to_text(after_all, "after_all");
  return join;
}

nb::object join(Until until, const PySession& self, nb::handle siblings, nb::handle before_each,
                nb::handle after_all, const ComposeParams& params) {
  Sources sources(*self.state, "join");
  const std::vector<const Branch*> all = sources.add_all(siblings);
  const JoinParams join = to_join(params, before_each, after_all);
  return run<Composed>(
      until, self, [&](Session& session) { return session.join(all, join); },
      [&](Session& session, const Marked&) { return session.submit_join(all, join); });
}

nb::object join_many(Until until, const PySession& self, nb::handle groups, nb::handle before_each,
                     nb::handle after_all, const ComposeParams& params) {
  Sources sources(*self.state, "join");
  std::vector<std::vector<const Branch*>> all;
  for (const nb::handle group :
       items_of(groups, "join_many", "a sequence of sequences of branches"))
    all.push_back(sources.add_all(group));
  const JoinParams join = to_join(params, before_each, after_all);
  return run<std::vector<Composed>>(
      until, self, [&](Session& session) { return session.join_many(all, join); },
      [&](Session& session, const Marked&) { return session.submit_join_many(all, join); });
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

using OneComposed = nb::typed<nb::tuple, PyBranch, Composition>;

/// A function of above that waits, or does not, as Python sees it.
template <Until until, typename Result, auto function>
struct Bound;
template <Until until, typename Result, typename... A, nb::object (*function)(Until, A...)>
struct Bound<until, Result, function> {
  static Result call(A... arguments) {
    return nb::steal<Result>(function(until, arguments...).release());
  }
};

template <auto function, typename Result, typename... A>
void bind_both(nb::class_<PySession>& session, const char* waits, const char* submits,
               const A&... arguments) {
  using Submitted = nb::typed<nb::object, PendingState>;
  session.def(waits, &Bound<Until::kEnded, Result, function>::call, arguments...);
  session.def(submits, &Bound<Until::kSubmitted, Submitted, function>::call, arguments...);
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

nb::tuple own(const std::shared_ptr<SessionState>& session, Composed composed) {
  return nb::make_tuple(own(session, std::move(composed.branch)), std::move(composed.report));
}

nb::list own(const std::shared_ptr<SessionState>& session, std::vector<Composed> composed) {
  nb::list all;
  for (Composed& one : composed) all.append(own(session, std::move(one)));
  return all;
}

nb::object own(const std::shared_ptr<SessionState>& session, Chunk chunk) {
  return nb::cast(std::make_unique<PyChunk>(session->engine, std::move(chunk)));
}

PyChunk::PyChunk(std::shared_ptr<EngineState> of, Chunk chunk)
    : engine(std::move(of)), own(std::move(chunk)) {
  engine->chunks.insert(this);
}

PyChunk::~PyChunk() {
  engine->chunks.erase(this);
  if (engine->is_foreign()) new Chunk(std::move(own));  // dropping it would wait for a lock
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
      .def("__init__", &make_params, nb::arg("repair").none(), nb::arg("mode").none(),
           nb::arg("target_kl").none(), nb::arg("cancel").none(), nb::arg("exact_behind").none(),
           nb::sig("def __init__(self, repair: object | None, mode: str, target_kl: float, cancel: "
                   "Cancel | None, exact_behind: bool) -> None"));
  session
      .def("generate_from_chunks", &generate_from_chunks, nb::arg("pieces").none(),
           nb::arg("params"), nb::arg("compose_params"), nb::arg("on_token").none(),
           nb::arg("on_step").none())
      .def("settle", &settle, nb::arg("branch").none(), nb::arg("cancel").none(),
           nb::sig("def settle(self, branch: object, cancel: Cancel | None) -> Branch"))
      .def("audit", &audit, nb::arg("branch").none(), nb::arg("cancel").none());
  bind_both<&register_chunk, nb::typed<nb::object, PyChunk>>(
      session, "register_chunk", "submit_register_chunk", nb::arg("content").none(),
      nb::arg("prefix").none(), nb::arg("stub").none(), nb::arg("name").none(),
      nb::arg("cancel").none());
  bind_both<&compose, OneComposed>(session, "compose", "submit_compose", nb::arg("pieces").none(),
                                   nb::arg("params"));
  bind_both<&edit, OneComposed>(session, "edit", "submit_edit", nb::arg("branch").none(),
                                nb::arg("edits").none(), nb::arg("params"));
  bind_both<&compact, OneComposed>(session, "compact", "submit_compact", nb::arg("branch").none(),
                                   nb::arg("keep").none(), nb::arg("summary").none(),
                                   nb::arg("params"));
  bind_both<&join, OneComposed>(session, "join", "submit_join", nb::arg("siblings").none(),
                                nb::arg("before_each").none(), nb::arg("after_all").none(),
                                nb::arg("params"));
  bind_both<&join_many, nb::typed<nb::list, OneComposed>>(
      session, "join_many", "submit_join_many", nb::arg("groups").none(),
      nb::arg("before_each").none(), nb::arg("after_all").none(), nb::arg("params"));
}

}  // namespace dendrite::python
