"""A loaded model."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dendrite import _backends, _core, _doors, _models
from dendrite._aio_calls import in_thread
from dendrite._constraint import Constraint
from dendrite._core import Branch, ChunkInfo, Compatibility, EngineInfo, EngineStats, Perplexity
from dendrite._documented import document
from dendrite._events import EventStream, Subscription
from dendrite._measures import TextSample, samples
from dendrite._params import Budget
from dendrite._session import Session
from dendrite._types import RenderedPrompt, Tokens


class Restored(NamedTuple):
    """What Engine.restore read."""

    session: Session
    """With the seed, budget and counters of the saved one."""
    branches: list[Branch]
    """In the order in which they were saved, with the same ids."""
    kv_restored: bool
    """False: K and V will be computed again; `note` says why."""
    note: str
    """For people; empty when all came back."""
    attachment: str
    """What save was given."""


def fresh_seed() -> int:
    """One that nobody had, of so many bits as a number of JSON keeps."""
    return int.from_bytes(os.urandom(8), "little") >> 11


class Engine:
    """A loaded model on a device, with its pages.

    `model` is a folder in Hugging Face layout, an id found in the local Hugging Face cache (nothing
    is ever downloaded), or a GGUF file, of split ones the first. Raises Error naming the file, the
    key, what was got and what was expected. It may be used from several threads and tasks, whose
    calls share their steps.

    device: "cpu", or "cuda", the first GPU, or "cuda:N", the GPU of index N as CUDA counts them
        (needs the package dendrite-cuda).
    devices: devices of that kind, by their indices, that compute the model together, each with its
        share; results depend on how many there are, not on which: (0, 0) gives on one what two
        give. A CPU is device 0. Empty: the one that `device` names.
    dtype: auto (the checkpoint's), f32, bf16, f16.
    quantization: what the matrices of layers are rounded to when they are loaded: int8 (8.5 bits
        a weight), int4 (5), or fp8 (8.1 to 8.5), which rounds no activations
        on a CPU. "": nothing.
    output_quantization: the same of the matrix that gives the logits: fp8 or int8. Where it is the
        embeddings, too, these are rounded with it.
    kv_dtype: what K and V are kept as: auto (with the dtype), bf16, or fp8: half of bf16's memory,
        less exact; not with a DFlash drafter.
    threads: 0: one a core.
    page_tokens: tokens of a KV page: 8, 16 or 32.
    kv_tokens: size of the KV pool; 0: what memory allows.
    memory_bytes: what weights and KV pages take at most, such as a part of the memory for each of
        several engines; pages are then what weights leave of it. 0: what is free.
    state_bytes: of a model with recurrent layers: what the states that branches go on from take; 0:
        on a GPU half of what is free, on a CPU a quarter, at most 4 GiB.
    load_format: "dummy": random weights, for speed tests.
    kernels: forces an instruction path by name.
    beyond_positions: texts may be longer than the model has positions (info.max_positions), where
        its answers get worse. False: such a prompt is an Error, and decode ends there with
        Finish.LENGTH.
    prefix_index: reuse pages of prompts and live branches in prefill.
    chunk_tokens: tokens of registered chunks (Session.register_chunk), at most; the least recently
        used ones that nobody holds are forgotten.
    deterministic: a row's bits do not depend on its company.
    host_tables: on a GPU: page tables stay in the host's memory.
    step_target_ms: long prompts beside other calls go in pieces that take about so long.
    draft_model: a smaller model with the same tokens, which drafts for DecodeParams.speculate.
    draft_kv_tokens: its kv_tokens.
    drafter: a block drafter that was trained for the model (DFlash), for the same; or "mtp", the
        MTP head in the model's own files.
    weights: False: only configuration and text; sessions are refused.
    kv_debug: checks everything after every operation; slow.
    backend_library: the file of the device's library; None: for cuda that of dendrite-cuda, "": the
        one in the module, where that was built with CUDA.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        devices: Sequence[int] = (),
        dtype: str = "auto",
        quantization: str = "",
        output_quantization: str = "",
        kv_dtype: str = "auto",
        threads: int = 0,
        page_tokens: int = 16,
        kv_tokens: int = 0,
        memory_bytes: int = 0,
        state_bytes: int = 0,
        load_format: str = "auto",
        kernels: str = "",
        beyond_positions: bool = False,
        prefix_index: bool = True,
        chunk_tokens: int = 16 << 20,
        deterministic: bool = True,
        host_tables: bool | None = None,
        step_target_ms: float = 0,
        draft_model: str | os.PathLike[str] | None = None,
        draft_kv_tokens: int = 0,
        drafter: str | os.PathLike[str] | None = None,
        weights: bool = True,
        kv_debug: bool | None = None,
        backend_library: str | None = None,
    ) -> None:
        options = _core.EngineOptions()
        indices = "a sequence of ints"
        if backend_library is None:
            backend_library = _backends.library_for(device)
        folders = {"draft_model": draft_model, "drafter": drafter}
        _doors.assign(
            options,
            {
                "device": (device, "a str"),
                "devices": (_doors.items("devices", devices, indices), indices),
                "dtype": (dtype, "a str"),
                "quantization": (quantization, "a str"),
                "output_quantization": (output_quantization, "a str"),
                "kv_dtype": (kv_dtype, "a str"),
                "threads": (threads, "an int"),
                "page_tokens": (page_tokens, "an int"),
                "kv_tokens": (kv_tokens, "an int"),
                "memory_bytes": (memory_bytes, "an int"),
                "state_bytes": (state_bytes, "an int"),
                "load_format": (load_format, "a str"),
                "kernels": (kernels, "a str"),
                "beyond_positions": (beyond_positions, "a bool"),
                "prefix_index": (prefix_index, "a bool"),
                "chunk_tokens": (chunk_tokens, "an int"),
                "deterministic": (deterministic, "a bool"),
                "host_tables": (host_tables, "a bool or None"),
                "step_target_ms": (step_target_ms, "a number"),
                "draft_kv_tokens": (draft_kv_tokens, "an int"),
                "weights": (weights, "a bool"),
                "kv_debug": (kv_debug, "a bool or None"),
                "backend_library": (backend_library, "a str or None"),
                **{
                    name: (_doors.path(name, folder), "a path")
                    for name, folder in folders.items()
                    if folder is not None
                },
            },
        )
        self._handle = _core.load(_doors.path("model", model), options)
        self._info = self._handle.info()
        _open.add(self)

    @property
    def info(self) -> EngineInfo:
        """What the folder holds and what computes it."""
        return self._info

    def compatibility(self) -> Compatibility:
        """How the model's weights bear what this device rounds; with or without weights.

        Where a CPU multiplies packed weights, products that would suffer from it round nothing
        instead, and info.warnings says so once. Reads norms and some rows of the model's files.
        """
        return self._handle.compatibility()

    @property
    def name(self) -> str:
        """The model's: its folder's, or its id, such as "Qwen/Qwen3-0.6B", where it lies in the
        Hugging Face cache."""
        return _models.name_of(self._info.model_path)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._handle.closed

    def start(self) -> None:
        """Gives the engine a thread that computes submitted calls, whoever waits for them.

        Session.aio does this when it is first used. Done beforehand, say as a server starts, the
        first request does not pay for it; calling it again changes nothing. Ends with close().
        """
        self._handle.start()

    def session(
        self,
        *,
        seed: int | None = None,
        budget: Budget | None = None,
        stream: int = 0,
        weight: float = 1,
    ) -> Session:
        """A session: one agent's tree.

        What is drawn depends on the seed, and on a branch's random stream, its tokens and
        parameters: the same seed draws the same again.

        seed: 0 to 2**64 - 1. None: one that nobody had, from the system's random numbers; the
            session's `seed` says which.
        budget: what it may spend. None: no limit.
        stream: tells sessions of one seed apart.
        weight: its part of a step's rows where those are short, against others'.
        """
        seed = fresh_seed() if seed is None else seed
        if budget is None:
            budget = Budget()
        elif not isinstance(budget, Budget):
            raise _doors.wrong("budget", budget, "a Budget or None")
        handle = self._handle.session(
            seed=seed,
            stream=stream,
            weight=weight,
            budget_tokens=budget.tokens,
            budget_milliseconds=budget.milliseconds,
        )
        return Session(self, handle, int(seed))

    def encode(self, text: str, *, add_special: bool | None = None) -> NDArray[np.int32]:
        """The text's tokens: int32 [tokens]. Raises Error when the model has no tokenizer.json.

        text: special tokens that are written in it are parsed.
        add_special: BOS and the like, as the tokenizer says. None: yes, but for a RenderedPrompt.
        """
        return self._handle.encode(text, add_special)

    def encode_after(self, before: Tokens, text: str) -> NDArray[np.int32]:
        """The tokens of a text as what follows others, without special tokens: int32 [tokens].

        They are those of both texts together less those in front, wherever no token would be of
        both. Where one would, the tokens in front stay as they are, and the text is encoded as it
        stands inside a text. Behind no tokens, or those alone that encode() adds, it is a
        beginning. Looks at the last 9 of `before`.
        """
        return self._handle.encode_after(before, text)

    def decode(self, ids: Tokens, *, skip_special: bool = False) -> str:
        """The text of tokens.

        ids: any, of all or a part of a text.
        skip_special: leaves out tokens that the tokenizer calls special, such as BOS.
        """
        return self._handle.decode(ids, skip_special)

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to a text, in its middle, to the byte; perhaps no UTF-8.

        Those of a text's tokens in a row are the text, but for a space that some tokenizers put
        before a beginning. Special tokens have their names; ids without a token add nothing.
        """
        return self._handle.token_bytes(token)

    def embed(
        self,
        texts: Sequence[str | Tokens],
        *,
        pooling: Literal["last_token", "mean"] = "last_token",
        normalize: bool = True,
        add_special: bool = True,
    ) -> NDArray[np.float32]:
        """Vectors of texts or of their tokens: float32 [texts, dim], in their order.

        They are the model's last hidden states, behind its final norm (transformers'
        last_hidden_state): that of the last token, or the mean over all tokens. Each is to the bit
        what it is alone. Texts that begin alike share that beginning's K, V and rows;
        "last_token" also uses what prompts and branches hold, while "mean" needs the hidden state
        of every token, which nobody keeps, and computes them.

        pooling: "last_token" or "mean". normalize: to length 1. add_special: texts with the
        tokenizer's special tokens (BOS).
        Raises Error for a text without tokens, and one that is longer than the pool.
        """
        given = _doors.items("texts", texts, "a sequence of str and token ids")
        return self._handle.embed(given, pooling, normalize, add_special)

    def perplexity(
        self,
        texts: Sequence[str | TextSample],
        *,
        window: int = 2048,
        max_tokens: int = 0,
        likeliest: bool = False,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> Perplexity:
        """How well the model foretells texts: less is better, among models with the same tokens.

        Of all tokens of the texts, each text by itself; special tokens are those that are written
        in them. What the tokenizer puts before a text (BOS) stands before every window and is not
        scored; where it puts nothing, a window's first token is not.

        texts: of a TextSample the prompt is given.
        window: tokens that are computed together, at least 2; less where the model has fewer
            positions. A token is foretold from those before it in its window.
        max_tokens: no further window begins once so many are scored; 0: all are scored.
        likeliest: keep the likeliest tokens, for top1_agreement.
        on_progress: is told how many tokens of how many are scored. What it raises ends the call.
        Raises Error for no text, and where there is nothing to score.
        """
        return _core.perplexity(
            self._handle, samples("texts", texts), window, max_tokens, likeliest, on_progress
        )

    def check(self, constraint: Constraint) -> None:
        """Compiles a constraint; what was checked costs nothing when it is used.

        Raises ConstraintError, and says why, where this model cannot be constrained by it: no such
        grammar, a part that is not supported, nothing that could match it, too large.
        """
        self._handle.check(constraint)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> RenderedPrompt:
        """A chat as the model's own template writes it: a str that says it has BOS already.

        messages: each with "role" and "content".
        add_generation_prompt: ends with what the assistant's answer begins with.
        tools: in the OpenAI form.
        extra: the template's own variables, such as enable_thinking.

        Raises Error when the model has no template, or when the messages are not of the form that
        it expects.
        """
        wanted = "a sequence of mappings with role and content"
        offered = "a sequence of mappings, OpenAI's tools"
        messages = _doors.items("messages", messages, wanted)
        if tools is not None:
            tools = _doors.items("tools", tools, offered)
        return RenderedPrompt(
            self._handle.render_chat(
                _doors.as_json("messages", messages, wanted),
                add_generation_prompt,
                "" if tools is None else _doors.as_json("tools", tools, offered),
                _doors.as_json("extra", extra, "plain data") if extra else "",
            )
        )

    def restore(self, source: str | os.PathLike[str] | bytes) -> Restored:
        """A session that Session.save wrote or Session.snapshot made, here or elsewhere.

        source: a file, or bytes.

        K and V come back bit for bit where model, numerics_key and page_tokens are those they were
        saved with and the pool has room; else they are computed again when next needed, from the
        same tokens. Raises Error for what is missing, truncated, damaged, of another version, or of
        another model.
        """
        handle, branches, kv_restored, note, attachment, seed = self._handle.restore(
            source if isinstance(source, bytes) else _doors.path("source", source)
        )
        return Restored(Session(self, handle, seed), branches, kv_restored, note, attachment)

    def events(self, kinds: Iterable[str] = (), *, capacity: int = 65536) -> EventStream:
        """What happens in the engine, of all sessions: a stream to iterate over.

        kinds: such as "fork", "step", "evict"; none: all. ["call"] is a record of each call, with
        its tokens, times until it ran and until its first token, and how it ended. Where nobody
        reads for long, the oldest that fit into `capacity` are kept and later ones counted as
        dropped.
        """
        return EventStream(_core.events(self._handle, _kinds(kinds), capacity))

    def write_events(self, path: str | os.PathLike[str], kinds: Iterable[str] = ()) -> Subscription:
        """Writes events to a file as JSON lines while they happen, without Python.

        path: of the file, which is written anew. kinds: as those of events.
        """
        file = _doors.path("path", path)
        return Subscription(_core.write_events(self._handle, file, _kinds(kinds)))

    def stats(self) -> EngineStats:
        """Counters of all sessions together."""
        return self._handle.stats()

    def chunks(self) -> list[ChunkInfo]:
        """The registered chunks of all sessions, the most recently used first."""
        return self._handle.chunks()

    def tree_text(self) -> str:
        """The token tree for people: who ends where, references, pages and their holders.

        One line a branch, then one a segment; a page's count of holders stands behind it where it
        is not 1. Its form may change.
        """
        return self._handle.tree_text()

    def close(self) -> None:
        """Closes its sessions and frees its memory. Calls that wait in other threads end."""
        self._handle.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await in_thread(self.close, lambda: None)

    def __copy__(self) -> Engine:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Engine cannot be pickled: it is memory and threads of this process. Load one in "
            "each process, or use dendrite.ray.Pool"
        )

    def __repr__(self) -> str:
        if self.closed:
            return "<Engine: closed>"
        info = self._info
        return f"<Engine: {self.name} ({info.model_type}) on {info.device}, {info.compute_dtype}>"


def _kinds(kinds: Iterable[str]) -> list[str]:
    return _doors.items("kinds", kinds, "a sequence of str")


_open: weakref.WeakSet[Engine] = weakref.WeakSet()


def close_all() -> None:
    """Closes what is open when the interpreter ends: no thread of an engine outlives it."""
    for engine in list(_open):
        if not engine.closed:
            engine.close()


document(__name__)
