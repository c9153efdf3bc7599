"""Models as pages, pictures and diagrams: what they hold, that hostile names do no harm, where boxes lie."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError
from mithril.viewer.closed import close
from mithril.viewer.data import graph_of
from mithril.viewer.mermaid import mermaid
from mithril.viewer.page import page
from mithril.viewer.svg import svg

FOLDER = Path(ml.__file__).parent / "viewer"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<img src=x onerror=alert(1)>",
    '"q"',
    "'q'",
    "a\u202eb",
    "a\u2028b",
]
HOSTILE += ["]]>", "x\\", "#quot;", "`b`", "end", "@DATA@", "&lt;"]


class _Parts(HTMLParser):
    """Elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.titles = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        {"script": self.scripts, "title": self.titles}.get(self.elements[-1][0] if self.elements else "", []).append(
            data
        )


def _embedded(text):
    return json.loads(_Parts(text).scripts[0])


@pytest.fixture(scope="module")
def resnet():
    model = ml.models.resnet18()
    return ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [1, 3, 32, 32]}, inference=True)


@pytest.fixture(scope="module")
def shown(resnet):
    return ml.view(resnet)


def _small():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model += ml.Relu()(output="output")
    return model


# --- the page -----------------------------------------------------------------------------------------------------


def test_the_page_holds_every_node_and_edge(resnet, shown):
    """Compared with the text of the stages, read line by line."""
    data = _embedded(shown.html())
    stages = resnet.stages
    assert [name for name, *_ in data["stages"]] == list(stages)
    for name, graph, text in data["stages"]:
        assert "\n".join(data["texts"][text]["lines"]) == stages[name]
        assert len(data["texts"][text]["links"]) == len(data["texts"][text]["lines"])
        if not stages[name].startswith("graph {"):
            continue
        drawn = data["graphs"][graph]
        weights = set(re.findall(r"^  (?:param|state) (%\d+) ", stages[name], re.MULTILINE))
        ops, reads = [], []
        for line in stages[name].splitlines():
            if line.startswith("  %"):
                left, right = line.split(" = ", 1)
                ops.append((right.split("(")[0], re.search(r'in "(.*)"$', right).group(1)))
                used = re.findall(r"%\d+", right)
                reads.append(([v for v in used if v not in weights], [v for v in used if v in weights]))
                assert re.search(r"%\d+", left)
        assert [(node["op"], node["path"]) for node in drawn["nodes"]] == ops
        assert [len(node["inputs"]) for node in drawn["nodes"]] == [len(data) for data, _ in reads]
        assert [len(node["params"]) for node in drawn["nodes"]] == [len(weights) for _, weights in reads]
        defined = {value for value, *_ in drawn["inputs"]} | {v for n in drawn["nodes"] for v, *_ in n["outputs"]}
        assert {v for node in drawn["nodes"] for v in node["inputs"]} <= defined
        assert {v for _, v in drawn["outputs"]} <= defined
    first = data["graphs"][data["stages"][0][1]]
    assert sum(node["weights"] for node in first["nodes"]) == 11_689_512  # what torchvision's ResNet-18 has


def test_the_page_loads_nothing(shown):
    parts = _Parts(shown.html())
    assert not [attributes for _, attributes in parts.elements if "src" in attributes or "href" in attributes]
    policy = [a for tag, a in parts.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"].startswith("default-src 'none'")
    for address in re.findall(r"https?://[^\"'\s]*", "".join(parts.scripts[1:])):
        assert address == "http://www.w3.org/2000/svg"  # the name of a namespace


@pytest.mark.parametrize("backend", [ml.NumpyBackend(), ml.CBackend(num_threads=1)], ids=lambda b: b.name)
def test_lines_of_the_source_lead_to_their_nodes(backend):
    """Every node of the last graph is linked from a line that names what it computes."""
    model = ml.models.resnet18()
    data = ml.view(model, shapes={"input": [1, 3, 32, 32]}, backend=backend).data
    text = data["texts"][data["source"]]
    linked = {key for keys in text["links"] for key in keys}
    graph = data["graphs"][0]
    outputs = {name for name, _ in graph["outputs"]}
    if backend.name == "numpy":
        missing = [n["path"] for n in graph["nodes"] if not linked & {f"p:{n['path']}|{n['op']}", n["keys"][0]}]
        assert not missing
        line = next(i for i, line in enumerate(text["lines"]) if "layer1_0_conv1 = " in line)
        assert text["links"][line][0] == "v:layer1_0_conv1"
    else:
        # Fused steps compute the last value of several nodes; weights are named in what packs them.
        for node in graph["nodes"]:
            assert not node["params"] or linked & set(node["keys"]), node["path"]
    assert outputs


@pytest.mark.parametrize(
    "backend", [ml.NumpyBackend(), ml.CBackend(num_threads=1), ml.TorchBackend()], ids=lambda b: b.name
)
def test_gradients_are_shown(backend):
    model = _small()
    view = ml.view(model, shapes={"input": [2, 8]}, backend=backend, gradients=True, stage="differentiate")
    compiled = ml.compile(model, backend, shapes={"input": [2, 8]}, autodiff="graph")
    stages = compiled.gradient_stages
    assert [name for name, *_ in view.data["stages"]] == list(stages)
    text = view.data["texts"][view.data["source"]]
    assert "\n".join(text["lines"]) == compiled.gradient_source
    graph = view.data["graphs"][next(index for name, index, _ in view.data["stages"] if name == "differentiate")]
    gradients = {name for name, _ in graph["outputs"] if name.startswith("gradient:")}
    assert gradients == {f"gradient:{key}" for key in compiled.parameter_keys}
    assert [name for _, name, role, _ in graph["inputs"] if role == "cotangent"] == ["gradient:output"]
    backward = [n for n in graph["nodes"] if n["path"].startswith("gradients.")]
    assert {n["path"] for n in graph["nodes"]} == {"linear", "relu", "gradients.linear", "gradients.relu"}
    assert {n["op"] for n in backward} == {"where", "matrix_transpose", "matmul", "sum", "reshape"}
    linked = {key for keys in text["links"] for key in keys}
    assert all(linked & set(node["keys"]) for node in graph["nodes"] if node["params"])
    assert (view.data["memory"] is not None) == (backend.name == "c")
    _check_mermaid(view.mermaid())


def test_stages_that_are_not_graphs_are_linked_by_paths(shown):
    text = next(shown.data["texts"][text] for name, _, text in shown.data["stages"] if name == "memory_planning")
    paths = {key for graph in shown.data["graphs"] for node in graph["nodes"] for key in node["keys"]}
    steps = [i for i, line in enumerate(text["lines"]) if re.match(r"x\d+(\[.*?\])? = ", line)]
    assert len(steps) > 15
    for i in steps:
        assert text["links"][i][0] in paths, text["lines"][i]


def test_the_memory_plan_has_no_two_tensors_in_the_same_place_at_the_same_time(shown):
    plan = shown.data["memory"]
    tensors = plan["tensors"]
    assert len(tensors) > 10
    for i, (name, offset, size, first, last, _) in enumerate(tensors):
        assert offset + size <= plan["total"], name
        for other, at, other_size, other_first, other_last, _ in tensors[:i]:
            is_together = first <= other_last and other_first <= last
            assert not (is_together and offset < at + other_size and at < offset + size), (name, other)
    # Sizes are those of the layout: the last tensor ends where the arena does.
    assert max(offset + size for _, offset, size, *_ in tensors) > plan["total"] - 64
    assert ml.view(_small(), shapes={"input": [2, 3]}).data["memory"] is None


def test_the_stage_that_is_asked_for_is_shown(resnet):
    view = ml.view(resnet, stage="prune")  # formerly, dce
    assert view.stage == "dce"
    assert _embedded(view.html())["stage"] == "dce"
    legalized = ml.view(resnet, stage="legalize")
    assert legalized.mermaid(9) != view.mermaid(9)
    assert "prelude" not in repr(view)
    assert "<iframe srcdoc=" in view._repr_html_()


# --- names --------------------------------------------------------------------------------------------------------


def _hostile_graph():
    """A graph whose names are hostile; the core refuses most of them, files of the future may not."""
    nodes = []
    for i, name in enumerate(HOSTILE):
        row = {"op": name, "path": f"{name}.{name}", "where": name, "inputs": [i], "outputs": [[i + 1, name, name]]}
        nodes.append({**row, "params": [[name, name]], "weights": 1, "literals": name, "keys": [f"v:{name}"]})
    return {"inputs": [[0, HOSTILE[0], "data", "f"]], "nodes": nodes, "outputs": [[HOSTILE[0], len(HOSTILE)]]}


def test_hostile_names_stay_text():
    graph = _hostile_graph()
    texts = [{"lines": HOSTILE, "links": [[] for _ in HOSTILE]}]
    data = {"backend": "x", "stages": [["infer", 0, 0]], "graphs": [graph], "texts": texts, "source": 0, "memory": None}
    harmless = _Parts(page({**data, "graphs": [], "texts": []}, "title"))
    for title in HOSTILE:
        text = page({**data, "stage": "infer"}, title)
        parts = _Parts(text)
        assert [tag for tag, _ in parts.elements] == [tag for tag, _ in harmless.elements]
        assert not re.search("[\u202e\u2028]", text)
    embedded = _embedded(text)
    expected = [name.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028") for name in HOSTILE]
    assert [node["op"] for node in embedded["graphs"][0]["nodes"]] == expected
    for depth in (1, 2):
        closed = close(graph, depth)
        picture = ElementTree.fromstring(svg(closed))
        assert {element.tag.removeprefix(SVG) for element in picture.iter()} <= {
            *("svg", "defs", "marker", "path", "rect", "text", "g", "title")
        }
        _check_mermaid(mermaid(closed))


def test_hostile_names_of_a_model_stay_text():
    model = ml.Model()
    model |= ml.Linear(2)(input="</script>", output="a'<b>&")
    view = ml.view(model, shapes={"</script>": [2, 3]}, title="</title>")
    assert len([tag for tag, _ in _Parts(view.html()).elements if tag == "script"]) == 2
    ElementTree.fromstring(view.svg())
    _check_mermaid(view.mermaid())


# --- pictures -----------------------------------------------------------------------------------------------------


def _check_mermaid(text):
    """The part of Mermaid's grammar that is used."""
    lines = text.splitlines()
    assert lines[0] == "flowchart TD"
    label, nodes, depth = r'[^"]+', set(), 0
    for line in lines[1:]:
        node = re.fullmatch(rf'\s+(n\d+)(\["{label}"\]|\[\["{label}"\]\]|\(\["{label}"\]\))', line)
        edge = re.fullmatch(rf'  (n\d+) -->\|"{label}"\| (n\d+)', line)
        if node:
            assert node.group(1) not in nodes
            nodes.add(node.group(1))
        elif edge:
            assert {edge.group(1), edge.group(2)} <= nodes
        elif re.fullmatch(rf'\s+subgraph g\d+\["{label}"\]', line):
            depth += 1
        else:
            assert line.strip() == "end", line
            depth -= 1
        assert depth >= 0
        # Within labels only breaks of lines and numbers of characters.
        assert not re.search(r"<(?!br>)|&|`|\\", line), line
    assert depth == 0
    return nodes


@pytest.mark.parametrize("depth", [1, 2, 9])
def test_diagrams_and_pictures_have_every_box(shown, depth):
    graph = close(shown._graph(), depth)
    assert len(_check_mermaid(shown.mermaid(depth))) == len(graph.boxes)
    picture = ElementTree.fromstring(shown.svg(depth))
    assert len(picture.findall(f"{SVG}g")) == len(graph.boxes)
    assert len(picture.findall(f"{SVG}path")) == len(graph.edges)
    rects = [
        {k: float(g.find(f"{SVG}rect").get(k)) for k in ("x", "y", "width", "height")}
        for g in picture.findall(f"{SVG}g")
    ]
    for i, a in enumerate(rects):
        for b in rects[:i]:
            is_beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert is_beside or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
    assert depth == 9 or len(graph.boxes) < 25
    assert depth != 9 or len(graph.boxes) == len(shown._graph()["nodes"]) + 2


# --- the layout ---------------------------------------------------------------------------------------------------

CHECKS = r"""
const { buildTree, openAtFirst, layout, texts } = require(process.argv[1]);
const graph = JSON.parse(require("fs").readFileSync(0, "utf8"));
const tree = buildTree(graph);
const report = { first: openAtFirst(tree), repeats: [], problems: [] };
function check(open) {
  const { boxes, edges } = layout(tree, open);
  const of = new Map(boxes.map((box) => [box.item, box]));
  const meets = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  for (const box of boxes) {
    if (![box.x, box.y, box.w, box.h].every(Number.isFinite)) report.problems.push("no number: " + box.item.id);
    if (!box.isOpen) continue;
    const children = box.item.children.map((child) => of.get(child)).sort((a, b) => a.y - b.y);
    children.forEach((child, i) => {
      const isRight = child.x >= box.x && child.x + child.w <= box.x + box.w;
      if (!isRight || child.y < box.y || child.y + child.h > box.y + box.h) {
        report.problems.push(child.item.id + " leaves " + box.item.id);
      }
      for (let j = i + 1; j < children.length && children[j].y < child.y + child.h; j++) {
        if (meets(child, children[j])) report.problems.push(child.item.id + " meets " + children[j].item.id);
      }
    });
  }
  for (const edge of edges) {
    if (!edge.points.flat().every(Number.isFinite)) report.problems.push("edge without a place");
    if (!of.has(edge.from) || !of.has(edge.to)) report.problems.push("edge to what is not visible");
    if (of.get(edge.from).isOpen || of.get(edge.to).isOpen) report.problems.push("edge to an open box");
  }
  return [boxes.length, edges.length];
}
report.closed = check(new Set([tree.root.id]));
report.start = check(report.first);
const all = new Set(tree.groups.map((at) => at.id));
report.whole = check(all);
const times = [];
for (let i = 0; i < 5; i++) {
  const begin = performance.now();
  layout(tree, all);
  times.push(performance.now() - begin);
}
report.time = Math.min(...times);
report.leaves = tree.leaves.length;
report.repeats = tree.groups.filter((at) => at.repeats).map((at) => texts(at)[0]);
delete report.first;
console.log(JSON.stringify({ ...report, problems: report.problems.slice(0, 5) }));
"""


def _laid_out(graph):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the layout of the page is a program in JavaScript")
    command = [node, "-e", CHECKS, str(FOLDER / "layout.js")]
    done = subprocess.run(command, input=json.dumps(graph), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    return result


def _large(is_nested, count=5000):
    """A graph with branches, long edges and submodels that feed each other back."""
    draw = np.random.default_rng(0)
    nodes = []
    for i in range(1, count + 1):
        reads = {int(draw.integers(max(0, i - 6), i)), i - 1 if i % 7 else int(draw.integers(0, i))}
        path = f"stage{i // 1000}.block{i // 50}.layer{i % 5}.op{i}" if is_nested else ""
        row = {"op": f"op{int(draw.integers(9))}", "path": path, "where": "", "inputs": sorted(reads)}
        outputs = [[i, f"v{i}", "float32[2, 3]"]]
        nodes.append({**row, "outputs": outputs, "params": [], "weights": 0, "literals": "", "keys": []})
    return {"inputs": [[0, "input", "data", "float32[2, 3]"]], "nodes": nodes, "outputs": [["output", count]]}


@pytest.mark.parametrize("is_nested", [True, False], ids=["nested", "flat"])
def test_boxes_of_5000_nodes_do_not_overlap(is_nested):
    layout = _laid_out(_large(is_nested))
    assert layout["leaves"] == 5002
    assert layout["whole"][0] >= 5002
    if is_nested:
        assert layout["closed"][0] < 15
        assert layout["start"][0] < 60
    # 100 ms on a machine that does nothing else.
    assert layout["time"] < 1500


def test_equal_blocks_are_folded(shown):
    model = ml.models.create_gpt(num_layers=6, dims=16, num_heads=2, vocab_size=32, block_size=8)
    graph = ml.view(model, shapes={"input": [1, 4]}).data["graphs"][0]
    layout = _laid_out(graph)
    assert [text for text in layout["repeats"] if re.match("6 . h", text)]
    assert layout["start"][0] < 25
    # Nothing that differs: ResNet-18 has no three equal blocks in a row.
    assert _laid_out(shown.data["graphs"][0])["repeats"] == []


# --- calls --------------------------------------------------------------------------------------------------------


def test_files_are_written_by_their_ending(tmp_path):
    for name, start in (("a.html", "<!DOCTYPE html>"), ("a.svg", "<svg "), ("a.mmd", "flowchart TD")):
        ml.view(_small(), tmp_path / name, shapes={"input": [2, 3]})
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_mistakes_are_errors(tmp_path):
    model, shapes = _small(), {"input": [2, 3]}
    with pytest.raises(InvalidValueError, match=r"\.html, \.svg, \.mmd"):
        ml.view(model, tmp_path / "a.pdf", shapes=shapes)
    with pytest.raises(InvalidValueError, match="html, svg, mermaid"):
        ml.view(model, shapes=shapes).save(tmp_path / "a", format="png")
    with pytest.raises(KeyNotFoundError, match="stages: infer"):
        ml.view(model, shapes=shapes, stage="nothing")
    with pytest.raises(InvalidValueError, match="depth is 0"):
        ml.view(model, shapes=shapes, depth=0)
    with pytest.raises(InvalidValueError, match="the model is a dict"):
        ml.view({})
    with pytest.raises(OSError, match="absent"):
        ml.view(model, tmp_path / "absent" / "a.html", shapes=shapes)
    with pytest.raises(ConflictingOptionError, match="shapes is given"):
        ml.view(ml.compile(model, ml.NumpyBackend(), shapes=shapes), shapes=shapes)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ml.save(_small(), "small.mithril")
    assert main(["view", "small.mithril", "--shape", "input=batch,8"]) == 0
    assert capsys.readouterr().out == "wrote small.html\n"
    assert _Parts(Path("small.html").read_text(encoding="utf-8")).titles[0] == "small"
    assert main(["view", "small.mithril", "--shape", "input=2,8", "--format", "mermaid"]) == 0
    _check_mermaid(capsys.readouterr().out)
    call = ["view", "small.mithril", "--shape", "input=2,8", "--stage", "legalize", "--backend", "c"]
    assert main([*call, "--format", "svg", "--output", "picture"]) == 0
    ElementTree.fromstring(Path("picture").read_text(encoding="utf-8"))
    call = ["view", "small.mithril", "--shape", "input=2,8", "--gradients", "--stage", "differentiate"]
    assert main([*call, "--format", "mermaid"]) == 0
    assert "gradients<br>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "absent/page.html"], "absent"),
        (["--output", "page.pdf"], "--format"),
        (["--stage", "nothing"], "there is no stage 'nothing'"),
        (["--backend", "nothing"], "nothing"),
        (["--depth", "0"], "depth is 0"),
    ],
)
def test_mistakes_of_the_command(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ml.save(_small(), "small.mithril")
    assert main(["view", "small.mithril", "--shape", "input=2,8", *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    with pytest.raises(SystemExit):
        main(["view", "small.mithril", "--format", "pdf"])


def test_a_graph_is_read_back_from_its_text():
    text = 'graph {\n  data %0 "x": f32[n, 2]\n  param %1 "a.w": f32[2]\n'
    text += '  %2 "y": f32[n, 2] = add(%0, %1) in "a"\n  return "y" = %2\n}\n'
    parsed = graph_of(text)
    assert parsed["inputs"] == [[0, "x", "data", "float32[n, 2]"]]
    assert parsed["nodes"][0]["params"] == [["a.w", "float32[2]"]]
    assert parsed["nodes"][0]["weights"] == 2
    assert parsed["outputs"] == [["y", 2]]
    with pytest.raises(ml.MithrilError):
        graph_of("graph { nonsense }")
