"""The models that are trained here: shape, data phases, and what their folders say. A job is named by its model."""

import dataclasses

import tokenizer
from drafter import DrafterConfig
from hybrid import HybridConfig
from model import Config
from rows import ROW_TOKENS


@dataclasses.dataclass(frozen=True)
class Job:
    config: Config | HybridConfig
    seconds: float
    seed: int
    phase_starts: tuple  # shares of the time at which the generator's phases 1, 2, ... begin
    judge_weight: float | None  # of the token after "?"; None: the documents have no judge
    chat_template: str
    max_new_tokens: int
    stop_ids: tuple = (tokenizer.EOS,)
    row_tokens: int = ROW_TOKENS
    batch_rows: int = 512
    matrix_lr: float = 0.02  # Muon's
    text_weight: float = 0.0  # of tokens that are not to be learnt
    pieces: bool = False  # the generator's rows have documents in pieces
    generator_flags: tuple = ()
    start_from: str | None = None  # the job whose model goes on here
    other_lr: float = 2e-3  # AdamW's
    warmup_steps: int = 150
    named_tokens: tuple = ()  # (id, name) of reserved tokens that have a meaning here
    bos: bool = True  # a prompt begins with <|bos|>
    eos_name: str = "<|eos|>"  # of the token that ends an answer
    ahead_weight: float = 0.0  # of the loss of an MTP head


# A context has a thousand bytes and its answers sixty: a little weight on the rest teaches words and names early.
# Batches are a quarter of the others', as what has to be found first is how to look things up, and that takes steps.
# Without a norm on q and k Muon makes attention saturate, and nothing is looked up.
COMPOSE = Job(Config(layers=6, ffn_dim=640, rope_theta=1e5, context=4096, qk_norm=True), 270, 24, (0.0, 0.15, 0.4), None,
              tokenizer.CONTEXT_TEMPLATE, 24, stop_ids=(tokenizer.EOS, tokenizer.ID_OF_BYTE[ord("\n")]), row_tokens=4096,
              batch_rows=8, matrix_lr=0.008, text_weight=0.03)

CALLS = Job(Config(dim=192, layers=6, ffn_dim=384), 92, 24, (0.0,), None, tokenizer.CALL_TEMPLATE, 224)

# Of lines that are drawn a little is learnt too: it teaches what follows what. Time and batch are for one core of a CPU.
LEDGER = Job(HybridConfig(), 6000, 24, (0.0, 0.15, 0.4), None, tokenizer.LEDGER_TEMPLATE, 16,
             stop_ids=(tokenizer.ID_OF_BYTE[ord("\n")], tokenizer.EOS), row_tokens=512, batch_rows=4, matrix_lr=0.01,
             text_weight=0.02, ahead_weight=0.3)

JOBS = {
    # A judge document teaches one token, a solution forty: without a weight the judge learns last.
    "dendrite-24": Job(Config(), 490, 24, (0.0, 0.2, 0.8), 4.0, tokenizer.PUZZLE_TEMPLATE, 128),
    "dendrite-tools": CALLS,
    # Goes on from a model that knows the calls and copies names already: smaller steps.
    "dendrite-tools-chats": dataclasses.replace(
        CALLS, seconds=150, phase_starts=(0.0, 0.0), chat_template=tokenizer.CALL_CHAT_TEMPLATE, start_from="dendrite-tools",
        matrix_lr=0.01, other_lr=7e-4, warmup_steps=30, row_tokens=1024, batch_rows=128,
        named_tokens=((tokenizer.RESULT, "<|result|>"),)),
    # Small batches of long rows, as for contexts: what is learnt is to look things up.
    "dendrite-echo": Job(
        Config(dim=128, layers=4, heads=4, kv_heads=4, ffn_dim=256, rope_theta=1e5, context=4096, qk_norm=True), 230, 24,
        (0.0, 0.15, 0.4), None, tokenizer.QWEN3_TEMPLATE, 512, stop_ids=(tokenizer.QWEN3_TURN_END, tokenizer.EOS),
        row_tokens=4096, batch_rows=16, matrix_lr=0.01, named_tokens=tokenizer.QWEN3_TOKENS, bos=False,
        eos_name="<|im_end|>"),
    "dendrite-ledger": LEDGER,
    # What layers of one kind make of it.
    "dendrite-ledger-attention": dataclasses.replace(LEDGER, config=HybridConfig(kinds=("full",) * 4)),
    "dendrite-ledger-recurrent": dataclasses.replace(LEDGER, config=HybridConfig(kinds=("linear",) * 4)),
    "dendrite-compose": COMPOSE,
    # Half of the contexts of documents have documents that see only themselves and the system line.
    "dendrite-compose-blocks": dataclasses.replace(COMPOSE, pieces=True, generator_flags=("--alone", "0.5")),
}


@dataclasses.dataclass(frozen=True)
class DrafterJob:
    target: str  # the model of models/ that it drafts for
    config: DrafterConfig
    seconds: float
    seed: int
    phase: int  # of the target's generator
    # Share of the time from which half of the steps learn what the target itself writes greedily after prompts of
    # mode S; None: what documents say is what the target says.
    own_text_from: float | None


DRAFTERS = {
    "dendrite-24-dflash": DrafterJob("dendrite-24", DrafterConfig(), 110, 24, 2, 0.2),
    "dendrite-tools-dflash": DrafterJob(
        "dendrite-tools", DrafterConfig(dim=192, ffn_dim=384, taps=(1, 3, 5), target_layers=6), 60, 24, 1, None),
}
