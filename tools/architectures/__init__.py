"""Whether imported architectures of transformers, timm and torchvision compute what they do in PyTorch."""
