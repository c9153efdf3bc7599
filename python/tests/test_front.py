"""Front doors: models from folders that transformers and torchvision wrote, against these; programs; command line."""

import io
import json
import shutil
import sys

import decoders
import mithril as ml
import numpy as np
import PIL.Image
import pytest
import tokenizers
import torch
import torchvision
import transformers
from mithril.__main__ import main as mithril_command
from mithril.errors import InvalidValueError, MithrilError, ModelFileError
from mithril.generation import EncoderDecoder, TextGenerator
from mithril.generation.command import main as generation_program
from mithril.vision import Classifier, Preprocess, Similarity
from mithril.vision.command import classify, similarity
from mithril.vision.command import main as vision_program

BACKENDS = ["numpy", "torch", "jax", "mlx"]
CORPUS = ["Hello world, how are you? it's 12345 日本 done", "the quick brown fox jumps over the lazy dog"]


def backend(name):
    try:
        return ml.get_backend(name)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def write_tokenizer(folder, size):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<pad>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


SHARED = {"bos_token_id": 1, "pad_token_id": 0, "vocab_size": 300, "initializer_range": 0.4}


def gpt2():
    config = transformers.GPT2Config(n_positions=64, n_embd=24, n_head=3, n_layer=2, eos_token_id=1, **SHARED)
    return transformers.GPT2LMHeadModel(config)


def llama():
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        intermediate_size=40, max_position_embeddings=64, eos_token_id=[1, 5], **sizes, **SHARED
    )
    return transformers.LlamaForCausalLM(config)


def t5():
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_heads": 3, "num_layers": 2, "vocab_size": 300}
    config = transformers.T5Config(
        **sizes, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, initializer_factor=3.0
    )
    return transformers.T5ForConditionalGeneration(config)


KINDS = {"gpt2": gpt2, "llama": llama, "t5": t5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of checkpoints by kind, and the networks they hold."""
    by_kind = {}

    def make(kind):
        if kind not in by_kind:
            folder = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            network = KINDS[kind]().eval()
            network.save_pretrained(folder)
            by_kind[kind] = folder, network, write_tokenizer(folder, 300)
        return by_kind[kind]

    return make


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_transformers(kind, name, cache, folders):
    if not cache and name in ("jax", "mlx"):
        pytest.skip("each length of the text takes a program; test_generation runs them without a cache")
    folder, network, tokenizer = folders(kind)
    generator = (EncoderDecoder if kind == "t5" else TextGenerator).from_folder(folder, backend(name), cache=cache)
    if kind == "t5":
        # With a cache, what the encoder made of a prompt is turned into keys and values once.
        assert ("memory" in generator.decoder.input_keys) is not cache
    prompts = ["Hello world, how", "the", "it's 12345 日本"]
    actual = generator.generate(prompts, 32, stop_tokens=[])
    for prompt, answer in zip(prompts, actual, strict=True):
        tokens = torch.tensor([tokenizer.encode(prompt).ids])
        expected = network.generate(tokens, max_new_tokens=32, min_new_tokens=32, do_sample=False, eos_token_id=None)
        expected = expected[0, 1:] if kind == "t5" else expected[0, tokens.shape[1] :]
        assert list(answer.tokens) == expected.tolist()
    assert len({token for answer in actual for token in answer.tokens}) > 6


@pytest.mark.parametrize("kind", KINDS)
def test_settings_come_from_the_folder(kind, folders):
    folder, network, _ = folders(kind)
    generator = (EncoderDecoder if kind == "t5" else TextGenerator).from_folder(folder, "numpy")
    ends = network.config.eos_token_id
    assert generator.stop_tokens == frozenset(ends if isinstance(ends, list) else [ends])
    assert generator.context == (None if kind == "t5" else 64)
    assert generator.start_token == (0 if kind == "t5" else 1)
    if kind != "t5":
        assert generator.generate("", 3).tokens
        with pytest.raises(InvalidValueError, match="reads at most 64"):
            generator.generate("日" * 64)


def test_errors_of_folders(folders, tmp_path):
    folder, _, _ = folders("gpt2")
    with pytest.raises(ModelFileError, match="is not a folder"):
        TextGenerator.from_folder(tmp_path / "absent", "numpy")
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        TextGenerator.from_folder(tmp_path, "numpy")
    for missing in ("tokenizer.json", "model.safetensors"):
        copy = tmp_path / f"without {missing}"
        shutil.copytree(folder, copy)
        (copy / missing).unlink()
        with pytest.raises(ModelFileError, match="tokenizer" if "tok" in missing else "safetensors"):
            TextGenerator.from_folder(copy, "numpy")
    for text in ("{", "[1]", '{"model_type": "perceptron"}', '{"model_type": "gpt2", "n_embd": "wide"}'):
        shutil.copy(folder / "tokenizer.json", tmp_path)
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(MithrilError) as caught:
            TextGenerator.from_folder(tmp_path, "numpy")
        assert caught.value.hint or "json" in str(caught.value)
    config = json.loads((folder / "config.json").read_text())
    wrong = tmp_path / "wrong"
    shutil.copytree(folder, wrong)
    (wrong / "config.json").write_text(json.dumps({**config, "n_layer": 3}))
    with pytest.raises(ml.errors.ParameterError, match=r"h\.2\."):
        TextGenerator.from_folder(wrong, "numpy")
    (wrong / "config.json").write_text(json.dumps({**config, "eos_token_id": "end"}))
    (wrong / "generation_config.json").unlink()
    with pytest.raises(InvalidValueError, match="eos_token_id"):
        TextGenerator.from_folder(wrong, "numpy")


# --- images -----------------------------------------------------------------------------------------------------


def picture(seed=0, size=(50, 70)):
    return PIL.Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    names = {i: f"class {i}" for i in range(5)}
    config = transformers.ViTConfig(image_size=32, patch_size=8, initializer_range=0.3, id2label=names, **sizes)
    network = transformers.ViTForImageClassification(config).eval()
    network.save_pretrained(folder)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(folder)
    return folder, network


@pytest.mark.parametrize("name", BACKENDS)
def test_classes_are_those_of_transformers(name, vit):
    folder, network = vit
    images = [picture(seed) for seed in range(3)]
    actual = Classifier.from_folder(folder, backend(name)).classify(images, top=3)
    with torch.no_grad():
        logits = network(torch.from_numpy(Preprocess.from_folder(folder)(images))).logits
    values, order = torch.softmax(logits, 1).sort(dim=1, descending=True)
    assert [[p.label for p in row] for row in actual] == [[f"class {i}" for i in row[:3]] for row in order.tolist()]
    assert np.abs(np.array([[p.probability for p in row] for row in actual]) - values[:, :3].numpy()).max() < 1e-4


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    shared = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "initializer_range": 0.3}
    text = {**shared, "num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 40}
    vision = {**shared, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    ends = {"bos_token_id": 298, "eos_token_id": 299, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config={**text, **ends}, vision_config=vision, projection_dim=16, logit_scale_init_value=1.0
    )
    network = transformers.CLIPModel(config).eval()
    network.save_pretrained(folder)
    tokenizer = write_tokenizer(folder, 298)
    tokenizer.add_special_tokens(["<|startoftext|>", "<|endoftext|>"])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<|startoftext|>", "<|endoftext|>")]
    assert [number for _, number in ends] == [298, 299]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, network, tokenizer


@pytest.mark.parametrize("name", BACKENDS)
def test_similarities_are_those_of_transformers(name, clip):
    folder, network, tokenizer = clip
    images = [picture(seed) for seed in range(2)]
    texts = ["Hello world", "it's the lazy dog", "fox"]
    similarity = Similarity.from_folder(folder, backend(name))
    rows = [tokenizer.encode(text).ids for text in texts]
    length = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    with torch.no_grad():
        pixels = torch.from_numpy(Preprocess.clip(32)(images))
        expected = network(input_ids=tokens, pixel_values=pixels).logits_per_image
    assert np.abs(similarity.logits(images, texts) - expected.numpy()).max() < 1e-4 * np.abs(expected.numpy()).max()
    probabilities = similarity.probabilities(images, texts)
    assert np.abs(probabilities - torch.softmax(expected, 1).numpy()).max() < 1e-4
    with pytest.raises(InvalidValueError, match="reads at most 40"):
        similarity.logits(images, "x" * 99)
    with pytest.raises(InvalidValueError, match="no texts"):
        similarity.logits(images, [])


# --- programs ---------------------------------------------------------------------------------------------------


def test_program_of_generation(folders, capsys, monkeypatch):
    folder, _, _ = folders("gpt2")
    expected = TextGenerator.from_folder(folder, "numpy").generate("Hello", 12, temperature=1.0, top_k=20, seed=3).text
    options = ["--backend", "numpy", "--max-new-tokens", "12", "--temperature", "1", "--top-k", "20", "--seed", "3"]
    assert generation_program("", ["--weights", str(folder), "--prompt", "Hello", *options]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == expected
    assert mithril_command(["generate", str(folder), "--prompt", "Hello", *options]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    assert generation_program("", ["--weights", str(folder), "--prompt", "-", *options, "--no-cache"]) == 0
    assert capsys.readouterr().out.removesuffix("\n") == expected
    assert generation_program("", ["--weights", str(folder / "absent"), "--prompt", "a"]) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_program_of_classification(vit, tmp_path, capsys):
    folder, _ = vit
    path = str(tmp_path / "image.png")
    picture().save(path)
    [expected] = Classifier.from_folder(folder, "numpy").classify(path, top=2)
    arguments = ["--image", path, "--backend", "numpy", "--top", "2"]
    assert mithril_command(["classify", str(folder), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [path, *(f"  {p.probability:7.2%}  {p.label}" for p in expected)]
    (tmp_path / "labels.txt").write_text("ant\nbee\ncat\n")
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=3).eval()
    torch.save(network.state_dict(), tmp_path / "resnet.pth")
    arguments += ["--weights", str(tmp_path / "resnet.pth"), "--labels", str(tmp_path / "labels.txt")]
    assert vision_program("", classify, ["resnet18"], [*arguments, "--model", "resnet18"]) == 0
    with torch.no_grad():
        logits = network(torch.from_numpy(Preprocess.imagenet()(path)))
    values, order = torch.softmax(logits, 1)[0].sort(descending=True)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[1] for line in lines] == [("ant", "bee", "cat")[i] for i in order[:2]]
    assert abs(float(lines[0].split()[0].rstrip("%")) / 100 - float(values[0])) < 1e-4
    assert vision_program("", classify, ["resnet18"], arguments) == 1
    assert "is not a folder" in capsys.readouterr().err


def test_program_of_similarity(clip, tmp_path, capsys):
    folder, _, _ = clip
    path = str(tmp_path / "image.png")
    picture().save(path)
    [expected] = Similarity.from_folder(folder, "numpy").probabilities(path, ["fox", "dog"])
    arguments = ["--weights", str(folder), "--image", path, "--text", "fox", "--text", "dog", "--backend", "numpy"]
    assert vision_program("", similarity, (), arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [path, f"  {expected[0]:7.2%}  fox", f"  {expected[1]:7.2%}  dog"]


def test_gpt_with_cache_in_one_run_of_torch_compile():
    """The tiny decoder by `torch.compile`: the same tokens, from few programs."""
    plain = ml.compile(decoders.tiny_decoder(), ml.NumpyBackend(), shapes={"input": ["batch", "length"]})
    plain.load_params(decoders.weights())
    compiled = ml.generation.compile_decoder(decoders.tiny_decoder(cache=True), ml.TorchBackend(), jit=True)
    compiled.load_params(decoders.weights())
    continuations = [ml.generation.generate_tokens(model, [[1, 2, 3]], 16) for model in (plain, compiled)]
    for continuation in continuations:
        list(continuation)
    assert continuations[0].tokens == continuations[1].tokens
