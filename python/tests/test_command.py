"""The command line: which weights a command runs with, options, mistakes, and how it ends."""

import os
import signal
import subprocess
import sys
import time

import mithril as ml
import numpy as np
import pytest
import torch
import transformers
from mithril.__main__ import main
from mithril.models import from_config
from networks import classifier

TINY = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
SHAPE = ["--shape", "input=1,4"]
FORMS = ("safetensors", "sharded", "bin", "pt", "gguf", "gguf file")


@pytest.fixture(scope="module")
def decoder():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **TINY))


@pytest.fixture(params=FORMS)
def checkpoint(request, decoder, tmp_path):
    """A folder, or a file, with a model and its weights."""
    form, folder = request.param, tmp_path / "checkpoint"
    if form in ("safetensors", "sharded"):
        decoder.save_pretrained(folder, **({"max_shard_size": "8KB"} if form == "sharded" else {}))
        assert (folder / "model.safetensors.index.json").exists() == (form == "sharded")
        return folder
    decoder.config.save_pretrained(folder)
    if form in ("bin", "pt"):
        torch.save(decoder.state_dict(), folder / ("pytorch_model.bin" if form == "bin" else "weights.pt"))
        return folder
    compiled = ml.compile(from_config(folder), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    ml.load_weights(compiled, dict(decoder.state_dict()))
    target = folder / "model.gguf"
    ml.save_gguf(compiled, target)
    return target if form == "gguf file" else folder


def recorded(folder):
    """Data and outputs that the exported program is compared with."""
    return (folder / "model.check").read_bytes()


def test_what_has_weights_is_exported_with_them(checkpoint, tmp_path, capsys):
    assert main(["export", str(checkpoint), str(tmp_path / "out"), *SHAPE]) == 0
    printed = capsys.readouterr().out
    assert f"weights: {checkpoint}" in printed
    assert "random" not in printed
    assert "random" not in (tmp_path / "out" / "README.md").read_text()
    compiled = ml.compile(from_config(checkpoint), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    ml.load_weights(compiled, checkpoint)
    compiled.export(tmp_path / "expected")
    assert recorded(tmp_path / "out") == recorded(tmp_path / "expected")
    # What was drawn computes something else, on the same data, and says so.
    assert main(["export", str(checkpoint), str(tmp_path / "drawn"), *SHAPE, "--random-weights"]) == 0
    assert "random numbers" in capsys.readouterr().out
    assert "random numbers" in (tmp_path / "drawn" / "README.md").read_text()
    assert recorded(tmp_path / "out") != recorded(tmp_path / "drawn")


def test_what_has_no_weights_is_drawn_on_request_alone(decoder, tmp_path, capsys):
    decoder.config.save_pretrained(tmp_path / "bare")
    decoder.save_pretrained(tmp_path / "whole")
    ml.save(classifier(), tmp_path / "model.json")
    cases = {
        str(tmp_path / "bare"): "holds no weights",
        str(tmp_path / "whole" / "config.json"): f"give the folder '{tmp_path / 'whole'}'",
        str(tmp_path / "model.json"): "holds a model without weights",
        "resnet18": "comes without weights",
    }
    commands = {
        "export": [str(tmp_path / "out")],
        "profile": ["--num-runs", "1"],
        "bench": ["--backend", "numpy", "--num-runs", "1"],
        "compare": ["--backend", "c"],
    }
    for command, further in commands.items():
        for name, reason in cases.items():
            assert main([command, name, *further, "--shape", "input=2,5"]) == 1, (command, name)
            printed = capsys.readouterr().err
            assert reason in printed
            assert "--random-weights" in printed
        options = ["--shape", "input=2,5", "--random-weights"]
        assert main([command, str(tmp_path / "model.json"), *further, *options]) == 0
        assert "random numbers" in capsys.readouterr().out
    assert main(["bench", "create_gpt", "--backend", "numpy", "--random-weights", "--weights", "x"]) == 1
    assert "contradict each other" in capsys.readouterr().err


def test_a_model_without_parameters_needs_no_weights(tmp_path, capsys):
    model = ml.Model()
    model |= ml.Relu()(input="input", output="output")
    ml.save(model, tmp_path / "model.json")
    assert main(["bench", str(tmp_path / "model.json"), "--backend", "numpy", "--shape", "input=3"]) == 0
    assert main(["export", str(tmp_path / "model.json"), str(tmp_path / "out"), "--shape", "input=3"]) == 0
    assert "weights:" not in capsys.readouterr().out


def test_weights_of_another_file_with_running_statistics(tmp_path, capsys):
    model = ml.Model()
    model |= ml.BatchNorm1d(name="norm")(input="input", output="output")
    ml.save(model, tmp_path / "model.json")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]}, inference=True)
    compiled.get_parameters()
    compiled.state = {name: value + 3 for name, value in compiled.state.items()}
    ml.save({**compiled.get_parameters(), **compiled.state}, tmp_path / "weights.safetensors")
    words = [str(tmp_path / "model.json"), "--weights", str(tmp_path / "weights.safetensors"), "--shape", "input=4,3"]
    assert main(["export", *words, str(tmp_path / "out")]) == 0
    compiled.export(tmp_path / "expected")
    assert recorded(tmp_path / "out") == recorded(tmp_path / "expected")
    for command in ("compare", "bench"):
        assert main([command, *words, "--backend", "c", "--backend", "numpy", "--inference"]) == 0
        assert "weights.safetensors" in capsys.readouterr().out


def test_compare_and_benchmark_take_running_statistics():
    model = ml.Model()
    model |= ml.BatchNorm1d(name="norm")(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]}, inference=True)
    values = {**compiled.randomize_params(seed=0), **{name: value + 3 for name, value in compiled.state.items()}}
    data = {"input": np.ones((4, 3), np.float32)}
    comparison = ml.compare(model, ["numpy", "c"], data=data, params=values, inference=True)
    compiled.load_params(values)
    expected = compiled.evaluate(compiled.get_parameters(), data)["output"]
    for report in comparison.reports.values():
        np.testing.assert_allclose(report.outputs["output"], expected, rtol=1e-6)
    assert ml.benchmark(model, [4, 3], "numpy", 2, params=values)
    with pytest.raises(ml.errors.MithrilError, match="nobody"):
        ml.compare(model, ["numpy"], data=data, params={"nobody": 1.0})


def test_the_api_says_that_weights_are_random_where_nobody_gave_any(tmp_path):
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]}, inference=True)
    exported = compiled.export(tmp_path / "drawn")
    assert exported.is_random
    assert "weights are random numbers" in str(exported)
    assert "weights are random numbers" in (tmp_path / "drawn" / "README.md").read_text()
    exported = compiled.export(tmp_path / "given", params=compiled.randomize_params(seed=1))
    assert not exported.is_random
    assert "random" not in (tmp_path / "given" / "README.md").read_text()


@pytest.fixture
def model(tmp_path):
    ml.save(classifier(), tmp_path / "model.json")
    return [str(tmp_path / "model.json"), str(tmp_path / "out"), "--random-weights"]


def test_options_of_export(model, tmp_path, capsys):
    out = tmp_path / "out"

    def export(*words, shape="input=2,5"):
        code = main(["export", *model, "--shape", shape, *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert export("--dtype", "float64")[0] == 0
    assert "double" in (out / "model.c").read_text()
    assert export("--lanes", "4")[0] == 0
    assert "MITHRIL_VECTOR 4" in (out / "model.c").read_text()
    assert export("--batch", "n", shape="input=n,5")[0] == 0
    assert "model_run_batch" in (out / "model.h").read_text()
    assert export("--precision", "bfloat16")[0] == 0
    assert "bfloat16" in (out / "model.c").read_text()
    with pytest.raises(SystemExit, match="2"):
        export("--precision", "float8")
    assert "available: float16, bfloat16" in capsys.readouterr().err.lower()
    assert export("--gradients")[0] == 0
    assert "gradient" in (out / "README.md").read_text()
    assert export("--threads", "2")[0] == 0
    assert ", 2); /* 2 threads */" in (out / "README.md").read_text()
    assert export("--quantize", "int8")[0] == 0
    assert "int8_t" in (out / "model.c").read_text()
    for file in out.iterdir():
        file.unlink()
    code, text = export("--memory-limit", "8")
    assert (code, "the limit is 8" in text) == (1, True)
    assert list(out.iterdir()) == []
    assert export("--memory-limit", "1MB")[0] == 0
    for words, reason in {
        ("--lanes", "3"): "3",
        ("--threads", "0"): "threads is 0",
        ("--memory-limit", "much"): "much",
        ("--quantize", "int9"): "int9",
        ("--dtype", "floot32"): "floot32",
        ("--batch", "m"): "'m'",
    }.items():
        code, text = export(*words)
        assert code == 1
        assert reason in text, text


def test_inference_of_compare_check_and_bench(tmp_path, capsys):
    model = ml.Model()
    model |= ml.Dropout(0.5)(input="input", output="output")
    ml.save(model, tmp_path / "model.json")
    words = [str(tmp_path / "model.json"), "--shape", "input=2,5", "--backend", "numpy"]
    for command in ("check", "compare", "bench"):
        assert main([command, *words, "--inference"]) == 0
    assert main(["check", *words]) == 0
    text = capsys.readouterr().out
    assert "dropout" in text.lower() or "random" in text.lower()
    assert main(["bench", *words, "--inference", "--training"]) == 1
    assert main(["check", *words, "--inference", "--gradients"]) == 1


def test_a_device_is_that_of_frameworks(capsys):
    pytest.importorskip("torch")
    words = ["resnet18", "--random-weights", "--shape", "input=1,3,32,32", "--inference"]
    assert main(["compare", *words, "--backend", "numpy,torch", "--device", "cpu", "--dtype", "float64"]) == 0
    assert "float64" in capsys.readouterr().out
    for command, message in (
        (["compare", *words, "--backend", "numpy", "--device", "cuda"], "numpy computes on the processor"),
        (["bench", *words, "--backend", "c,numpy", "--device", "cuda"], "c and numpy compute on the processor"),
        (["check", "resnet18", "--shape", "input=1,3,32,32", "--backend", "torch", "--device", "cuda:63"], "cuda:63"),
        (
            ["bench", "--table", "inference", "--backend", "numpy", "--device", "cuda"],
            "numpy computes on the processor",
        ),
        (["generate", ".", "--prompt", "a", "--backend", "c", "--device", "cuda"], "c computes on the processor"),
    ):
        assert main(command) == 1
        assert message in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert "usage: mithril" in printed.out
    assert "export" in printed.out
    assert not printed.err


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        (["exprot", "x"], "did you mean export?"),
        (["benchmark"], "did you mean bench?"),
        (["zzz"], "available: generate"),
        (["doctor", "--markdwon"], "did you mean --markdown?"),
        (["summary", "model.json", "--shpae=input=2"], "did you mean --shape?"),
        (["summary", "model.json", "more"], "more"),
    ],
)
def test_what_is_misspelled_is_guessed(words, guess, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert guess in capsys.readouterr().err


def run(*words, **options):
    command = [sys.executable, "-m", "mithril", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_errors_show_no_line_of_python(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": -3}')
    (tmp_path / "empty").mkdir()
    cases = [
        ("summary", str(tmp_path)),
        ("export", str(tmp_path / "empty"), str(tmp_path / "out")),
        ("bench", "resnet18", "--backend", "numpy", "--shape", "input=1,2", "--random-weights"),
        ("generate", str(tmp_path / "empty"), "--prompt", "x"),
        ("classify", str(tmp_path / "empty"), "--image", "x"),
        ("quantize", str(tmp_path / "empty"), str(tmp_path / "o.gguf"), "--type", "q8_0"),
    ]
    for words in cases:
        done = run(*words)
        assert done.returncode == 1, words
        assert "error[M" in done.stderr
        for text in ("Traceback", ".py", "<frozen", 'File "', "shapes={"):
            assert text not in done.stderr, done.stderr


def test_a_defect_asks_for_a_report(monkeypatch, capsys):
    def broken(path):
        raise RuntimeError("what nobody foresaw")

    monkeypatch.setitem(sys.modules["mithril.__main__"]._RUN, "doctor", broken)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().err
    assert "what nobody foresaw" in printed
    assert "MITHRIL_TRACEBACK=1" in printed
    monkeypatch.setenv("MITHRIL_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        main(["doctor"])


@pytest.mark.parametrize("wait", [0.1, 0.4, 2])
def test_an_interrupt_is_quiet(tmp_path, wait):
    ml.save(classifier(), tmp_path / "model.json")
    words = ["bench", str(tmp_path / "model.json"), "--shape", "input=8,5", "--backend", "interpreter"]
    command = [sys.executable, "-c", "import sys, mithril.__main__ as m; print('up', flush=True); sys.exit(m.main())"]
    process = subprocess.Popen(
        [*command, *words, "--random-weights", "--num-runs", "10000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "up\n"
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there do not break so")
def test_a_reader_that_goes_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "mithril", "backends"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_plans(capsys):
    words = ["plan", "create_gpt", "--shape", "input=8,16", "--mesh", "data=2,model=4"]
    assert main([*words, "--batch", "data", "--parameters", "model", "--gradients"]) == 0
    printed = capsys.readouterr().out
    assert "all_reduce" in printed
    assert "Mesh(data=2, model=4): each of 8 devices sends" in printed
    assert main([*words, "--divide", "*.c_fc.weight=model", "--markdown"]) == 0
    assert "| all_reduce | model (4) |" in capsys.readouterr().out
    staged = ["plan", "create_gpt", "--shape", "input=8,16", "--mesh", "stage=2", "--strategy", "pipeline_parallel"]
    assert main([*staged, "--schedule", "gpipe", "--micro-batches", "2"]) == 0
    assert "Pipeline(2, micro_batches=2, schedule='gpipe'): 2 micro-batches" in capsys.readouterr().out
    assert main([*words, "--schedule", "gpipe"]) != 0
    assert "--strategy pipeline_parallel" in capsys.readouterr().err
    estimated = ["--hardware", "a100:link_bandwidth=1e9", "--optimizer", "adamw"]
    assert main([*words, "--strategy", "data=data_parallel,model=tensor_parallel", *estimated]) == 0
    printed = capsys.readouterr().out
    assert "a step takes about" in printed
    assert "optimizer" in printed
    assert main([*words, "--strategy", "auto", *estimated]) == 0
    assert "chosen of" in capsys.readouterr().out
    for wrong, text in (
        (["--strategy", "data_paralel"], "did you mean 'data_parallel'"),
        (["--strategy", "data_parallel"], "give one for each axis"),
        (["--strategy", "data=data_parallel,data"], "has the part 'data'"),
        (["--strategy", "data=data_parallel"], "does not say what is divided along 'model'"),
        (["--strategy", "auto"], "needs to know the devices"),
        (["--strategy", "auto", "--batch", "data"], "leave out one of them"),
        (["--hardware", "a10"], "did you mean 'a100'"),
        (["--hardware", "a100:links=1"], "is not a figure of it"),
        (["--hardware", "a100:memory=much"], "is not a number"),
        (["--optimizer", "adm"], "there is none called 'adm'"),
        (["--batch", "dta"], "did you mean 'data'"),
        (["--mesh", "data"], "--mesh data has the axis 'data'"),
        (["--mesh", "data=2,data=2"], "two axes 'data'"),
        (["--mesh", "data=3"], "does not divide into 3 parts"),
        (["--divide", "lm_head"], "names no axes"),
    ):
        assert main([*words, *wrong]) == 1
        assert text in capsys.readouterr().err


@pytest.mark.parametrize("module", ["mithril.interrupts", "numpy", "mithril._generated.layers"])
def test_an_interrupt_while_importing_is_quiet(module):
    """The interpreter says what it has imported; then it is interrupted."""
    command = [sys.executable, "-X", "importtime", "-m", "mithril", "backends"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr.readline, "")
        assert any(line.rstrip().endswith(f" {module}") for line in lines)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors


def test_importing_leaves_interrupts_alone():
    program = "import signal, mithril; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )
