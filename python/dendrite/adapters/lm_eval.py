"""lm-evaluation-harness on Dendrite: every task, request type and chat option of the harness.

    pip install ".[lm-eval]"  # in a clone of Dendrite

On the command line, with all that `lm_eval` takes:

    python -m dendrite.adapters.lm_eval run --model dendrite \\
        --model_args pretrained=models/dendrite-24 --tasks my_task --batch_size 32

In a program, also on an engine that is already loaded:

    import lm_eval
    from dendrite.adapters.lm_eval import DendriteLM
    results = lm_eval.simple_evaluate(DendriteLM("models/dendrite-24"), tasks=["my_task"])

Log-likelihoods are those of `dendrite score`, bit for bit: all continuations of a context are one
pass over their trie, and contexts that begin alike compute what they share once. `--batch_size`
says how many texts are generated together; it changes no result, and scoring does not need it.
`--device cuda` computes on a GPU.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from dendrite import DecodeParams, Engine, Error, Finish, Score, _core

Tokens = list[int]

#: What `generate_until` understands of a task's `generation_kwargs`, beside the lengths' names.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@register_model("dendrite")
class DendriteLM(TemplateLM):
    """A model of the harness.

    pretrained: a model folder or an id in the local Hugging Face cache, or a loaded Engine.
    batch_size: how many texts are generated together; "auto": 64.
    max_batch_size: bounds that.
    max_length: the longest context in tokens, at most and by default the model's own; what is
        longer loses its beginning, as in the harness's other models.
    max_gen_toks: how many tokens to generate where a task does not say.
    add_bos_token: whether texts get special tokens in front; None: as the tokenizer says, like the
        harness's `hf`. Where it adds BOS, rolling log-likelihoods count that token, too, as there.
    seed: of all draws, where a task samples.
    device: cpu, cuda or cuda:N, as the harness writes it.
    options: of Engine (dtype, threads, kv_tokens, ...); not with a loaded one.
    """

    def __init__(
        self,
        pretrained: str | os.PathLike[str] | Engine,
        *,
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        seed: int = 0,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(pretrained, Engine):
            self.engine = Engine(pretrained, device=device, **options)
        elif options:
            raise Error(f"DendriteLM: got {sorted(options)} and an Engine, which is loaded")
        else:
            self.engine = pretrained
        self.session = self.engine.session(seed=seed)
        info = self.engine.info
        self.batch_size = 64 if str(batch_size).startswith("auto") else int(batch_size)
        if max_batch_size is not None:
            self.batch_size = min(self.batch_size, int(max_batch_size))
        self.max_length = int(max_length or info.max_positions)
        if not 0 < self.max_length <= info.max_positions:
            raise Error(
                f"max_length is {self.max_length}; expected 1 to {info.max_positions}, "
                f"the positions of {info.model_path}"
            )
        self.max_gen_toks = int(max_gen_toks)
        self.add_bos_token = add_bos_token

    # --- text

    @property
    def eot_token_id(self) -> int:
        """What ends a text: EOS, or where the model has none, BOS."""
        return self._special(self.engine.info.eos, self.engine.info.bos)

    @property
    def prefix_token_id(self) -> int:
        """What a text begins with that has no context: BOS, or where the model has none, EOS."""
        return self._special(self.engine.info.bos, self.engine.info.eos)

    def _special(self, first: Sequence[int], second: Sequence[int]) -> int:
        """The id of the first of the two lists that has any."""
        ids = [*first, *second]
        if not ids:
            raise Error(f"{self.engine.info.model_path} names neither a BOS nor an EOS token")
        return ids[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> Tokens:
        """Token ids. None: as `add_bos_token` says, unless the text begins with BOS already."""
        if add_special_tokens is None:
            add_special_tokens = self.add_bos_token
        if add_special_tokens is None:
            bos = self.engine.decode(self.engine.info.bos[:1])
            add_special_tokens = not (bos and string.startswith(bos))
        return list(self.engine.encode(string, add_special=add_special_tokens).tolist())

    def _encode_pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """The tokens of both: white space at the border is the continuation's."""
        kept = context.rstrip()
        tokens = self.tok_encode(kept)
        after = self.engine.encode_after(tokens, context[len(kept) :] + continuation)
        return tokens, list(after.tolist())

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache: the model's folder."""
        return self.engine.info.model_path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the model's template, which the harness records."""
        if isinstance(chat_template, str):
            raise Error(
                f"chat template is {chat_template!r}; expected True, as the model has one alone"
            )
        if not chat_template:
            return None
        path = self.engine.info.model_path
        if (jinja := _core.model_text(path, "chat_template.jinja")) is not None:
            return jinja
        config = json.loads(_core.model_text(path, "tokenizer_config.json") or "{}")
        source = config.get("chat_template")
        return source if isinstance(source, str) else json.dumps(source)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The chat as a prompt. Without generation prompt it ends inside its last message."""
        text = self.engine.render_chat(chat_history, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].strip()
        begin = text.rfind(last)
        if begin < 0:
            raise Error(
                "the chat template changes the last message, so it cannot be continued: "
                f"{last!r} is not in {text!r}"
            )
        return text[: begin + len(last)]

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside the results."""
        info = self.engine.info
        return {
            "model_num_parameters": info.parameters,
            "model_dtype": info.compute_dtype,
            "model_numerics": info.numerics_key,
        }

    # --- scoring

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, Tokens, Tokens]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, (_, context, continuation) in enumerate(requests):
            groups.setdefault(self._kept(context, continuation), []).append(index)
        answers: list[tuple[float, bool]] = [(math.nan, False)] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        # In this order each context finds all that it shares with an earlier one in the last
        # branch, which lives until its successor does.
        for kept, indices in sorted(groups.items()):
            branch = self.session.prefill(kept)
            for part in self._that_fit(indices, [len(requests[i][2]) for i in indices]):
                scores = branch.score([requests[i][2] for i in part])
                for index, score in zip(part, scores, strict=True):
                    answers[index] = self._answer(score)
                    if (key := requests[index][0]) is not None:
                        self.cache_hook.add_partial("loglikelihood", key, answers[index])
                bar.update(len(part))
        bar.close()
        return answers

    def _kept(self, context: Tokens, continuation: Tokens) -> tuple[int, ...]:
        """The context's end, so long that the model reads `max_length` tokens at most.

        It never reads a continuation's last token.
        """
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise Error(
                f"a continuation has {len(continuation)} tokens; expected at most "
                f"{self.max_length}, the longest context"
            )
        return tuple(context[-room:] or [self.prefix_token_id])

    def _that_fit(self, indices: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Parts of `indices` whose continuations take half of the KV pages at most, or one each."""
        info = self.engine.info
        part: list[int] = []
        taken = 0
        for index, length in zip(indices, lengths, strict=True):
            if part and taken + length + info.page_tokens > info.kv_tokens // 2:
                yield part
                part, taken = [], 0
            part.append(index)
            taken += length + info.page_tokens
        yield part

    def _answer(self, score: Score) -> tuple[float, bool]:
        if math.isnan(score.logprob):
            raise Error(f"a continuation could not be scored: {self.session.shortage}")
        return score.logprob, score.greedy

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of whole texts, in windows of `max_length` tokens."""
        windows: list[tuple[None, Tokens, Tokens]] = []
        counts = []
        for request in requests:
            (text,) = request.args
            of_text = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            before = len(windows)
            windows.extend((None, *make_disjoint_window(window)) for window in of_text)
            counts.append(len(windows) - before)
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        answers = []
        for request, count in zip(requests, counts, strict=True):
            answers.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answers[-1])
        return answers

    # --- generating

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts, `batch_size` of them in one decode, where they are asked for alike."""
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(index)
        answers = [""] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate requests")
        for indices in groups.values():
            params = self._params(requests[indices[0]].args[1])
            prompts = {i: self._prompt(requests[i].args[0], params.max_tokens) for i in indices}
            indices.sort(key=prompts.__getitem__)
            for begin in range(0, len(indices), self.batch_size):
                part = indices[begin : begin + self.batch_size]
                texts = self._generate([prompts[i] for i in part], params)
                for index, text in zip(part, texts, strict=True):
                    answers[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
                bar.update(len(part))
        bar.close()
        return answers

    def _prompt(self, context: str, max_tokens: int) -> Tokens:
        """The context's end that leaves room to generate."""
        room = self.max_length - max_tokens
        if room < 1:
            raise Error(
                f"max_gen_toks is {max_tokens}; expected less than {self.max_length}, the longest "
                "context"
            )
        return self.tok_encode(context)[-room:]

    def _generate(self, prompts: list[Tokens], params: DecodeParams) -> list[str]:
        branches = [self.session.prefill(prompt) for prompt in prompts]
        generations = self.session.decode(branches, params)
        if any(generation.finish is Finish.BUDGET for generation in generations):
            raise Error(f"a text could not be generated: {self.session.shortage}")
        return [generation.text for generation in generations]

    def _params(self, gen_kwargs: Mapping[str, Any]) -> DecodeParams:
        kwargs = dict(normalize_gen_kwargs(dict(gen_kwargs), self.max_gen_toks))
        stop = [text for text in kwargs.pop("until") if text]
        max_tokens = kwargs.pop("max_gen_toks")
        if not kwargs.pop("do_sample"):
            kwargs["temperature"] = 0.0
        if unknown := sorted(kwargs.keys() - set(SAMPLING)):
            raise Error(
                f"generation_kwargs has {unknown}; expected until, do_sample, max_gen_toks, "
                f"{', '.join(SAMPLING)}"
            )
        return DecodeParams(max_tokens=max_tokens, stop=stop, **kwargs)


def main() -> None:
    """The harness's own command line, with the model "dendrite".

    The device is the CPU where none is named; the harness's default is a GPU.
    """
    from lm_eval.__main__ import cli_evaluate

    options = {word.split("=")[0] for word in sys.argv[1:]}
    if sys.argv[1:2] not in (["ls"], ["validate"]) and not options & {"--device", "--config", "-C"}:
        sys.argv += ["--device", "cpu"]
    cli_evaluate()


if __name__ == "__main__":
    main()
