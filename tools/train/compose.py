"""Contexts composed of pieces that were computed alone, in PyTorch: the reference for an engine that does the same.

A moved piece keeps its V and has its K rotated from the position at which it was computed to the one where it stands
now. What is repaired of it is computed again where it stands, in one pass with the question.
"""

import torch
import torch.nn.functional as F

from model import causal_attention


def keys_and_values(model, ids):
    """(K, V), [1, kv_heads, tokens, head_dim] each, of every layer for `ids` from position 0 on."""
    stored = []

    def attention(q, k, v):
        stored.append((k, v))
        return causal_attention(q, k, v)

    model(torch.tensor([ids], device=model.embedding.device), attention)
    return stored


def moved(model, k, old, new):
    """K as rotated for the positions `old` and to be for those of `new`, both [tokens]; by the tables of both."""
    a, b = k.chunk(2, dim=-1)
    cos, sin = model.cos[old], model.sin[old]
    a, b = a * cos + b * sin, b * cos - a * sin
    cos, sin = model.cos[new], model.sin[new]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@torch.no_grad()
def compose_logits(model, system, documents, question, first=0, last=0, left=None):
    """Logits [question's tokens, vocab] of `question` behind `system` and `documents` (lists of ids; system begins with
    <|bos|>). Each document is computed alone behind `left`, whose K and V are not used; None: behind `system`, and
    the first document is then where it was computed. Of the moved ones the `first` and `last` tokens are repaired."""
    device = model.embedding.device
    start, waiting = list(system), list(documents)
    if left is None:
        left = system
        if waiting:
            start += waiting.pop(0)
    layers, ids, rows = keys_and_values(model, start), list(start), []
    for document in waiting:
        old = torch.arange(len(left), len(left) + len(document), device=device)
        new = torch.arange(len(ids), len(ids) + len(document), device=device)
        alone = keys_and_values(model, list(left) + document)
        layers = [(torch.cat((keys, moved(model, k[:, :, len(left):], old, new)), dim=2),
                   torch.cat((values, v[:, :, len(left):]), dim=2))
                  for (keys, values), (k, v) in zip(layers, alone)]
        repaired = range(len(document))
        rows += [len(ids) + i for i in repaired if i < first or i >= len(document) - last]
        ids += document
    rows += range(len(ids), len(ids) + len(question))
    ids += question
    rows, ids = torch.tensor(rows, device=device), torch.tensor(ids, device=device)
    visible = torch.arange(len(ids), device=device) <= rows[:, None]
    left_of = iter(layers)

    def attention(q, k, v):
        keys, values = (F.pad(x, (0, 0, 0, len(question))) for x in next(left_of))
        keys[:, :, rows], values[:, :, rows] = k, v
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)

    return model.logits(model(ids[rows][None], attention, positions=rows))[0, -len(question):]
