"""Random programs of PyTorch in which tensors share memory: views, changes in place, and views of what has changed."""

import random

import torch

#: Views by name, as functions of a tensor and of what chooses.
VIEWS = {
    "select": lambda x, r: x.select(r.randrange(x.dim()), r.choice([0, -1])) if x.dim() > 1 else x[0:1],
    "slice": lambda x, r: x.narrow(d := r.randrange(x.dim()), s := r.randrange(x.shape[d]), x.shape[d] - s),
    "steps": lambda x, r: x[..., ::2],
    "transpose": lambda x, r: x.transpose(0, -1),
    "permute": lambda x, r: x.permute(r.sample(range(x.dim()), x.dim())),
    "unsqueeze": lambda x, r: x.unsqueeze(r.randrange(x.dim() + 1)) if x.dim() < 4 else x,
    "squeeze": lambda x, r: x.squeeze(0) if x.dim() > 1 else x,
    "flatten": lambda x, r: x.flatten(),
    "reshape": lambda x, r: x.reshape(-1, x.shape[-1]),
    "split": lambda x, r: r.choice(x.split(2, dim=0)),
    "chunk": lambda x, r: r.choice(x.chunk(2, dim=-1)),
    "unbind": lambda x, r: r.choice(x.unbind(0)) if x.dim() > 1 else x,
    "contiguous": lambda x, r: x.contiguous(),
    "to": lambda x, r: x.to(torch.float32),
    "clone": lambda x, r: x.clone(),
    "detach": lambda x, r: x.detach() if not x.requires_grad else x,
    "copy": lambda x, r: x * 1.0,
}

#: Changes in place, as functions of a tensor, another one of the pool and of what chooses.
CHANGES = {
    "add": lambda x, y, r: x.add_(r.choice([1.0, 0.25])),
    "multiply": lambda x, y, r: x.mul_(y.sum() * 0.1),
    "fill": lambda x, y, r: x.fill_(0.5),
    "zero": lambda x, y, r: x.zero_(),
    "copy": lambda x, y, r: x.copy_(y.mean()),
    "clamp": lambda x, y, r: x.clamp_(-0.5, 0.5),
    "masked": lambda x, y, r: x.masked_fill_(x > 0.3, -1.0),
    "put": lambda x, y, r: x.index_put_((torch.tensor([0, -1]),), torch.tensor(0.75), accumulate=r.random() < 0.5),
    "scatter": lambda x, y, r: x.scatter_(0, torch.zeros(x.shape, dtype=torch.int64), 0.1),
    "key": lambda x, y, r: x.__setitem__((Ellipsis, slice(0, 1)), 0.3),
    "sigmoid": lambda x, y, r: x.sigmoid_(),
}


def program(seed, steps=9):
    """Make a function of a tensor of shape [4, 2, 6] that returns a number for every tensor that it made."""

    def run(x):
        r = random.Random(seed)
        pool = [x * 1.0]
        for _ in range(steps):
            tensor = r.choice(pool[-4:])
            if tensor.dim() == 0 or tensor.numel() == 0:
                continue
            if r.random() < 0.5:
                pool.append(VIEWS[r.choice(list(VIEWS))](tensor, r))
            else:
                CHANGES[r.choice(list(CHANGES))](tensor, r.choice(pool), r)
        weights = (torch.arange(t.numel(), dtype=torch.float32).reshape(t.shape).cos() for t in pool)
        return torch.stack([(t * w).sum() for t, w in zip(pool, weights, strict=True)])

    return run


class Programs(torch.nn.Module):
    """Several of them in one module."""

    def __init__(self, seeds):
        super().__init__()
        self.programs = [program(seed) for seed in seeds]

    def forward(self, x):
        return [run(x) for run in self.programs]
