// What a search asks of Python, and what it tells.
#include <nanobind/stl/string.h>

#include "search.h"

namespace dendrite::python {
namespace {

Proposals to_proposals(const SearchContext& context, const nb::object& said) {
  constexpr const char* kExpected = "a list of branches for each node, or Proposals";
  Proposals proposals;
  const bool whole = nb::isinstance(said, context.classes.attr("Proposals"));
  if (whole) proposals.finish = nb::cast<Finish>(said.attr("finish"));
  const nb::object lists = whole ? nb::object(said.attr("children")) : said;
  for (const nb::handle list : items_of(lists, "propose", kExpected)) {
    std::vector<Branch>& children = proposals.children.emplace_back();
    for (const nb::handle child : items_of(list, "propose", kExpected)) {
      Branch branch = take_branch(*context.state, child, "propose");
      const Finish finish = branch.finish();
      if (!whole && (finish == Finish::kBudget || finish == Finish::kCancelled)) {
        proposals.finish = finish;
      }
      children.push_back(std::move(branch));
    }
  }
  return proposals;
}

nb::list joined_of(const ThoughtRecord& t) {
  nb::list nodes;
  for (const NodeId node : t.joined) nodes.append(static_cast<std::int64_t>(node));
  return nodes;
}

nb::object to_thought(const SearchContext& context, const ThoughtRecord& t, nb::handle branch) {
  return context.classes.attr("Thought")(static_cast<std::int64_t>(t.node),
                                         static_cast<std::int64_t>(t.parent), id_of(t.branch_id),
                                         t.depth, to_str(t.text), t.tokens, t.logprob, t.value,
                                         t.visits, t.kept, joined_of(t), branch);
}

nb::list to_records(const SearchContext& context, const std::vector<ThoughtRecord>& records) {
  nb::list all;
  for (const ThoughtRecord& record : records) all.append(to_record(context, record));
  return all;
}

}  // namespace

Branch take_branch(const SessionState& session, nb::handle object, const char* what) {
  PyBranch& branch = to_branch(object, what);
  if (branch.at != &branch.own) {
    throw Error(std::string(what) + ": the branch belongs to the search; expected a fork of it");
  }
  if (!branch.is_live()) {
    throw BranchEmpty(std::string(what) + ": the branch is empty (pruned, or returned twice)");
  }
  if (branch.session.get() != &session) {
    throw Error(std::string(what) + ": the branch belongs to another session");
  }
  return std::move(branch.change(what));
}

// --- records

nb::object to_record(const SearchContext& context, const ThoughtRecord& t) {
  return context.classes.attr("ThoughtRecord")(
      static_cast<std::int64_t>(t.node), static_cast<std::int64_t>(t.parent), id_of(t.branch_id),
      t.depth, to_str(t.text), t.tokens, t.logprob, t.value, t.visits, t.kept, joined_of(t));
}

nb::object to_result(const SearchContext& context, SearchResult result) {
  nb::list others;
  for (Thought& other : result.others) {
    others.append(to_thought(context, other, own(context.state, std::move(other.branch))));
  }
  nb::list votes;
  for (const Vote& vote : result.votes) {
    votes.append(context.classes.attr("Vote")(to_str(vote.answer), vote.count));
  }
  nb::list joins;
  for (const Composition& join : result.joins) joins.append(join);
  const nb::object branch =
      result.branch.valid() ? own(context.state, std::move(result.branch)) : nb::none();
  return context.classes.attr("SearchResult")(
      result.solved, branch, to_records(context, result.path), to_records(context, result.tree),
      others, votes, result.finish, joins);
}

// --- callables

BranchTest to_test(const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const Branch& branch, const std::string& text) {
    const WithGil gil;
    const Borrowed shown(context.state, branch);
    return static_cast<bool>(nb::bool_(nb::object(call.get()(shown.one(), to_str(text)))));
  };
}

std::function<Proposals(Session&, std::span<Branch>)> to_proposer(const SearchContext& context,
                                                                  Callable call) {
  if (!call) return {};
  return [&context, call](Session&, std::span<Branch> nodes) {
    const WithGil gil;
    const Borrowed shown(context.state, nodes);
    return to_proposals(context, call.get()(context.session, shown.list()));
  };
}

std::function<std::vector<double>(Session&, std::span<Branch>)> to_judge(
    const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](Session&, std::span<Branch> candidates) {
    const WithGil gil;
    const Borrowed shown(context.state, candidates);
    const nb::object said = call.get()(context.session, shown.list());
    std::vector<double> values;
    for (const nb::handle value : items_of(said, "judge", "a number for each branch")) {
      values.push_back(to_number(value, "judge"));
    }
    return values;
  };
}

std::function<double(const Candidate&)> to_evaluator(const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const Candidate& c) {
    const WithGil gil;
    const nb::object candidate = context.classes.attr("Candidate")(
        static_cast<std::int64_t>(c.node), c.depth, to_str(c.text), to_str(c.history), c.logprob);
    return to_number(nb::object(call.get()(candidate)), "evaluate");
  };
}

std::function<double(const Thought&)> to_prior(const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const Thought& thought) {
    const WithGil gil;
    const Borrowed shown(context.state, thought.branch);
    const nb::object lent = to_thought(context, thought, shown.one());
    return to_number(nb::object(call.get()(lent)), "prior");
  };
}

std::function<std::vector<Critique>(Session&, std::span<Branch>)> to_critic(
    const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](Session&, std::span<Branch> drafts) {
    const WithGil gil;
    const Borrowed shown(context.state, drafts);
    const nb::object said = call.get()(context.session, shown.list());
    const nb::object type = context.classes.attr("Critique");
    std::vector<Critique> critiques;
    for (const nb::handle one : items_of(said, "criticise", "a Critique for each draft")) {
      if (!nb::isinstance(one, type)) fail_type("criticise", one, "a Critique for each draft");
      critiques.push_back({.value = to_number(one.attr("value"), "Critique.value"),
                           .good = nb::cast<bool>(nb::bool_(nb::object(one.attr("good")))),
                           .feedback = to_text(one.attr("feedback"), "Critique.feedback"),
                           .keep = to_int(one.attr("keep"), "Critique.keep")});
    }
    return critiques;
  };
}

std::function<std::optional<std::string>(const Branch&, const std::string&)> to_answer(
    const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const Branch& branch,
                          const std::string& text) -> std::optional<std::string> {
    const WithGil gil;
    const Borrowed shown(context.state, branch);
    const nb::object said = call.get()(shown.one(), to_str(text));
    if (said.is_none()) return std::nullopt;
    if (!nb::isinstance<nb::str>(said)) fail_type("answer", said, "a str, or None for no vote");
    return nb::cast<std::string>(said);
  };
}

std::function<std::vector<std::string>(const Branch&, const std::string&)> to_beginnings(
    const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const Branch& branch, const std::string& text) {
    const WithGil gil;
    const Borrowed shown(context.state, branch);
    const nb::object said = call.get()(shown.one(), to_str(text));
    std::vector<std::string> texts;
    for (const nb::handle one : items_of(said, "begin", "a str for each child")) {
      if (!nb::isinstance<nb::str>(one)) fail_type("begin", one, "a str for each child");
      texts.push_back(nb::cast<std::string>(one));
    }
    return texts;
  };
}

std::function<void(const SearchEvent&)> to_listener(const SearchContext& context, Callable call) {
  if (!call) return {};
  return [&context, call](const SearchEvent& event) {
    const WithGil gil;
    call.get()(context.classes.attr("SearchEvent")(name_of(event.kind),
                                                   to_record(context, *event.thought)));
  };
}

}  // namespace dendrite::python
