#include "dendrite/search/refinement.h"

#include "dendrite/error.h"
#include "search/search_log.h"

namespace dendrite {
namespace {

class Refinement {
 public:
  Refinement(Session& session, const SelfRefinement& strategy)
      : session_(session), s_(strategy), log_(strategy.on_event) {
    if (!s_.criticise) {
      throw Error("self-refinement: criticise is not set; expected a callable");
    }
    if (s_.drafts < 1 || s_.rounds < 0) {
      throw Error("self-refinement: drafts is " + std::to_string(s_.drafts) + " and rounds is " +
                  std::to_string(s_.rounds) + "; expected drafts >= 1 and rounds >= 0");
    }
  }

  SearchResult run(Branch root) {
    if (was_cut_short(root.finish())) return log_.end(root.finish());
    first_ = root.length();
    constraint_ = root.constraint();
    root_ = std::move(root);
    for (Branch& branch : root_.fork(s_.drafts)) drafts_.emplace_back().branch = std::move(branch);
    Finish finish = Finish::kStop;
    for (int round = 0; round <= s_.rounds && finish == Finish::kStop; ++round) {
      if (round > 0) revise();
      finish = write(round == 0 || !s_.revision ? s_.draft : *s_.revision, round + 1);
      if (finish != Finish::kStop) break;
      if (Thought* solution = criticise()) return log_.solved(std::move(*solution));
    }
    if (best_.branch.valid()) log_.kept(best_);
    return log_.end_at(std::move(best_), finish);
  }

 private:
  /// Decodes all drafts in one batch.
  Finish write(DecodeParams params, int depth) {
    params.cancel = s_.cancel;
    std::vector<Branch> branches;
    std::vector<double> logprobs;
    for (Thought& draft : drafts_) {
      logprobs.push_back(draft.branch.logprob());
      branches.push_back(std::move(draft.branch));
    }
    const std::vector<Generation> out = session_.decode(branches, params);
    Finish finish = Finish::kStop;
    ended_.clear();
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      Thought& draft = drafts_[i];
      draft.branch = std::move(branches[i]);
      draft.depth = depth;
      draft.text = out[i].text;
      draft.tokens = std::ssize(out[i].ids);
      draft.logprob = draft.branch.logprob() - logprobs[i];
      log_.proposed(draft);
      ended_.push_back(out[i].finish != Finish::kLength && draft.branch.is_accepted());
      if (was_cut_short(out[i].finish)) finish = out[i].finish;
    }
    return finish;
  }

  /// The solution, when one of the drafts is one.
  Thought* criticise() {
    std::vector<Branch> branches;
    for (Thought& draft : drafts_) branches.push_back(std::move(draft.branch));
    critiques_ = s_.criticise(session_, branches);
    check_count("self-refinement", "criticise", "critiques", critiques_.size(), branches.size());
    Thought* solution = nullptr;
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      Thought& draft = drafts_[i];
      draft.branch = std::move(branches[i]);
      log_.judged(draft, critiques_[i].value);
      const bool good = critiques_[i].good || (s_.solved && s_.solved(draft.branch, draft.text));
      if (good && solution == nullptr) solution = &draft;
    }
    if (solution != nullptr) {
      log_.kept(*solution);
      return solution;
    }
    for (Thought& draft : drafts_) {
      if (best_.branch.valid() && rank(draft.value) <= rank(best_.value)) continue;
      static_cast<ThoughtRecord&>(best_) = draft;
      best_.branch = draft.branch.fork();  // the draft itself goes on
      best_.branch_id = best_.branch.id();
    }
    return nullptr;
  }

  /// Every draft becomes the start of its revision.
  void revise() {
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      Thought& draft = drafts_[i];
      const Critique& critique = critiques_[i];
      const std::int64_t length = draft.branch.length();
      if (critique.keep != 0 && (critique.keep < first_ || critique.keep > length)) {
        throw Error("self-refinement: a critique keeps " + std::to_string(critique.keep) +
                    " tokens; expected 0 or " + std::to_string(first_) + " to " +
                    std::to_string(length) + ", from the prompt to the whole draft");
      }
      log_.kept(draft);
      Thought next;
      next.parent = draft.node;
      next.branch = critique.keep == 0 ? draft.branch.fork() : draft.branch.at(critique.keep);
      const bool keeps_all = critique.keep == 0 || critique.keep == length;
      const bool anew = constraint_ && (!critique.feedback.empty() || (keeps_all && ended_[i]));
      if (anew) next.branch.unconstrain();
      if (!critique.feedback.empty()) next.branch.append(critique.feedback);
      if (anew) next.branch.constrain(*constraint_);
      draft = std::move(next);
    }
  }

  Session& session_;
  const SelfRefinement& s_;
  SearchLog log_;
  Branch root_;             // kept for its distribution: a revision may start anew
  std::int64_t first_ = 0;  // its tokens
  std::vector<Thought> drafts_;
  std::vector<Critique> critiques_;
  std::optional<Constraint> constraint_;  // the root's
  std::vector<bool> ended_;               // drafts whose text is whole
  Thought best_;
};

}  // namespace

SearchResult run(Session& session, Branch root, const SelfRefinement& strategy) {
  return Refinement(session, strategy).run(std::move(root));
}

}  // namespace dendrite
