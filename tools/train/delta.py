"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464), in chunks, for training.

Of a head the state S [key_dim, value_dim] goes from row to row by S <- e^g S, then S <- S + k (beta (v - k S))^T; a row
gives q S. Within a chunk what rows add is solved for at once (the WY form of the paper, section 3.3).
"""

import torch
import torch.nn.functional as F

CHUNK = 64
FORGETS = -30.0  # a decay that leaves nothing of what was before


def delta_rule(q, k, v, g, beta):
    """What rows give, [rows, heads, length, value_dim], of q and k [rows, heads, length, key_dim], v alike, and g, the log of
    the decay, and beta [rows, heads, length]. In the dtype of q; states begin as nothing."""
    rows, heads, length, key_dim = q.shape
    pad = -length % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, pad)).view(rows, heads, -1, CHUNK, x.shape[-1]) for x in (q, k, v))
    g, beta = (F.pad(x, (0, pad)).view(rows, heads, -1, CHUNK) for x in (g, beta))
    so_far = g.cumsum(-1)
    ones = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device)
    between = (so_far[..., :, None] - so_far[..., None, :]).masked_fill(ones.triu(1), -torch.inf).exp()
    before = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    since = so_far.exp()[..., None]
    added = torch.linalg.solve_triangular(before + torch.eye(CHUNK, dtype=q.dtype, device=q.device),
                                          beta[..., None] * torch.cat((v, k * since), -1), upper=False, unitriangular=True)
    own, of_state = added.split((v.shape[-1], key_dim), -1)
    within, queries = (q @ k.mT) * between, q * since
    last = so_far[..., -1:, None]
    keys, kept = (k * (last - so_far[..., None]).exp()).mT, last.exp()
    state = torch.zeros(rows, heads, key_dim, v.shape[-1], dtype=q.dtype, device=q.device)
    out = []
    for chunk in range(q.shape[2]):
        new = own[:, :, chunk] - of_state[:, :, chunk] @ state
        out.append(queries[:, :, chunk] @ state + within[:, :, chunk] @ new)
        state = state * kept[:, :, chunk] + keys[:, :, chunk] @ new
    return torch.cat(out, 2)[:, :, :length]
