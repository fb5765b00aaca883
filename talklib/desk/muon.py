"""Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks") for the weight matrices, AdamW
for the rest. Small and float32: on a model of this size it needs about two thirds of AdamW's steps."""

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Jordan's quintic coefficients: singular values end near 1 after five rounds."""


def orthogonal(stack: torch.Tensor) -> torch.Tensor:
    """The nearest semi-orthogonal matrix of each, roughly. stack (N, rows, cols)."""
    a, b, c = NEWTON_SCHULZ
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """One optimizer for a whole model. `scale` multiplies both learning rates."""

    def __init__(self, model, muon_lr: float, adam_lr: float, momentum: float = 0.95):
        self.scale, self.lr, self.momentum, self.adam_lr = 1.0, muon_lr, momentum, adam_lr
        rest, shapes = [], {}
        for name, p in model.named_parameters():
            if p.ndim == 2 and "embed" not in name:
                shapes.setdefault(p.shape, []).append(p)
            else:
                rest.append(p)
        self.groups = [(ps, torch.zeros(len(ps), *shape)) for shape, ps in shapes.items()]
        self.adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self) -> None:
        """Updates the weights and clears the gradients."""
        for ps, moving in self.groups:
            grads = torch.stack([p.grad for p in ps])
            moving.lerp_(grads, 1 - self.momentum)
            update = orthogonal(grads.lerp(moving, self.momentum))  # Nesterov
            gain = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for p, u in zip(ps, update, strict=True):
                p.add_(u, alpha=-self.lr * self.scale * gain)
                p.grad = None
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * self.scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
