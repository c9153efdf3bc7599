"""Images: preprocessing against torchvision and transformers, files of every kind, classification against torch."""

import io
import json
import struct

import mithril as ml
import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from mithril.errors import InvalidValueError, ModelFileError
from mithril.models import resnet18
from mithril.vision import Classifier, Preprocess, read_image, read_labels
from torchvision.transforms import v2

MODES = {"bilinear": 2, "bicubic": 3, "nearest": 0, "lanczos": 1, "box": 4, "hamming": 5}


def pixels(height, width, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    # Smooth and noisy parts, so that both resizing and rounding show.
    waves = np.sin(np.arange(height)[:, None, None] / 7 + np.arange(width)[None, :, None] / 5 + np.arange(channels))
    return np.clip(127 + 90 * waves + rng.normal(0, 30, (height, width, channels)), 0, 255).astype(np.uint8)


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


SIZES = [(300, 500), (500, 300), (224, 224), (257, 256), (31, 97), (1, 1), (256, 259), (231, 223)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["ResNet18_Weights.IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V2", "vit_l_16"])
def test_equals_the_transforms_of_torchvisions_weights(size, name):
    image = PIL.Image.fromarray(pixels(*size))
    if name == "vit_l_16":
        weights, ours = torchvision.models.ViT_L_16_Weights.IMAGENET1K_V1, Preprocess.imagenet(resize=242)
    else:
        weights = torchvision.models.get_weight(name)
        ours = Preprocess.imagenet(resize=256 if name.endswith("V1") else 232)
    expected = weights.transforms()(image).numpy()
    actual = ours(image)
    assert actual.dtype == np.float32
    assert actual.shape == (1, *expected.shape)
    assert np.abs(actual[0] - expected).max() <= 1e-6


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_transform_of_clip(size):
    image = PIL.Image.fromarray(pixels(*size))
    clip = v2.Compose(
        [
            v2.Resize(224, interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(224),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ]
    )
    assert np.abs(Preprocess.clip()(image)[0] - clip(image).numpy()).max() <= 1e-6


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("resize", "crop"), [((40, 60), None), (50, (70, 30)), (None, 90), (33, 36)])
def test_every_interpolation_and_size(mode, resize, crop):
    image = PIL.Image.fromarray(pixels(61, 83))
    steps = [] if resize is None else [v2.Resize(resize, interpolation=v2.InterpolationMode(mode))]
    steps += [] if crop is None else [v2.CenterCrop(crop)]
    expected = v2.Compose([*steps, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])(image)
    actual = Preprocess(resize, crop, interpolation=mode)(image)
    assert np.abs(actual[0] - expected.numpy()).max() <= 1e-6


CONFIGS = [
    ("CLIPImageProcessor", {"size": {"shortest_edge": 30}, "crop_size": {"height": 30, "width": 30}}),
    ("CLIPImageProcessor", {"size": 40, "crop_size": 24, "do_normalize": False}),
    ("ViTImageProcessor", {"size": {"height": 32, "width": 48}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}),
    ("ViTImageProcessor", {"size": 32, "do_rescale": False, "do_normalize": False, "resample": 3}),
    ("ViTImageProcessor", {"size": 32, "do_resize": False}),
]


@pytest.mark.parametrize(("kind", "options"), CONFIGS)
@pytest.mark.parametrize("size", [(61, 83), (47, 35), (67, 64)])
def test_equals_the_processors_of_transformers(kind, options, size, tmp_path):
    import transformers

    processor = getattr(transformers, f"{kind}Pil", None) or getattr(transformers, kind)
    processor = processor(**options)
    processor.save_pretrained(tmp_path)
    image = PIL.Image.fromarray(pixels(*size))
    expected = processor(image, return_tensors="np")["pixel_values"]
    actual = Preprocess.from_folder(tmp_path)(image)
    assert actual.shape == expected.shape
    # transformers multiplies by 1/255 and divides by its standard deviations in another order.
    assert np.abs(actual - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


# --- what images may be -----------------------------------------------------------------------------------------


def test_a_file_an_image_and_an_array_are_the_same(tmp_path):
    array = pixels(20, 30)
    image = PIL.Image.fromarray(array)
    path = tmp_path / "image.png"
    image.save(path)
    preprocess = Preprocess(16, 12)
    expected = preprocess(image)
    with open(path, "rb") as file:
        sources = [str(path), path, path.read_bytes(), file, array, array.astype(np.int64), torch.from_numpy(array)]
        sources += [array / 255, (array / 255).astype(np.float32), array.astype(np.uint16) * 257]
        for source in sources:
            assert np.array_equal(preprocess(source), expected)
    batch = preprocess([str(path), image, array])
    assert np.array_equal(batch, np.repeat(expected, 3, axis=0))
    assert np.array_equal(preprocess(np.stack([array] * 3)), batch)


def test_grey_palette_two_colours_and_cmyk():
    gray = PIL.Image.fromarray(pixels(9, 7, 1)[..., 0])
    color = PIL.Image.fromarray(pixels(9, 7))
    for image in (gray, color.quantize(16), gray.convert("1"), color.convert("CMYK"), color.convert("YCbCr")):
        expected = np.asarray(image.convert("RGB"))
        assert np.array_equal(np.asarray(read_image(image)), expected)
    assert np.array_equal(np.asarray(read_image(pixels(9, 7, 1))), np.asarray(gray.convert("RGB")))
    assert np.asarray(read_image(np.array([[True, False]]))).tolist() == [[[255] * 3, [0] * 3]]
    assert np.array_equal(read_image(encoded(color.convert("CMYK"), "TIFF")), color.convert("CMYK").convert("RGB"))


def test_transparency_shows_the_background():
    rgba = pixels(8, 8, 4, seed=1)
    alpha = rgba[..., 3:].astype(np.float64) / 255
    for background in ((255, 255, 255), (0, 0, 0), (10, 200, 30)):
        expected = rgba[..., :3] * alpha + np.array(background) * (1 - alpha)
        for source in (PIL.Image.fromarray(rgba), rgba, encoded(PIL.Image.fromarray(rgba))):
            actual = np.asarray(read_image(source, background)).astype(np.float64)
            assert np.abs(actual - expected).max() <= 1
    opaque = rgba.copy()
    opaque[..., 3] = 255
    assert np.array_equal(np.asarray(read_image(opaque)), opaque[..., :3])
    assert np.asarray(read_image(np.array([[[7, 0]]], np.uint8))).tolist() == [[[255] * 3]]
    palette = PIL.Image.new("P", (1, 1))
    palette.putpalette([200, 0, 0])
    data = encoded(palette, transparency=0)
    assert np.asarray(read_image(data, (1, 2, 3))).tolist() == [[[1, 2, 3]]]


def test_sixteen_bits_become_eight():
    wide = np.array([[0, 128, 257, 32896, 65535]], np.uint16)
    png = encoded(PIL.Image.fromarray(wide))
    for source in (png, PIL.Image.fromarray(wide), wide):
        assert np.asarray(read_image(source))[0, :, 0].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_cameras(orientation):
    upright = pixels(6, 4)
    # What a camera stores, so that turning it as EXIF says gives the upright picture.
    undo = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.transpose(1, 0, 2),
        6: lambda x: np.rot90(x, 1),
        7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
        8: lambda x: np.rot90(x, -1),
    }
    stored = PIL.Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image = read_image(encoded(stored, exif=exif))
    assert np.array_equal(np.asarray(image), upright)


def test_one_pixel():
    image = Preprocess.imagenet()(np.full((1, 1, 3), 255, np.uint8))
    assert image.shape == (1, 3, 224, 224)
    assert np.allclose(image[0, :, 0, 0], (1 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225]))


# --- what is wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"])
def test_damaged_files(form, tmp_path):
    good = encoded(PIL.Image.fromarray(pixels(40, 40)), form)
    rng = np.random.default_rng(0)
    path = tmp_path / "image"
    for cut in (0, 1, 7, 20, len(good) // 2):
        path.write_bytes(good[:cut])
        with pytest.raises(ModelFileError, match="image"):
            read_image(path)
    for _ in range(60):
        data = np.frombuffer(good, np.uint8).copy()
        where = rng.integers(0, min(len(data), 200), 4)
        data[where] = rng.integers(0, 256, 4)
        try:
            image = read_image(data.tobytes())
        except (ModelFileError, InvalidValueError) as error:
            assert error.message
        else:
            assert image.mode == "RGB"


def test_a_file_that_lies_about_its_size():
    def chunk(kind, body):
        import zlib

        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 2**30, 2**30, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")
    with pytest.raises(ModelFileError, match="pixels"):
        read_image(bomb)
    with pytest.raises(InvalidValueError, match="would become"):
        Preprocess.imagenet()(np.zeros((1, 100_000, 3), np.uint8))


def test_errors_of_images(tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_image(tmp_path)
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ModelFileError, match="no known format"):
        read_image(tmp_path / "text.png")
    wrong = {
        "channels come last": np.zeros((3, 8, 9), np.uint8),
        "1 to 4 channels": np.zeros((8, 9, 7), np.uint8),
        "no pixels": np.zeros((0, 9, 3), np.uint8),
        "integers from 0 to 300": np.array([[0, 300]]),
        "floats from 0 to 255": np.array([[0.0, 255.0]]),
        "floats from nan": np.array([[0.0, np.nan]]),
        "32 bits": PIL.Image.fromarray(np.array([[70_000]], np.int32)),
        "whose range": PIL.Image.fromarray(np.array([[0.5]], np.float32)),
        "cannot be converted to an array": object(),
        "cannot be converted to an array of numbers": np.array([["a"]]),
    }
    for message, source in wrong.items():
        with pytest.raises(InvalidValueError, match=message):
            read_image(source)


def test_errors_of_preprocessing(tmp_path):
    for empty in ([], np.zeros((0, 4, 4, 3), np.uint8)):
        with pytest.raises(InvalidValueError, match="no images"):
            Preprocess.imagenet()(empty)
    with pytest.raises(InvalidValueError, match="different sizes: 4 by 5, 5 by 4"):
        Preprocess()([pixels(4, 5), pixels(5, 4)])
    wrong = [{"resize": 0}, {"resize": (1, 2, 3)}, {"crop": "all"}, {"std": 0}, {"mean": (1, 2)}, {"std": [1, 0, 1]}]
    for options in [*wrong, {"interpolation": "cubic"}, {"crop_rounding": "up"}, {"mean": float("nan")}]:
        with pytest.raises(InvalidValueError, match=next(iter(options))):
            Preprocess(**options)
    with pytest.raises(ModelFileError, match=r"preprocessor_config\.json"):
        Preprocess.from_folder(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "preprocessor_config.json").write_text(text)
        with pytest.raises(ModelFileError, match=r"preprocessor_config\.json"):
            Preprocess.from_folder(tmp_path)
    for config in ({"resample": 9}, {"size": {"longest_edge": 4}}, {"size": "big"}, {"image_mean": [1]}):
        with pytest.raises(InvalidValueError, match=r"resample|size|mean"):
            Preprocess.from_config(config)


# --- classification ---------------------------------------------------------------------------------------------


def test_labels(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"1": "dog", "0": "cat", "2": "bird"}}))
    assert read_labels(tmp_path) == read_labels(tmp_path / "config.json") == ["cat", "dog", "bird"]
    (tmp_path / "names.txt").write_text("cat\r\ngreat white shark\n\n")
    assert read_labels(tmp_path / "names.txt") == ["cat", "great white shark"]
    (tmp_path / "names.txt").write_text("\n")
    with pytest.raises(ModelFileError, match="no names"):
        read_labels(tmp_path / "names.txt")
    (tmp_path / "names.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match="UTF-8"):
        read_labels(tmp_path / "names.txt")
    for config in ({}, {"id2label": {}}, {"id2label": {"1": "a"}}, {"id2label": {"x": "a"}}, {"id2label": []}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelFileError, match="id2label"):
            read_labels(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_labels(tmp_path / "absent.txt")


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=6).eval()


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx"])
def test_classification_equals_that_of_torchvision(name, resnet):
    images = [PIL.Image.fromarray(pixels(40, 60, seed=seed)) for seed in range(5)]
    model = ml.compile(resnet18(num_classes=6), ml.get_backend(name), inference=True, jit=name == "jax")
    model.load_params({k: v for k, v in resnet.state_dict().items() if not k.endswith("num_batches_tracked")})
    classifier = Classifier(model, Preprocess.imagenet(48, 52), list("abcdef"))
    transform = v2.Compose([v2.Resize(52), v2.CenterCrop(48), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    transform = v2.Compose([transform, v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
    with torch.no_grad():
        expected = torch.softmax(resnet(torch.stack([transform(image) for image in images])), 1)
    actual = classifier.classify(images, top=3, batch_size=2)
    values, order = expected.sort(dim=1, descending=True)
    assert [[p.label for p in row] for row in actual] == [["abcdef"[i] for i in row[:3]] for row in order.tolist()]
    assert np.abs(np.array([[p.probability for p in row] for row in actual]) - values[:, :3].numpy()).max() < 1e-4


def test_errors_of_classification(resnet):
    model = ml.compile(resnet18(num_classes=6), ml.NumpyBackend(), inference=True)
    image = pixels(40, 40)
    preprocess = Preprocess(32, 32)
    assert len(Classifier(model, preprocess).classify(image, top=100)[0]) == 6
    with pytest.raises(InvalidValueError, match="2 labels, and the model has 6"):
        Classifier(model, preprocess, ["a", "b"]).classify(image)
    for options in ({"top": 0}, {"top": 1.5}, {"batch_size": 0}):
        with pytest.raises(InvalidValueError, match=next(iter(options))):
            Classifier(model, preprocess).classify(image, **options)
    with pytest.raises(InvalidValueError, match="no images"):
        Classifier(model, preprocess).classify([])
