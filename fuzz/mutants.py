#!/usr/bin/env python3
"""Planted bugs, each of which dendrite-fuzz must find: a test of the test.

A mutant is the fuzzer linked with one file of src/ in which one place is wrong. Nothing in the product
switches it on: the build copies the file, replaces the text, which must stand there exactly once, and
links the result before the library.

  mutants.py list                      NAME;FILE a line, for CMake
  mutants.py fit ROOT                  status 0 if all can be planted in the sources under ROOT
  mutants.py write NAME SOURCE OUT     the mutated copy of SOURCE
  mutants.py check NAME PROGRAM        runs the mutant; status 0 if it was caught
"""
import pathlib
import re
import subprocess
import sys

OPERATIONS = 20000  # within so many a mutant must be caught

# name, file, what stands there, what is planted
MUTANTS = [
    # A drafted token is taken whatever was drawn.
    ("draft_walk", "src/engine/calls/drafting.cpp",
     "node.parent == of.at && node.token == lane.token", "node.parent == of.at"),
    # A token is drawn from the distribution after another drafted one.
    ("draft_row", "src/engine/calls/drafting.cpp",
     "lane.logits = chain.rows[i];", "lane.logits = chain.rows[i / 2];"),
    # With a drafted token its branch gets those that were drafted after it.
    ("draft_rest", "src/engine/calls/drafting.cpp",
     "*chain.tip, lane.length)", "*chain.tip, engine_.tree->length(*chain.tip))"),
    # Forks that have drawn different tokens take each other's drafts.
    ("draft_shared", "src/engine/loop/turn_drafts.cpp",
     "std::ranges::equal(a.tokens(), b.tokens())", "a.size == b.size"),
    # A page that is copied on the first write lacks its last slot.
    ("copy_on_write", "src/kv/kv_tree_pages.cpp",
     "copy_slots(parent.last_page(), segment.head, valid - page_start(segment.begin));",
     "copy_slots(parent.last_page(), segment.head,\n"
     "             std::max<std::int64_t>(1, valid - page_start(segment.begin) - 1));"),
    # Tokens that are computed together with the child's: the child's copy of the page lacks one.
    ("extra_store", "src/step/step_batch.cpp",
     "extra.position >= source.end)", "extra.position >= source.end - 1)"),
    # A segment goes before the last that refers to it.
    ("release_order", "src/kv/kv_tree.cpp",
     "if (--segment->refs > 0) return;", "if (segment->refs-- > 2) return;"),
    # The page across a cut belongs to both halves, but one of them does not say so.
    ("rewind", "src/kv/kv_tree.cpp",
     "if (lower_first < upper_pages) pool_.retain(upper->last_page());", ""),
    # Two segments become one, and the lower one's first page is forgotten.
    ("merge", "src/kv/kv_tree.cpp",
     "if (segment.page_count > 0) segment.strip->page(page_index(segment.begin)) = segment.head;",
     ""),
    # What is moved to another strip lacks its last page.
    ("strip", "src/kv/kv_tree_held.cpp", "i < from.page_count;", "i < from.page_count - 1;"),
    # A prompt that is held up to where a segment begins is taken to end in that one.
    ("held", "src/kv/kv_tree_held.cpp",
     "while (segment->begin >= held) segment = segment->parent;",
     "while (segment->begin > held) segment = segment->parent;"),
    # A rewound branch trusts page table entries past its end.
    ("rewind_table", "src/kv/kv_tree.cpp",
     "static_cast<std::int32_t>(std::min<std::int64_t>(tip.trusted_, page_index(length)));",
     "tip.trusted_;"),
    # Tables go on naming pages that were taken.
    ("eviction", "src/kv/kv_tree_pages.cpp", "      ++epoch_;\n", ""),
    # Who asks for pages takes them from those that are planned in the same step, too.
    ("preemption", "src/step/room.cpp",
     "if (keeps) tree_.claim(*other.tip);", "if (keeps && false) tree_.claim(*other.tip);"),
    # A branch that lost K and V keeps the place up to which it had them, one time in eight.
    ("regeneration", "src/kv/kv_tree_pages.cpp", "      s->computed = s->begin;\n",
     "      s->computed = s->begin + (s->begin % 8 == 7 && s->computed > s->begin + 1 ? 1 : 0);\n"),
    # A restored branch makes the forks again that it had made before.
    ("snapshot_state", "src/engine/snapshot.cpp", "  state->forks_made = from.forks_made;\n", ""),
    # Of a page that two segments share, only the upper one's slots are saved.
    ("snapshot_pages", "src/kv/kv_tree_snapshot.cpp",
     "above.slots = std::max(above.slots, slots);", ""),
    # Runs of several tokens that begin at one certain place are one position late.
    ("position", "src/step/step_batch.cpp",
     "      batch.positions.push_back(p);",
     "      batch.positions.push_back(p + (run.begin % 64 == 63 && run.end > run.begin + 1 ? 1 : 0));"),
    # Draws count from the beginning of the call instead of the text's.
    ("rng_position", "src/engine/calls/lane_sampler.cpp",
     "static_cast<std::uint64_t>(length));", "lane.out.ids.size() + (length - lane.length));"),
    # All forks of a branch draw the same numbers.
    ("rng_stream", "src/engine/branches/session_core.cpp", "parent.forks_made++", "parent.forks_made"),
    # A session's prompts are counted together, whatever their tokens.
    ("rng_prompt", "src/engine/branches/session_core.cpp", "prompts[tokens_hash]++", "prompts[0]++"),
    # A prompt that is given again draws the same numbers.
    ("rng_prompt_again", "src/engine/branches/session_core.cpp", "prompts[tokens_hash]++",
     "prompts[tokens_hash]"),
    # Children by their tokens shift the forks that come after them.
    ("rng_child", "src/engine/branches/session_core.cpp",
     "token_stream(parent.stream, token.id, length));",
     "token_stream(parent.stream, token.id, length + 0 * parent.forks_made++));"),
    # A fork that was given its stream counts like any other.
    ("rng_given", "src/engine/branches/session_core.cpp",
     "if (fork_options.stream) return", "if (fork_options.stream && ++parent.forks_made > 0) return"),
    # A restored session has forgotten which prompts it was given.
    ("snapshot_prompts", "src/engine/snapshot.cpp",
     "session.prompts[prompt.hash] = prompt.count;", "session.prompts[prompt.hash] = 0;"),
    # The text state of a branch that was cut lacks its last token.
    ("text_after_cut", "src/engine/branches/session_core.cpp",
     "static_cast<std::size_t>(length - branch.prompt_length), read);",
     "static_cast<std::size_t>(std::max<std::int64_t>(length - branch.prompt_length - 1, 0)), read);"),
    # Rows are in the order of the requests, the attention plan's in the order of the tree.
    ("batch_order", "src/step/step_batch.cpp", "std::swap(runs, ordered_runs_);", ""),
    # Distributions go to the branch before the one that they belong to, in larger batches.
    ("batch_logits", "src/step/readout.cpp",
     "run.segment->logits = std::move(rows[i]);",
     "run.segment->logits = std::move(rows[i == 7 ? 6 : i]);"),
    # Where two prompts part, the index keeps a tip at the end of the older one.
    ("prefix_index", "src/kv/prefix_index.cpp",
     "tree_.at(node->tip, place.matched));", "tree_.fork(node->tip));"),
    # What was drawn ahead of a branch stays when the branch goes on elsewhere.
    ("ahead", "src/engine/branches/session_core.cpp",
     "  if (branch.ahead != nullptr) drop_ahead(branch);\n", ""),
    # Whoever ends first by the clock wins a race, though another needs fewer tokens.
    ("race", "src/engine/calls/decode_commit.cpp",
     "if (place(&lane) > earliest) {", "if (place(&lane) > std::pair(kNever, kNever)) {"),
    # A call that is submitted while a thread is in a turn is never looked at.
    ("lost_call", "src/engine/loop/step_loop.cpp",
     "calls_.push_back(std::move(call));", "if (!submitted || !driven_) calls_.push_back(std::move(call));"),
    # Of three calls in a turn, one gets its tokens twice.
    ("served_twice", "src/engine/loop/turn.cpp",
     "if (!call->has_ended()) call->commit();\n    }",
     "if (!call->has_ended()) call->commit();\n    }\n"
     "    if (calls_.size() > 2 && !calls_[0]->has_ended()) calls_[0]->commit();"),
    # All calls of a turn draw by the parameters of the first.
    ("neighbour", "src/engine/calls/lane_sampler.cpp",
     "lane.sampler->draw(lane, scratch);", "on_host.front()->sampler->draw(lane, scratch);"),
    # A call that is cancelled writes its last tokens once more.
    ("cancelled", "src/engine/calls/decode_call.cpp",
     "if (lane->out.finish == Finish::kRunning) finish(*lane, ended);\n    }",
     "finish(*lane, ended);\n"
     "      const TreeLock lock(engine_.tree_mutex);\n"
     "      if (lane->out.ids.size() > 1) session_->append(*lane->branch, std::span(&lane->token, 1));\n"
     "    }"),
    # Of three branches that want masks, one gets another's.
    ("mask_of_neighbour", "src/engine/calls/lane_grammar.cpp",
     "  for (Lane* lane : lanes) {\n    if (lane->mask != nullptr && !lane->dead)",
     "  if (lanes.size() > 2 && lanes[0]->mask && lanes[1]->mask) lanes[1]->mask = lanes[0]->mask;\n"
     "  for (Lane* lane : lanes) {\n    if (lane->mask != nullptr && !lane->dead)"),
    # A text goes on, and its mask is that of the token before, one time in four.
    ("mask_one_token_old", "src/grammar/matcher.cpp",
     "  track_->mask.reset();\n", "  if (length_ % 4 != 3) track_->mask.reset();\n"),
    # A text that leaves the way of another is in the state to which the other has come.
    ("state_not_rewound", "src/grammar/matcher.cpp",
     "check(dn_matcher_rewind(own->handle.get(), past));", ""),
    # A branch that is cut keeps how far it had come in its constraint.
    ("constraint_not_rewound", "src/engine/branches/constraint_place.cpp",
     "    span = span->before;\n    matcher = {};\n", "    span = span->before;\n"),
    # K that is moved by some distances is rotated by one position too many.
    ("moved_position", "src/step/step_batch.cpp",
     "slot_moves.push_back({from, to, 1, there, position});",
     "slot_moves.push_back({from, to, 1, there + (shift % 32 == 5 ? 1 : 0), position});"),
    # Some slots are read one page too early.
    ("moved_page", "src/step/step_batch.cpp",
     "table[static_cast<std::size_t>(there / page_tokens_)]",
     "table[static_cast<std::size_t>(std::max<std::int64_t>(there - (shift % 32 == 5), 0) / page_tokens_)]"),
    # A path does not say of what is moved where it comes from.
    ("moved_path", "src/kv/lineage.cpp",
     "path = moved_path_hash(path, source->paths_[i])", "path = path_hash(path, source->tokens_[i])"),
    # The last token of the repair of a piece's beginning is moved, too.
    ("moved_repair", "src/engine/branches/composition.cpp",
     "const std::int64_t from = piece.at.begin + first;",
     "const std::int64_t from = piece.at.begin + std::max<std::int64_t>(0, first - 1);"),
    # What is moved is there before its source has come so far.
    ("moved_early", "src/kv/kv_tree_moved.cpp",
     "computed(source.tip) >= segment.end() + segment.shift;",
     "computed(source.tip) + 1 >= segment.end() + segment.shift;"),
    # All chunks are computed behind the stub.
    ("chunk_left", "src/engine/context/chunk_call.cpp",
     "params.prefix.empty() && params.stub ? e.chunk_stub() : params.prefix);",
     "params.stub ? e.chunk_stub() : params.prefix);"),
]

# The same, of states of recurrent layers: found with --recurrent.
MUTANTS_OF_STATES = [
    # A position has another token, and the journal of the one before it.
    ("state_old_journal", "src/kv/path_states.cpp",
     "  drop_journal(of.journals[static_cast<std::size_t>(offset)]);\n", ""),
    # A page has another path's tokens, and the anchor behind what was there.
    ("state_of_sibling", "src/kv/path_states.cpp",
     "  drop_anchor(of);\n  drop_journal(of.", "  drop_journal(of."),
    # A restored branch has each journal of the token before.
    ("state_saved", "src/kv/kv_tree_states.cpp",
     "(p - begin)]});", "(std::max<std::int64_t>(p - begin - 1, 0))]});"),
]
ALL_MUTANTS = MUTANTS + MUTANTS_OF_STATES


def find(name):
    for mutant in ALL_MUTANTS:
        if mutant[0] == name:
            return mutant
    sys.exit(f"mutants: no mutant is called {name}")


def mutate(mutant, source):
    name, file, search, replace = mutant
    text = pathlib.Path(source).read_text(encoding="utf-8")
    if text.count(search) != 1:
        sys.exit(f"mutants: {name}: {file} holds {text.count(search)} times, expected once:\n"
                 f"  {search}\nAdapt the mutant in fuzz/mutants.py to what the file says now.")
    return text.replace(search, replace)


def fit(root):
    for mutant in ALL_MUTANTS:
        mutate(mutant, pathlib.Path(root) / mutant[1])


def write(name, source, out):
    text = mutate(find(name), source)
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(out).write_text(text, encoding="utf-8")


def check(name, program):
    command = [program, "--ops", str(OPERATIONS), "--seed", "1", "--shrink-seconds", "0"]
    if find(name) in MUTANTS_OF_STATES:
        command.append("--recurrent")
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = re.search(r"violation after (\d+) operations[^:]*: (.*)", run.stderr)
    if run.returncode != 1 or not found:
        print(run.stdout[-2000:], run.stderr[-2000:])
        sys.exit(f"mutants: {name} was not caught in {OPERATIONS} operations (status {run.returncode})")
    print(f"{name}: caught after {found[1]} operations: {found[2]}")


def main(arguments):
    if arguments == ["list"]:
        for name, file, _, _ in ALL_MUTANTS:
            print(f"{name};{file}")
    elif len(arguments) == 2 and arguments[0] == "fit":
        fit(arguments[1])
    elif len(arguments) == 4 and arguments[0] == "write":
        write(*arguments[1:])
    elif len(arguments) == 3 and arguments[0] == "check":
        check(*arguments[1:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
