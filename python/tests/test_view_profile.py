"""Profiles as flame graphs and roofline plots: sums of times, positions, names, and the page in a browser."""

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import mithril as ml
import pytest
from mithril.__main__ import main
from mithril.errors import ConflictingOptionError, InvalidValueError, UnresolvedShapeError, UnsupportedOpError
from mithril.tools.flame_graph import describe, frames
from mithril.tools.profile import Profile, ProfileRow
from mithril.tools.roofline import roofline
from mithril.viewer.page import page

from tools.browser import CHROMIUM, document

SCRIPTS = Path(ml.__file__).parent / "viewer"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = ["</script><script>alert(1)</script>", "a&b<c>", "'\"", "a\u202eb", "]]>", "&lt;", "x" * 300]


def model():
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="hidden")
    model += ml.Relu()()
    model += ml.Linear(10)(output="logits")
    return model


def row(path, seconds, operations=1000, size=100):
    return ProfileRow(path, path or "step", "loops", seconds, operations, size)


def profile_of(*rows):
    return Profile(rows, sum(r.seconds for r in rows), 3, 1, (1e11, 1e10))


@pytest.fixture(scope="module")
def gpt():
    model = ml.models.create_gpt(num_layers=2, dims=32, num_heads=2, vocab_size=50, block_size=8)
    return ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [1, 8]}, inference=True)


@pytest.fixture(scope="module")
def measured(gpt):
    return gpt.profile(runs=3)


# --- the data -----------------------------------------------------------------------------------------------------


def check_frames(rows_of_frames, rows):
    """Frames cover their children, which neither overlap nor leave gaps; each step is in exactly one of them."""
    assert rows_of_frames[0].depth == 0
    for measure in ("seconds", "operations", "bytes"):
        total = math.fsum(getattr(r, measure) or 0 for r in rows)
        assert getattr(rows_of_frames[0], measure) == pytest.approx(total, rel=1e-9)
        leaves = math.fsum(getattr(frame, measure) for frame in rows_of_frames if frame.row is not None)
        assert leaves == pytest.approx(total, rel=1e-9)
    assert sorted(frame.row for frame in rows_of_frames if frame.row is not None) == list(range(len(rows)))
    for i, frame in enumerate(rows_of_frames):
        inside = []
        for other in rows_of_frames[i + 1 :]:
            if other.depth <= frame.depth:
                break
            if other.depth == frame.depth + 1:
                inside.append(other)
        assert bool(inside) == (frame.row is None)
        at = frame.start
        for child in inside:
            assert child.start == pytest.approx(at, rel=1e-9, abs=1e-15)
            assert child.path.startswith(frame.path)
            at += child.seconds
        assert not inside or at == pytest.approx(frame.start + frame.seconds, rel=1e-9)


def test_widths_of_frames_are_sums_of_steps(measured):
    laid_out = frames(measured.rows, "gpt")
    check_frames(laid_out, measured.rows)
    assert laid_out[0].label == "gpt"
    assert {"transformer", "transformer.h", "transformer.h.1"} <= {f.path for f in laid_out if f.row is None}
    for frame in laid_out:
        if frame.row is not None:
            assert frame.path == measured.rows[frame.row].path


def test_steps_of_a_submodel_are_merged_and_those_of_one_path_stay_apart():
    rows = [row("a.x", 1.0), row("b", 2.0), row("a.y", 4.0, None), row("b", 8.0), row("", 16.0), row("a", 32.0)]
    laid_out = frames(rows)
    check_frames(laid_out, rows)
    assert [(f.path, f.depth, f.start, f.seconds, f.unknown) for f in laid_out] == [
        ("", 0, 0.0, 63.0, 1),
        ("a", 1, 0.0, 37.0, 1),
        ("a.x", 2, 0.0, 1.0, 0),
        ("a.y", 2, 1.0, 4.0, 1),
        ("a", 2, 5.0, 32.0, 0),
        ("b", 1, 37.0, 10.0, 0),
        ("b", 2, 37.0, 2.0, 0),
        ("b", 2, 39.0, 8.0, 0),
        ("", 1, 47.0, 16.0, 0),
    ]
    text = describe(profile_of(*rows), laid_out[1])
    assert text.startswith("a: 37.00 s, 58.7%")
    assert "depend on data" in text
    # Deeper than Python's stack.
    deep = [row(".".join(["part"] * 3000), 1.0)]
    assert len(frames(deep)) == 3001
    assert [frame.seconds for frame in frames([])] == [0.0]


def test_dots_lie_where_the_steps_say():
    rows = [
        row("slow", 3.0, 10**9, 10**9),
        row("fast", 1.0, 10**10, 10**8),
        row("none", 1.0, 0),
        row("data", 1.0, None),
    ]
    plot = roofline(profile_of(*rows))
    assert plot["left_out"] == 2
    assert [(pytest.approx(x), pytest.approx(y), i) for x, y, _, i in plot["dots"]] == [
        (0.0, math.log10(1e9 / 3), 0),
        (2.0, 10.0, 1),
    ]
    # Areas are as the times.
    assert (plot["dots"][0][2] / plot["dots"][1][2]) ** 2 == pytest.approx(3)
    assert plot["ridge"] == pytest.approx(1.0)
    assert plot["peak"] == pytest.approx(11.0)
    for axis, values in (("x", [0, 2, 1]), ("y", [math.log10(1e9 / 3), 10, 11])):
        assert plot[axis][0] < min(values)
        assert max(values) < plot[axis][1]


def test_the_page_holds_the_profile(gpt, measured):
    shown = ml.view(gpt, profile=measured, title="gpt")
    data = shown.data["profile"]
    assert [tuple(step[:6]) for step in data["steps"]] == [
        (r.path, r.name, r.what, r.seconds, r.operations, r.bytes) for r in measured
    ]
    assert data["frames"][0][0] == "gpt"
    assert len(data["roofline"]["dots"]) + data["roofline"]["left_out"] == len(measured)
    assert {step[6] for step in data["steps"]} <= {"compute", "memory", "unknown"}
    assert ml.view(gpt).data["profile"] is None


# --- pictures -----------------------------------------------------------------------------------------------------


def test_pictures_have_all_steps(gpt, measured, tmp_path):
    flames = ElementTree.fromstring(measured.flame_graph("gpt"))
    rects = [group.find(f"{SVG}rect") for group in flames.findall(f"{SVG}g")]
    width = float(flames.get("width"))
    assert all(float(r.get("x")) >= 0 and float(r.get("x")) + float(r.get("width")) <= width for r in rects)
    drawn = sum(float(r.get("width")) for r in rects if r.get("fill") != "#f4efff")
    assert drawn == pytest.approx(float(rects[0].get("width")), rel=0.01)
    plot = ElementTree.fromstring(measured.roofline())
    circles = plot.findall(f"{SVG}circle")
    assert len(circles) == len(roofline(measured)["dots"])
    for circle in circles:
        assert 0 < float(circle.get("cx")) < float(plot.get("width"))
        assert 0 < float(circle.get("cy")) < float(plot.get("height"))
    shown = ml.view(gpt, tmp_path / "a.svg", profile=measured, picture="roofline")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == measured.roofline()
    shown.save(tmp_path / "b.svg", picture="flame_graph")
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == measured.flame_graph(shown.title)
    assert measured._repr_html_().startswith("<svg ")


def test_names_in_pictures_stay_text():
    rows = [row(f"{name}.{name}", 1.0 + i) for i, name in enumerate(HOSTILE)]
    profile = profile_of(*rows, row("", 1.0, None))
    for text in (profile.flame_graph(HOSTILE[0]), profile.roofline()):
        assert {e.tag.removeprefix(SVG) for e in ElementTree.fromstring(text).iter()} <= {
            *("svg", "rect", "text", "g", "title", "path", "circle")
        }
        assert "\u202e" not in text
    # Nothing is divided by zero.
    for text in (profile_of().flame_graph(), profile_of().roofline(), profile_of(row("a", 0.0)).roofline()):
        ElementTree.fromstring(text)
    assert frames([row("a", 0.0)])[0].seconds == 0


# --- the page in a browser ----------------------------------------------------------------------------------------


def synthetic(rows, title="model"):
    """A page whose graph is that of a small model, and whose profile has these steps."""
    shown = ml.view(model(), shapes={"input": [2, 3]}, profile=profile_of(*rows), backend=ml.CBackend(num_threads=1))
    return page({**shown.data, "stage": shown.stage}, title)


CHECKS = r"""
const { visibleFrames, stepsOf, duration, short } = require(process.argv[1]);
const { frames } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const problems = [];
let most = 0;
for (let i = 0; i < frames.length; i += Math.max(1, Math.floor(frames.length / 200))) {
  const shown = visibleFrames(frames, i, 1000);
  most = Math.max(most, shown.length);
  const depths = shown.filter((at) => at.isAround).map((at) => frames[at.index][2]);
  if (depths.join() !== [...Array(frames[i][2]).keys()].join()) problems.push("around " + i);
  for (const { index, x, w } of shown) {
    if (!(x >= -1e-6 && x + w <= 1000 + 1e-6)) problems.push(index + " leaves " + i);
  }
  if (!stepsOf(frames, i).size) problems.push("no steps in " + i);
}
const begin = performance.now();
for (let i = 0; i < 10; i++) visibleFrames(frames, 0, 1000);
const time = (performance.now() - begin) / 10;
const texts = [duration(0.0123), duration(5e-8), short(2.5e9), short(0.01)];
console.log(JSON.stringify({ problems, most, time, texts }));
"""


def test_thousands_of_steps_are_a_few_elements():
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the pictures of the page are programs in JavaScript")
    rows = [row(f"stage{i // 1000}.block{i // 50}.layer{i % 5}.op{i}", 1e-6 * (1 + i % 7)) for i in range(10_000)]
    text = synthetic(rows)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))["profile"]
    command = [node, "-e", CHECKS, str(SCRIPTS / "profile.js")]
    done = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert result["most"] < 2500
    # One millisecond on a machine that does nothing else.
    assert result["time"] < 50
    assert result["texts"] == ["12.3 ms", "50.0 ns", "2.5 G", "0.01 "]


class _Body(HTMLParser):
    """What a script wrote into the element `report`."""

    def __init__(self, text):
        super().__init__()
        self.inside, self.report = False, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = ("id", "report") in attrs

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.report += data


PROBE = """<script>
const problems = [];
window.addEventListener("error", (event) => problems.push(event.message));
setTimeout(() => {
  const rects = () => [...document.querySelectorAll(".flame [data-frame]")];
  const click = (rect) => rect.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const first = rects().length, dots = document.querySelectorAll(".roofline circle").length;
  const inner = rects().find((rect) => rect.dataset.path === "linear");
  click(inner);
  const zoomed = rects().map((rect) => [rect.dataset.path, Number(rect.getAttribute("width"))]);
  const said = document.querySelector(".readout").textContent, details = document.getElementById("details").textContent;
  const outside = document.querySelectorAll("circle.outside").length;
  click(rects()[0]);
  const again = rects().length;
  for (const name of ["source", "stage", "memory", "profile"]) document.getElementById("tab-" + name).click();
  click(document.querySelector(".roofline circle"));
  document.getElementById("theme").click();
  const report = document.createElement("pre");
  report.id = "report";
  const selected = document.getElementById("tab-profile").getAttribute("aria-selected");
  report.textContent = JSON.stringify({ problems, first, dots, zoomed, said, details, outside, again, selected });
  document.body.append(report);
}, 50);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_in_chromium(tmp_path):
    """Frames zoom and select, nothing fails, and names are text."""
    rows = [row("linear", 1.0), row("linear", 3.0), row("relu", 2.0, None)]
    rows += [row(f"{name}.{name}", 1.0) for name in HOSTILE]
    (tmp_path / "page.html").write_text(synthetic(rows, HOSTILE[0]).replace("</body>", PROBE), encoding="utf-8")
    result = json.loads(_Body(document((tmp_path / "page.html").as_uri())).report)
    assert result["problems"] == []
    assert result["first"] == result["again"] == 1 + 3 + 1 + 2 * len(HOSTILE) - sum("." in name for name in HOSTILE)
    assert result["dots"] == len(rows) - 1
    widths = [width for path, width in result["zoomed"] if path in ("", "linear")]
    assert widths[0] == widths[1] == pytest.approx(widths[2] + widths[3])
    assert widths[3] == pytest.approx(3 * widths[2])
    assert "4.00 s, 30.8 % of the model" in result["said"]
    assert "linear" in result["details"]
    assert result["outside"] == len(HOSTILE)
    assert result["selected"] == "true"


# --- calls --------------------------------------------------------------------------------------------------------


def test_a_model_is_compiled_for_c_and_measured(tmp_path):
    shown = ml.view(model(), tmp_path / "page.html", shapes={"input": [4, 8]}, profile=True)
    assert shown.compiled.backend.name == "c"
    # Both layers may be one step.
    assert 1 <= len(shown.profile) <= 2
    assert shown.data["profile"]["frames"][0][4] > 0
    assert '"profile":{"frames"' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_mistakes_are_errors(tmp_path):
    shapes = {"input": [4, 8]}
    with pytest.raises(UnsupportedOpError, match=r"compiled for numpy\n.*ml\.CBackend"):
        ml.view(model(), shapes=shapes, backend=ml.NumpyBackend(), profile=True)
    with pytest.raises(UnresolvedShapeError, match="give numbers"):
        ml.view(model(), shapes={"input": ["batch", 8]}, profile=True)
    with pytest.raises(InvalidValueError, match=r"profile is of type int\n.*compiled\.profile"):
        ml.view(model(), shapes=shapes, profile=3)
    with pytest.raises(InvalidValueError, match="nothing was measured"):
        ml.view(model(), tmp_path / "a.svg", shapes=shapes, picture="roofline")
    with pytest.raises(InvalidValueError, match="graph, flame_graph, roofline"):
        ml.view(model(), shapes=shapes, picture="flames")
    with pytest.raises(ConflictingOptionError, match="the format is html"):
        ml.view(model(), tmp_path / "a.html", shapes=shapes, profile=profile_of(row("a", 1.0)), picture="roofline")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ml.save(model(), "small.mithril")
    call = ["view", "small.mithril", "--shape", "input=2,8"]
    assert main([*call, "--profile"]) == 0
    assert capsys.readouterr().out == "wrote small.html\n"
    assert '"profile":{"frames"' in Path("small.html").read_text(encoding="utf-8")
    assert main([*call, "--profile", "--picture", "flame_graph"]) == 0
    assert " step" in "".join(ElementTree.fromstring(capsys.readouterr().out).itertext())
    for options, message in (
        (["--picture", "roofline"], "--profile"),
        (["--profile", "--backend", "numpy"], "steps are measured in C only"),
        (["--profile", "--picture", "roofline", "--format", "mermaid"], "the format is mermaid"),
    ):
        assert main([*call, *options]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    with pytest.raises(SystemExit):
        main([*call, "--picture", "flames"])
