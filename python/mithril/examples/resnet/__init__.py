"""ResNet as an example."""
