"""The real llm-reasoners over branches of models/dendrite-24."""

import importlib.util
import sys
import types
from dataclasses import dataclass

import pytest


def stand_in(name, **attributes):
    """For what llm-reasoners imports and its searches do not use."""
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)


stand_in("torch")
stand_in("transformers", StoppingCriteriaList=list)
pytest.importorskip("reasoners", reason="llm-reasoners is not installed (see reasoners.txt)")

import numpy as np
from reasoners import Reasoner, SearchConfig, WorldModel
from reasoners.algorithm import DFS, MCTS, BeamSearch

from dendrite import Node
from dendrite.adapters.reasoners import DendriteModel

from .game24 import after, prompt, puzzles


@pytest.fixture
def model(engine_24):
    with engine_24.session(seed=7) as session:
        yield DendriteModel(session)


@dataclass(frozen=True)
class State:
    numbers: tuple[int, ...]
    node: Node


class Game(WorldModel):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def init_state(self):
        return State(self.example, self.model.node(prompt(self.example)))

    def step(self, state, action):
        return State(after(state.numbers, action), self.model.node(state.node, action + "\n")), {}

    def is_terminal(self, state):
        return len(state.numbers) == 1


class Search(SearchConfig):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def get_actions(self, state):
        out = self.model.generate(
            state.node,
            do_sample=True,
            num_return_sequences=24,
            eos_token_id="\n",
            max_new_tokens=40,
        )
        return [move for move in dict.fromkeys(out.text) if after(state.numbers, move)]

    def fast_reward(self, state, action):
        left = after(state.numbers, action)
        if len(left) == 1:
            sure = float(left == (24,))
        else:
            question = self.model.node(state.node, action + "\n?")
            [(sure, impossible)] = self.model.get_next_token_logits(question, ["s", "i"], "softmax")
            sure = float(sure / (sure + impossible))
        return sure, {"sure": sure}

    def reward(self, state, action, sure):
        return sure, {}


ALGORITHMS = {
    "MCTS": lambda: MCTS(n_iters=10, depth_limit=4, output_trace_in_each_iter=True),
    "beam": lambda: BeamSearch(beam_size=3, max_depth=3),
    "DFS": lambda: DFS(max_per_state=3, total_states=40),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_solves_puzzles(model, name):
    solved = 0
    for numbers in puzzles(3):
        reasoner = Reasoner(Game(model), Search(model), ALGORITHMS[name]())
        result = reasoner(numbers)
        solved += result.terminal_state is not None and result.terminal_state.numbers == (24,)
    assert solved >= 2


def test_searches_compute_little_more_than_what_is_new(model):
    [numbers] = puzzles(1)
    Reasoner(Game(model), Search(model), ALGORITHMS["MCTS"]())(numbers)
    stats = model.session.stats()
    assert stats.tokens_computed < stats.tokens_independent / 3


def test_a_node_and_its_text_are_one_prompt(model):
    text = "P 24: 4 5 6 10\n10-4=6 | 5 6 6\n"
    node = model.node(model.node("P 24: 4 5 6 10\n"), "10-4=6 | 5 6 6\n")
    assert (node.text, len(node)) == ("10-4=6 | 5 6 6\n", len(model.session.engine.encode(text)))
    for how in (None, "softmax", "log_softmax"):
        [by_node] = model.get_next_token_logits(node, ["5", "6"], how)
        [by_text] = model.get_next_token_logits(text, ["5", "6"], how)
        assert by_node.tobytes() == by_text.tobytes()
    assert model.generate(node).text == model.generate(text).text
    after_node = model.get_loglikelihood(node, ["6*5=30", "6+6=12"])
    after_text = model.get_loglikelihood(text, [text + "6*5=30", text + "6+6=12"])
    assert after_node.tobytes() == after_text.tobytes()


def test_generate_takes_what_llm_reasoners_gives(model):
    inputs = ["S 24: 4 5 6 10\n", "S 24: 1 2 3 4\n"]
    out = model.generate(inputs, eos_token_id="\n", output_log_probs=True)
    assert len(out.text) == len(out.log_prob) == 2 and all("=" in text for text in out.text)
    for start, text, logs in zip(inputs, out.text, out.log_prob, strict=True):
        likelihood = model.get_loglikelihood(start, [start + text + "\n"])
        np.testing.assert_allclose(logs.sum(), likelihood[0], rtol=1e-5)
    newline = int(model.session.engine.encode("\n", add_special=False)[0])
    assert model.generate(inputs, eos_token_id=[newline, "|"]).text[0].endswith(" ")
    [whole] = model.generate(inputs[0], hide_input=False, max_new_tokens=4).text
    assert whole.startswith(inputs[0]) and len(whole) == len(inputs[0]) + 4
    length = len(model.session.engine.encode(inputs[0]))
    [logs] = model.generate(inputs[0], max_length=length + 3, output_log_probs=True).log_prob
    assert len(logs) == 3
    sampled = model.generate(inputs, do_sample=True, temperature=2.0, num_return_sequences=3).text
    assert len(sampled) == 6 and len(set(sampled)) > 2
    assert model.session.stats().branches_live == 0


def test_next_token_logits_are_the_models(model):
    prompts = ["P 24: 4 5 6 10\n", "P 24: 1 2 3 4\n"]
    same = model.get_next_token_logits(prompts, ["4", "5"])
    each = model.get_next_token_logits(prompts, [["5", "4"], ["4", "5"]])
    assert [row.shape for row in same] == [(2,), (2,)]
    assert same[0].tolist() == each[0].tolist()[::-1] and same[1].tolist() == each[1].tolist()
    alphabet = [chr(code) for code in range(33, 127)]
    [probabilities] = model.get_next_token_logits(prompts[0], alphabet, postprocess="softmax")
    assert 0.99 < probabilities.sum() <= 1.0001


def test_errors_say_what_was_expected(model):
    with pytest.raises(ValueError, match="expected it to begin with"):
        model.get_loglikelihood("P 24:", ["S 24:"])
    with pytest.raises(ValueError, match="got 2 tokens; expected one"):
        model.get_next_token_logits("P", ["10"])
    with pytest.raises(ValueError, match="postprocess"):
        model.get_next_token_logits("P", ["1"], postprocess="sigmoid")
    with pytest.raises(ValueError, match="stopping_criteria"):
        model.generate("P", stopping_criteria=[print])
