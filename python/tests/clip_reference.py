"""CLIP in PyTorch, written from its paper and the names of its published weights: what ours is compared with."""

import math
from collections import OrderedDict

import torch
from torch import nn


class QuickGelu(nn.Module):
    """The approximation of GELU that the published weights were trained with."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Attention and two linear layers, each behind a normalization and beside a shortcut."""

    def __init__(self, width, heads, mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1 = nn.LayerNorm(width)
        parts = [("c_fc", nn.Linear(width, 4 * width)), ("gelu", QuickGelu()), ("c_proj", nn.Linear(4 * width, width))]
        self.mlp = nn.Sequential(OrderedDict(parts))
        self.ln_2 = nn.LayerNorm(width)
        self.mask = mask

    def forward(self, x):
        y = self.ln_1(x)
        mask = None if self.mask is None else self.mask[: x.shape[1], : x.shape[1]].to(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """A stack of blocks."""

    def __init__(self, width, layers, heads, mask=None):
        super().__init__()
        self.resblocks = nn.Sequential(*(Block(width, heads, mask) for _ in range(layers)))

    def forward(self, x):
        return self.resblocks(x)


class TransformerTower(nn.Module):
    """Images as patches, with a vector of the class before them whose features are the image's."""

    def __init__(self, resolution, patch, width, layers, heads, leaving):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding = nn.Parameter(torch.empty((resolution // patch) ** 2 + 1, width))
        self.ln_pre = nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, heads)
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, leaving))

    def forward(self, images):
        x = self.conv1(images).flatten(2).mT
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x))[:, 0]) @ self.proj


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; averages instead of strides."""

    def __init__(self, entering, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.halve = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample = None
        if stride > 1 or entering != 4 * width:
            convolution = nn.Conv2d(entering, 4 * width, 1, bias=False)
            parts = [("-1", nn.AvgPool2d(stride)), ("0", convolution), ("1", nn.BatchNorm2d(4 * width))]
            self.downsample = nn.Sequential(OrderedDict(parts))

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.halve(self.bn2(self.conv2(y)).relu())
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class AttentionPool(nn.Module):
    """Attention of the mean to all places."""

    def __init__(self, side, features, heads, leaving):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.empty(side**2 + 1, features))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(features, features) for _ in range(3))
        self.c_proj = nn.Linear(features, leaving)
        self.heads = heads

    def forward(self, x):
        x = x.flatten(2).mT
        x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + self.positional_embedding
        query, key, value = (
            f(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, part in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        return self.c_proj((weights @ value).transpose(1, 2).flatten(1))


class ResidualTower(nn.Module):
    """A residual network with three convolutions first, and attention at the end."""

    def __init__(self, resolution, width, layers, leaving):
        super().__init__()
        sizes = [(3, width // 2, 2), (width // 2, width // 2, 1), (width // 2, width, 1)]
        for i, (entering, leaves, stride) in enumerate(sizes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(entering, leaves, 3, stride=stride, padding=1, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(leaves))
        entering = width
        for i, depth in enumerate(layers):
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(entering, width << i, 2 if i > 0 and j == 0 else 1))
                entering = 4 * (width << i)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.attnpool = AttentionPool(resolution // 32, 32 * width, 32 * width // 64, leaving)

    def forward(self, x):
        for i in (1, 2, 3):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)).relu()
        x = nn.functional.avg_pool2d(x, 2)
        for i in (1, 2, 3, 4):
            x = getattr(self, f"layer{i}")(x)
        return self.attnpool(x)


class Clip(nn.Module):
    """Both towers and their products; arguments as those of `mithril.models.clip`."""

    def __init__(
        self,
        embed_dim,
        image_resolution,
        vision_layers,
        vision_width,
        vision_patch_size,
        context_length,
        vocab_size,
        transformer_width,
        transformer_heads,
        transformer_layers,
    ):
        super().__init__()
        if isinstance(vision_layers, tuple):
            self.visual = ResidualTower(image_resolution, vision_width, vision_layers, embed_dim)
        else:
            sizes = (image_resolution, vision_patch_size, vision_width, vision_layers, vision_width // 64)
            self.visual = TransformerTower(*sizes, embed_dim)
        mask = torch.full((context_length, context_length), -math.inf).triu(1)
        self.transformer = Transformer(transformer_width, transformer_layers, transformer_heads, mask)
        self.token_embedding = nn.Embedding(vocab_size, transformer_width)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, transformer_width))
        self.ln_final = nn.LayerNorm(transformer_width)
        self.text_projection = nn.Parameter(torch.empty(transformer_width, embed_dim))
        self.logit_scale = nn.Parameter(torch.empty(()))

    def forward(self, image, text):
        image = self.visual(image)
        x = self.token_embedding(text) + self.positional_embedding[: text.shape[1]]
        x = self.ln_final(self.transformer(x))
        words = x[torch.arange(len(text)), text.argmax(-1)] @ self.text_projection
        image, words = (x / x.norm(dim=-1, keepdim=True) for x in (image, words))
        logits = self.logit_scale.exp() * image @ words.T
        return {
            "logits_per_image": logits,
            "logits_per_text": logits.T,
            "image_features": image,
            "text_features": words,
        }
