"""The networks of `bench.broad`: modules of torchvision, timm, transformers and plain PyTorch by family.

Weights are random: what a network computes does not change how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: A module in evaluation mode and the tensors that it takes.
Built = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Network:
    """A network of the benchmark."""

    family: str
    #: The module and its inputs for a batch size.
    build: Callable[[int], Built]


#: Tokens of a text.
LENGTH = 128

#: Networks of torchvision by family, with the size of their images.
TORCHVISION = {
    "residual": {"resnet18": 224, "resnet50": 224, "resnext50_32x4d": 224},
    "plain": {"alexnet": 224, "vgg11_bn": 224, "squeezenet1_1": 224},
    "branches": {"densenet121": 224, "googlenet": 224, "inception_v3": 299},
    "mobile": {
        "mobilenet_v2": 224,
        "mobilenet_v3_large": 224,
        "mobilenet_v3_small": 224,
        "mnasnet1_0": 224,
        "shufflenet_v2_x1_0": 224,
        "efficientnet_b0": 224,
    },
    "regular": {"regnet_y_400mf": 224, "regnet_x_400mf": 224},
    "convolution and attention": {"convnext_tiny": 224, "maxvit_t": 224},
    "windows": {"swin_t": 224, "swin_v2_t": 256},
    "vision transformer": {"vit_b_16": 224},
    "segmentation": {"lraspp_mobilenet_v3_large": 224, "deeplabv3_mobilenet_v3_large": 224, "fcn_resnet50": 128},
    "video": {"r3d_18": 64},
}

#: Networks of timm by family, with the size of their images.
TIMM = {
    "vision transformer": {
        "vit_tiny_patch16_224": 224,
        "deit3_small_patch16_224": 224,
        "eva02_tiny_patch14_224": 224,
        "cait_xxs24_224": 224,
        "mvitv2_tiny": 224,
    },
    "mixer": {"mixer_s16_224": 224, "gmlp_s16_224": 224, "resmlp_12_224": 224, "poolformer_s12": 224},
    "convolution and attention": {
        "convmixer_768_32": 128,
        "mobilevit_xs": 256,
        "edgenext_xx_small": 224,
        "efficientformer_l1": 224,
        "levit_128s": 224,
        "coat_lite_tiny": 224,
        "pvt_v2_b0": 224,
        "crossvit_tiny_240": 240,
        "pit_ti_224": 224,
        "xcit_nano_12_p16_224": 224,
        "fastvit_t8": 224,
        "repvit_m1": 224,
        "convnextv2_atto": 224,
        "efficientformerv2_s0": 224,
        "focalnet_tiny_srf": 224,
        "swiftformer_xs": 224,
    },
    "mobile": {
        "ghostnet_100": 224,
        "rexnet_100": 224,
        "tf_efficientnetv2_b0": 192,
        "mobilenetv4_conv_small": 224,
        "mixnet_s": 224,
        "fbnetv3_b": 224,
        "tinynet_c": 184,
    },
    "branches": {"res2net50_14w_8s": 160, "hrnet_w18_small": 160, "dla34": 224, "resnest14d": 160, "cspresnet50": 160},
    "normalizer-free": {"nfnet_l0": 160},
    "windows": {"gcvit_xxtiny": 224, "tiny_vit_5m_224": 224},
    "gated convolution": {"mambaout_femto": 224, "starnet_s1": 224, "inception_next_atto": 224},
}


def _torchvision(name: str, size: int) -> Callable[[int], Built]:
    def build(batch: int) -> Built:
        import torch
        import torchvision

        options = {"weights": None}
        if name in ("googlenet", "inception_v3"):
            options.update(aux_logits=False, init_weights=False)
        if "lraspp" in name or "deeplab" in name or "fcn" in name:
            options["weights_backbone"] = None
        module = torchvision.models.get_model(name, **options)
        frames = (8,) if name == "r3d_18" else ()
        return module, (torch.randn(batch, 3, *frames, size, size),)

    return build


def _timm(name: str, size: int) -> Callable[[int], Built]:
    def build(batch: int) -> Built:
        import timm
        import torch

        return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, size, size),)

    return build


def _transformers(model: str, kind: str = "tokens", **sizes: Any) -> Callable[[int], Built]:
    """Build a network of transformers by the name of its class; small, with the shapes of its family."""

    def build(batch: int) -> Built:
        import torch
        import transformers

        from .wrapped import FirstTensor

        cls = getattr(transformers, model)
        attention = "eager" if model.startswith(("Mamba", "Deberta")) else "sdpa"
        config = cls.config_class(attn_implementation=attention, use_cache=False, **sizes)
        module = FirstTensor(cls(config))
        if kind == "audio":
            return module, (torch.randn(batch, 16000),)
        if kind == "mel":
            return module, (torch.randn(batch, 80, 400),)
        if kind == "image":
            return module, (torch.randn(batch, 3, 224, 224),)
        return module, (torch.randint(5, 1000, (batch, LENGTH)),)

    return build


def _lstm(batch: int) -> Built:
    import torch
    from torch import nn

    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10000, 128)
            self.lstm = nn.LSTM(128, 128, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(256, 20)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.lstm(self.embedding(tokens))[0])

    return Tagger(), (torch.randint(0, 10000, (batch, 64)),)


def _gru(batch: int) -> Built:
    import torch
    from torch import nn

    class Keywords(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(40, 64, 5, stride=2, padding=2)
            self.gru = nn.GRU(64, 128, batch_first=True)
            self.head = nn.Linear(128, 12)

        def forward(self, mel: Any) -> Any:
            steps = torch.relu(self.conv(mel)).transpose(1, 2)
            return self.head(self.gru(steps)[0][:, -1])

    return Keywords(), (torch.randn(batch, 40, 100),)


def _tcn(batch: int) -> Built:
    import torch
    from torch import nn

    def block(channels: int, dilation: int) -> Any:
        return nn.Sequential(
            nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation, groups=channels),
            nn.Conv1d(channels, channels, 1),
            nn.BatchNorm1d(channels),
            nn.PReLU(),
        )

    module = nn.Sequential(
        nn.Conv1d(1, 128, 16, stride=8, padding=4), *(block(128, 2**i) for i in range(6)), nn.Conv1d(128, 1, 1)
    )
    return module, (torch.randn(batch, 1, 8000),)


def _unet(batch: int) -> Built:
    import torch
    from torch import nn

    def double(before: int, after: int) -> Any:
        layers = (nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU())
        return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU())

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([double(3, 32), double(32, 64), double(64, 128)])
            self.middle = double(128, 256)
            self.up = nn.ModuleList([double(256 + 128, 128), double(128 + 64, 64), double(64 + 32, 32)])
            self.head = nn.Conv2d(32, 1, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for stage in self.down:
                x = stage(x)
                kept.append(x)
                x = nn.functional.max_pool2d(x, 2)
            x = self.middle(x)
            for stage in self.up:
                x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
                x = stage(torch.cat([x, kept.pop()], 1))
            return self.head(x)

    return UNet(), (torch.randn(batch, 3, 128, 128),)


def _recommender(batch: int) -> Built:
    import torch
    from torch import nn

    class DeepFM(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(26 * 1000, 16)
            self.linear = nn.Embedding(26 * 1000, 1)
            self.deep = nn.Sequential(
                nn.Linear(26 * 16, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1)
            )

        def forward(self, features: Any) -> Any:
            e = self.embedding(features)
            pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1, keepdim=True)
            return torch.sigmoid(self.deep(e.flatten(1)) + pairs + self.linear(features).sum(1))

    return DeepFM(), (torch.randint(0, 26000, (batch, 26)),)


_ENCODER = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_DECODER = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1408,
    "vocab_size": 8000,
}

TRANSFORMERS: dict[str, Network] = {
    "bert": Network("text encoder", _transformers("BertModel", **_ENCODER)),
    "distilbert": Network(
        "text encoder", _transformers("DistilBertModel", dim=384, n_layers=6, n_heads=12, hidden_dim=1536)
    ),
    "albert": Network("text encoder", _transformers("AlbertModel", embedding_size=128, **_ENCODER)),
    "electra": Network("text encoder", _transformers("ElectraModel", embedding_size=128, **_ENCODER)),
    "modernbert": Network(
        "text encoder",
        _transformers(
            "ModernBertModel", **{**_ENCODER, "intermediate_size": 576, "vocab_size": 8000, "pad_token_id": 0}
        ),
    ),
    "deberta_v2": Network("text encoder", _transformers("DebertaV2Model", **_ENCODER)),
    "gpt2": Network("text decoder", _transformers("GPT2LMHeadModel", n_embd=384, n_layer=6, n_head=6, vocab_size=8000)),
    "llama": Network("text decoder", _transformers("LlamaForCausalLM", num_key_value_heads=2, **_DECODER)),
    "qwen2": Network("text decoder", _transformers("Qwen2ForCausalLM", num_key_value_heads=2, **_DECODER)),
    "opt": Network(
        "text decoder",
        _transformers(
            "OPTModel",
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=6,
            ffn_dim=1536,
            word_embed_proj_dim=384,
        ),
    ),
    "mamba": Network(
        "state space",
        _transformers("MambaForCausalLM", hidden_size=256, num_hidden_layers=4, state_size=16, vocab_size=8000),
    ),
    "wav2vec2": Network(
        "speech",
        _transformers("Wav2Vec2Model", "audio", **{**_ENCODER, "num_hidden_layers": 4}, num_conv_pos_embeddings=64),
    ),
    "whisper_encoder": Network(
        "speech",
        _transformers(
            "WhisperModel",
            "mel",
            d_model=384,
            encoder_layers=4,
            encoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_layers=1,
            max_source_positions=200,
        ),
    ),
    "segformer": Network("segmentation", _transformers("SegformerForSemanticSegmentation", "image")),
    "dinov2": Network("vision transformer", _transformers("Dinov2Model", "image", **{**_ENCODER, "mlp_ratio": 4})),
}

PLAIN: dict[str, Network] = {
    "lstm": Network("recurrent", _lstm),
    "gru": Network("recurrent", _gru),
    "tcn": Network("speech", _tcn),
    "unet": Network("segmentation", _unet),
    "deepfm": Network("recommender", _recommender),
}

NETWORKS: dict[str, Network] = {
    **{n: Network(family, _torchvision(n, size)) for family, group in TORCHVISION.items() for n, size in group.items()},
    **{n: Network(family, _timm(n, size)) for family, group in TIMM.items() for n, size in group.items()},
    **TRANSFORMERS,
    **PLAIN,
}


def network(name: str) -> Network:
    """Return a network by its name; ``timm/NAME@SIZE`` is any one of timm, for images of this size."""
    if name in NETWORKS:
        return NETWORKS[name]
    library, _, rest = name.partition("/")
    architecture, _, size = rest.partition("@")
    if library != "timm" or not architecture or not (size or "224").isdecimal():
        raise ValueError(f"there is no network {name!r}: name one of {', '.join(NETWORKS)}, or timm/NAME@SIZE")
    return Network("timm", _timm(architecture, int(size or 224)))
