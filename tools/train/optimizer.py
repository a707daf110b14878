"""Muon for the matrices, AdamW for the rest.

Muon takes momentum's nearest (semi-)orthogonal matrix as the step, so that all directions of a matrix learn at one
pace. Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/. Here it works on the stacked weights
of all layers at once, [layers, out, in].
"""

import torch


@torch.compile(dynamic=False, disable=not torch.cuda.is_available())
def orthogonalized(matrices):
    """Five Newton-Schulz steps towards U V^T of each matrix of the stack; singular values end near 1, not at 1."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, stacks, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(stacks, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                step = orthogonalized(weight.grad.lerp(momentum, group["momentum"]))  # Nesterov's look ahead
                rows, columns = weight.shape[-2:]
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(step.to(weight.dtype), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def make_optimizers(model, matrix_lr, other_lr, kind="muon"):
    """A list of optimizers whose groups carry their peak rate as `peak_lr`."""
    fused = torch.cuda.is_available()
    matrices = model.matrices()
    embeddings = [p for name, p in model.named_parameters() if name == "embedding"]  # a drafter has none of its own
    others = {id(p) for p in matrices + embeddings}
    norms = [p for p in model.parameters() if id(p) not in others]
    adam = [{"params": norms, "weight_decay": 0.0}]
    adam += [{"params": [p], "weight_decay": 0.01} for p in embeddings]
    optimizers = []
    if kind == "muon":
        optimizers.append(Muon(matrices, lr=matrix_lr))
    else:
        adam.append({"params": matrices, "weight_decay": 0.1})
    optimizers.append(torch.optim.AdamW(adam, lr=other_lr, betas=(0.9, 0.95), fused=fused))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers
