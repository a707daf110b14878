"""Blocks of masks over packed rows: where they begin, what they see, what they should say.

A block begins at an anchor, a token that is known; its masks stand at the positions after it. Several blocks share a
row of context and know nothing of each other. Training and measuring both use what is here.
"""

import torch
import torch.nn.functional as F

import tokenizer


def document_numbers(tokens):
    return (tokens == tokenizer.BOS).cumsum(dim=1, dtype=torch.int32)


def choose_anchors(learnt, count):
    """(anchors [rows, count], whether each is one): tokens before which any and after which a learnt one stands, drawn
    without replacement. `learnt` [rows, length]. A row that has too few gives what is none."""
    fits = F.pad(learnt[:, 1:], (0, 1), value=False)
    fits[:, 0] = False  # nothing to read
    drawn = torch.rand(learnt.shape, device=learnt.device).masked_fill(~fits, -1).topk(count, dim=1)
    return drawn.indices, drawn.values >= 0


def block_positions(anchors, block_size):
    """[rows, blocks * block_size]"""
    return (anchors[:, :, None] + torch.arange(block_size, device=anchors.device)).flatten(1)


def block_ids(tokens, anchors, config):
    """[rows, blocks * block_size]: each anchor's token and masks."""
    ids = torch.full((*anchors.shape, config.block_size), config.mask_token, device=tokens.device)
    ids[:, :, 0] = tokens.gather(1, anchors)
    return ids.flatten(1)


def labels(tokens, learnt, anchors, valid, config, gamma):
    """(tokens at the blocks' positions, loss weights), [rows, blocks * block_size].

    The k-th mask weighs exp(-(k - 1) / gamma): a draft is worth nothing after its first mistake. The anchor, and what
    is not learnt or lies beyond the anchor's document, weigh nothing.
    """
    length = tokens.shape[1]
    positions = block_positions(anchors, config.block_size)
    inside = positions.clamp(max=length - 1)
    number = document_numbers(tokens)
    same = number.gather(1, inside) == number.gather(1, anchors).repeat_interleave(config.block_size, dim=1)
    wanted = same & (positions < length) & learnt.gather(1, inside)
    depth = torch.arange(config.block_size, device=tokens.device)
    decay = torch.where(depth > 0, torch.exp(-(depth - 1) / gamma), 0.0)
    weights = (valid[:, :, None] * decay).flatten(1) * wanted
    return tokens.gather(1, inside), weights


def marks(tokens, anchors, block_size):
    """What decides who sees whom. Of keys, [rows, length + block rows]: the document, or minus one, two, ... for the
    first, second, ... block. Of queries, [rows, block rows]: document, anchor and block's mark."""
    number = document_numbers(tokens)
    of_block = -1 - torch.arange(anchors.shape[1], dtype=torch.int32, device=tokens.device)
    of_block = of_block.repeat_interleave(block_size).expand(len(tokens), -1)
    document = number.gather(1, anchors).repeat_interleave(block_size, dim=1)
    return torch.cat((number, of_block), dim=1), document, anchors.repeat_interleave(block_size, dim=1), of_block


def dense_blocks():
    """The plain form, with a mask of all pairs."""

    def make(tokens, anchors, block_size):
        keys, document, anchor, block = (x[:, :, None] for x in marks(tokens, anchors, block_size))
        keys = keys.transpose(1, 2)
        before = torch.arange(keys.shape[2], device=tokens.device) < anchor
        return ((keys == document) & before | (keys == block))[:, None]

    return make, lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def flex_blocks():
    """By a compiled kernel; what `dense_blocks` gives."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    create = torch.compile(create_block_mask)

    def make(tokens, anchors, block_size):
        keys, document, anchor, block = (x.contiguous() for x in marks(tokens, anchors, block_size))

        def visible(row, head, query, key):
            mark = keys[row, key]
            context = (mark == document[row, query]) & (key < anchor[row, query])
            return context | (mark == block[row, query])

        return create(visible, len(tokens), None, document.shape[1], keys.shape[1], device=tokens.device)

    return make, lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask, enable_gqa=True)


# Each gives (tokens of packed rows, anchors, block size -> mask, (q, k, v, mask) -> attention of blocks).
BLOCK_ATTENTION = {"flex": flex_blocks, "dense": dense_blocks}


def tapped(target, taps, tokens, attention):
    """(the target's streams after its tapped layers [rows, length, taps * dim], its final hidden states)."""
    streams = []
    hidden = target(tokens, attention, streams=streams)
    return torch.cat([streams[tap] for tap in taps], dim=-1), hidden


def block_logits(drafter, embedding, features, tokens, anchors, attention):
    """Logits [rows, blocks, block_size, vocab]; those of the anchors' own rows mean nothing."""
    c = drafter.config
    block = F.embedding(block_ids(tokens, anchors, c), embedding)
    hidden = drafter(features, block, block_positions(anchors, c.block_size), attention)
    return F.linear(hidden, embedding.to(drafter.dtype)).float().unflatten(1, (anchors.shape[1], c.block_size))
