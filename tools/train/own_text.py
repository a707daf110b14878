"""What a target writes greedily after the prompts of a stream's documents, as rows to train on.

Documents show one of many ways on, drawn at random; greedy decoding takes the target's favourite. A drafter that is
asked along greedy text should have seen some.
"""

import torch
import torch.nn.functional as F

import tokenizer
from rows import ROW_TOKENS

PROMPT_TOKENS = 32  # longer ones are left out
TEXT_TOKENS = ROW_TOKENS // 2  # two texts a row
SOLVE = tokenizer.ID_OF_BYTE[ord("S")]
LEARNT = -0x8000  # the sign of 16 bits


def prompts_of(rows):
    """(tokens [n, PROMPT_TOKENS], first [n]): what stands before the learnt part of each document of mode S of packed
    rows, aligned at its end, with <|pad|> before `first`."""
    packed = F.pad(rows.long(), (0, PROMPT_TOKENS), value=tokenizer.PAD)
    tokens = packed & 0x7FFF
    row, column = ((tokens[:, :-1] == tokenizer.BOS) & (tokens[:, 1:] == SOLVE)).nonzero(as_tuple=True)
    at = column[:, None] + torch.arange(PROMPT_TOKENS, device=rows.device)
    learnt = packed[row[:, None], at] < 0
    fits = learnt.any(dim=1)
    row, column, length = row[fits], column[fits], learnt[fits].int().argmax(dim=1)
    first = PROMPT_TOKENS - length
    place = torch.arange(PROMPT_TOKENS, device=rows.device)
    inside = (column - first)[:, None] + place
    aligned = tokens[row[:, None], inside.clamp(min=0)]
    return torch.where(place >= first[:, None], aligned, tokenizer.PAD), first


class CachedAttention:
    """Causal attention over a cache of all layers, for texts that are aligned at the column that comes next."""

    def __init__(self, config, first, columns, dtype):
        shape = (config.layers, 2, len(first), config.kv_heads, columns, config.head_dim)
        self.cache = torch.zeros(shape, dtype=dtype, device=first.device)
        self.begun = torch.arange(columns, device=first.device) >= first[:, None]
        self.filled = self.layer = 0

    def __call__(self, q, k, v):
        count, end = k.shape[2], self.filled + k.shape[2]
        keys, values = self.cache[self.layer]
        keys[:, :, self.filled:end], values[:, :, self.filled:end] = k, v
        self.layer += 1
        if self.layer == len(self.cache):
            self.layer, self.filled = 0, end
        rows, heads, _, head_dim = q.shape
        group = heads // k.shape[1]
        # The query heads of a key head are rows of one attention over it.
        q = q.reshape(rows, -1, group * count, head_dim)
        causal = torch.ones(count, end, dtype=torch.bool, device=q.device).tril(end - count).repeat(group, 1)
        mask = self.begun[:, None, None, :end] & causal
        mask = mask | ~mask.any(dim=-1, keepdim=True)  # padding sees something, or it would be no number
        out = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], attn_mask=mask)
        return out.view(rows, heads, count, head_dim)


@torch.no_grad()
def continue_greedily(target, prompts, first, columns=TEXT_TOKENS):
    """[n, columns]: each prompt with what follows, to <|eos|> or as far as there is room; then <|pad|>."""
    attention = CachedAttention(target.config, first, columns, target.dtype)
    texts = F.pad(prompts, (0, columns - prompts.shape[1]), value=tokenizer.PAD)
    ended = torch.zeros(len(first), dtype=torch.bool, device=first.device)
    new = prompts
    for end in range(prompts.shape[1], columns):
        hidden = target(new, attention, first=end - new.shape[1])
        chosen = target.logits(hidden[:, -1]).argmax(dim=-1)
        texts[:, end] = torch.where(ended, tokenizer.PAD, chosen)
        ended |= chosen == tokenizer.EOS
        new = texts[:, end:end + 1]
        if end % 16 == 0 and ended.all():
            break
    return texts


class OwnText:
    """An endless stream of batches as RowStream's. Texts come in lots, of which each row is used a few times."""

    def __init__(self, target, prompts_from, batch_rows, batches=8, uses=4):
        self.target, self.prompts_from, self.batch_rows, self.batches = target, prompts_from, batch_rows, batches
        self.uses, self.used, self.lot, self.texts = uses, 0, None, 0

    def make_lot(self):
        wanted, parts = 2 * self.batch_rows * self.batches, []
        while sum(len(first) for _, first in parts) < wanted:
            parts.append(prompts_of(self.prompts_from.next()))
        prompts, first = (torch.cat(part)[:wanted] for part in zip(*parts))
        texts = continue_greedily(self.target, prompts, first)
        self.texts += wanted
        texts[:, PROMPT_TOKENS:] += torch.where(texts[:, PROMPT_TOKENS:] == tokenizer.PAD, 0, LEARNT)
        self.lot = texts.to(torch.int16).view(self.batches, self.batch_rows, ROW_TOKENS)

    def next(self):
        if self.used % (self.batches * self.uses) == 0:
            self.make_lot()
        batch = self.lot[self.used % self.batches]
        self.used += 1
        return batch
