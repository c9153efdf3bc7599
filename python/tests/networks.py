"""Networks that several test files compile."""

import mithril as ml
import numpy as np


def classifier():
    model = ml.Model()
    model |= ml.Linear(dimension=128)(input="input", output="hidden1")
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=64)(input="hidden1_act", output="hidden2")
    model += ml.Relu()(input="hidden2", output="hidden2_act")
    model += ml.Linear(dimension=10)(input="hidden2_act", output="logits")
    model += ml.Softmax()(input="logits", output="output")
    return model


def cnn():
    model = ml.Model()
    model |= ml.Conv2d(filters=16, kernel_size=3, stride=1, padding="same")(input="input", output="conv1")
    model += ml.Relu()(input="conv1", output="conv1_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv1_act", output="pool1")
    model += ml.Conv2d(filters=32, kernel_size=3, stride=1, padding="same")(input="pool1", output="conv2")
    model += ml.Relu()(input="conv2", output="conv2_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv2_act", output="pool2")
    model += ml.Flatten()(input="pool2", output="flat")
    model += ml.Linear(dimension=64)(input="flat", output="hidden")
    model += ml.Relu()(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="output")
    return model


def text_block():
    """Tokens to the loss of the next one: look-up, attention, dropout, cross-entropy."""
    model = ml.Model()
    model |= ml.Embedding(50, 16)(input="input", output="tokens")
    model |= ml.TransformerEncoderLayer(16, 2, 32, 0.1)(input="tokens", output="hidden")
    model |= ml.Linear(50)(input="hidden", output="scores")
    model |= ml.SwapAxes(1, 2)(input="scores", output="classes")
    model |= ml.CrossEntropy()(input="classes", target="target", output="loss")
    return model


def image_block(pool):
    """Convolution, batch norm, relu and a pooling layer."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding="same")(input="input", output="features")
    model |= ml.BatchNorm2d()(input="features", output="normal")
    model |= ml.Relu()(input="normal", output="positive")
    model |= pool(2)(input="positive", output="output")
    return model


def model_of(layer):
    """Return a model of one layer."""
    model = ml.Model()
    model |= layer(input="input", output="output")
    return model


def texts():
    """Return attention over short texts."""
    model = ml.Model()
    model |= ml.Embedding(11, 16)(input="input", output="embedded")
    model |= ml.LayerNorm()(input="embedded", output="normed")
    model |= ml.MultiheadAttention(16, 4)(query="normed", key="normed", value="normed", output="mixed")
    model |= ml.Linear(3)(input="mixed", output="output")
    return model


def two_convolutions():
    """Return a network whose images are large between its layers."""
    model = ml.Model()
    model |= ml.Conv2d(32, 3, padding=1)(input="input", output="wide")
    model |= ml.Relu()(input="wide", output="active")
    model |= ml.Conv2d(32, 3, padding=1)(input="active", output="deep")
    model |= ml.Mean(axis=(2, 3))(input="deep", output="output")
    return model


def normal(*shape):
    """Return the same random numbers every time."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
