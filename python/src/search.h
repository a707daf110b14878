#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"

namespace dendrite::python {

/// What the callables of one search share; outlives them.
struct SearchContext {
  std::shared_ptr<SessionState> state;
  nb::object session;  // as Python has it: what callables are given
  nb::object classes;  // the module dendrite.search, whose records they get
  nb::object tasks;    // runs coroutines for `evaluate`, or None
};

/// Takes a branch out of its handle. Throws TypeError, BranchEmpty, BranchBusy, and Error for a
/// branch of another session or one that a callable was only lent.
Branch take_branch(const SessionState& session, nb::handle object, const char* what);

// --- records
nb::object to_record(const SearchContext& context, const ThoughtRecord& record);
nb::object to_result(const SearchContext& context, SearchResult result);

// --- callables. All take the GIL, lend branches for the time of the call, and hand on what Python
// raises. An empty one makes an empty function.
using BranchTest = std::function<bool(const Branch&, const std::string&)>;
BranchTest to_test(const SearchContext& context, Callable call);
std::function<Proposals(Session&, std::span<Branch>)> to_proposer(const SearchContext& context,
                                                                  Callable call);
std::function<std::vector<double>(Session&, std::span<Branch>)> to_judge(
    const SearchContext& context, Callable call);
std::function<double(const Candidate&)> to_evaluator(const SearchContext& context, Callable call);
std::function<double(const Thought&)> to_prior(const SearchContext& context, Callable call);
std::function<std::vector<Critique>(Session&, std::span<Branch>)> to_critic(
    const SearchContext& context, Callable call);
std::function<std::optional<std::string>(const Branch&, const std::string&)> to_answer(
    const SearchContext& context, Callable call);
std::function<std::vector<std::string>(const Branch&, const std::string&)> to_beginnings(
    const SearchContext& context, Callable call);
std::function<void(const SearchEvent&)> to_listener(const SearchContext& context, Callable call);

}  // namespace dendrite::python
