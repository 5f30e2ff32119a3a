"""Documents name what is there: files, tests, sections; README is short, and its row is true."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo_agreement import Seen
from examples.demo_screen import table_of
from storage import schemas

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text("utf-8")
TESTS = [*ROOT.glob("tests/*/**/test_*.py"), *ROOT.glob("bench/tests/**/test_*.py")]


# A section's title in a docstring: not one that is filled in when the program runs.
TITLE = r'"([^"{]+)"'


def titles_of(text: str) -> set[str]:
    """Returns a document's headings, the sections that it links, and what it says in bold."""
    patterns = (r"^#+ (.*)$", r"^- \[([^\]]+)\]\(", r"\*\*([^*]+?)\.?\*\*")
    return {title for pattern in patterns for title in re.findall(pattern, text, re.MULTILINE)}


def anchor_of(heading: str) -> str:
    """Returns the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_readmes_programs_are_short() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        lines = [line for line in block.splitlines() if line]
        assert len(lines) <= 22
        assert max(map(len, lines)) <= 100


def test_the_readmes_row_has_columns_of_its_table() -> None:
    names, values = re.findall(r"^\| (.*) \|\n\|[-|]+\n\| (\d.*) \|$", README, re.MULTILINE)[0]
    columns = names.split(" | ")
    assert len(columns) == len(values.split(" | "))
    assert [name for name in schemas.OUTCOMES.names if name in columns] == columns


def test_the_readmes_screen_has_the_rows_of_the_demos_table() -> None:
    console = Console(file=io.StringIO(), width=90, record=True)
    console.print(table_of(Seen(forgotten=("one",)), ""))
    drawn, shown = (
        re.findall(r"^[│┃] (.*?) +[│┃]", text, re.M) for text in (console.export_text(), README)
    )
    assert shown == drawn


def test_the_readmes_figures_are_those_of_the_report() -> None:
    report = (ROOT / "docs" / "benchmarks" / "small" / "report.md").read_text("utf-8")
    names = {
        "latency": "latency at 1,000 tx/s, p50",
        "throughput": "sustained",
        "memory": "memory",
        "size": "bytes",
        "start": "start",
    }
    shown = dict(re.findall(r"^\| ([a-z]+) \| ([\d.,]+)", README, re.MULTILINE))

    assert shown.keys() == names.keys()
    for name, figure in names.items():
        assert f"\n| {figure} | {shown[name]} | " in report

    (p99,) = re.findall(r"at 1,000 tx/s, ([\d.]+) s at p99", README)
    assert f"\n| latency at 1,000 tx/s, p99 | {p99} | " in report


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_no_file_that_is_not_there(document: Path) -> None:
    text = document.read_text("utf-8")
    linked = {
        target.partition("#")[0]
        for target in re.findall(r"\]\(([^)]+)\)", text)
        if "://" not in target and not target.startswith("#")
    }
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml|conf|json|properties))`", text))
    here = (document.parent, ROOT, ROOT / "pipelines", ROOT / "client")
    missing = [
        name for name in sorted(linked | named) if not any((at / name).exists() for at in here)
    ]
    assert missing == []


@pytest.mark.parametrize("document", sorted(ROOT.glob("*.md")), ids=lambda path: path.name)
def test_documents_have_no_endless_lines(document: Path) -> None:
    lines = document.read_text("utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 160] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    sources = [path.read_text("utf-8") for path in TESTS]
    known = {name for source in sources for name in re.findall(r"\bD\d\d\b", source)}
    known |= {name for text in sources for name in re.findall(r"^def (test_\w+)", text, re.M)}
    named = set(re.findall(r"\bD\d\d\b|(?<![/\w])test_\w+(?!\w*\.py)\b", text))
    assert sorted(named - known) == []


def left_to_the_long_run(path: Path) -> set[str]:
    """Returns the test functions of a file that `make test` leaves out with all their cases."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if "pytestmark = pytest.mark.soak" in map(ast.unparse, tree.body):
        return {function.name for function in functions}
    return {
        function.name
        for function in functions
        if "pytest.mark.soak" in map(ast.unparse, function.decorator_list)
    }


@pytest.mark.parametrize(
    "page", ["docs/RELIABILITY.md", "docs/SECURITY.md", "docs/protocol/tests.md"]
)
def test_what_shows_a_guarantee_is_not_left_to_the_long_run(page: str) -> None:
    named = set(re.findall(r"\btest_\w+\b", (ROOT / page).read_text("utf-8")))
    left_out = {name for path in TESTS for name in left_to_the_long_run(path)}
    assert len(left_out) > 3
    assert sorted(named & left_out) == []


def test_the_code_refers_to_sections_that_exist() -> None:
    title = TITLE.replace("(", "").replace(")", "")
    missing, count = [], 0

    for folder in ("checker", "storage", "pipelines", "client/txlake", "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            flat = re.sub(r"\n\s*#?\s*", " ", path.read_text("utf-8"))
            for document, text in re.findall(
                rf"([\w/]+\.md) ({title}(?:(?:,| and) {title})*)", flat
            ):
                known = titles_of((ROOT / document).read_text("utf-8"))
                named = re.findall(TITLE, text)
                count += len(named)
                missing += [(path.name, document, name) for name in named if name not in known]

    assert missing == []
    assert count > 30


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_sections_that_exist(document: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)\s]+#[^)\s]+|#[^)\s]+)\)", document.read_text("utf-8")):
        name, _, anchor = target.partition("#")
        linked = document.parent / name if name else document
        if "://" in target or linked.suffix != ".md":
            continue

        headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
        if anchor not in map(anchor_of, headings):
            missing.append(target)

    assert missing == []


def test_each_threat_names_a_test_that_tries_it() -> None:
    table = (ROOT / "docs" / "SECURITY.md").read_text("utf-8").partition("## Threats\n")[2]
    rows = [
        line.split(" | ")
        for line in table.partition("\n## ")[0].splitlines()
        if line.startswith("| ")
    ][1:]
    assert len(rows) > 10
    for row in rows:
        assert len(row) == 5, row
        assert re.fullmatch(r"(`test_\w+`(, )?)+", row[3]), row


@pytest.mark.parametrize("package", ["pipelines", "checker", "storage"])
def test_the_architecture_lists_the_rooms_that_are_there(package: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    table = text.partition("| package | room |")[2].partition("\n\n")[0]
    rows = table.partition(f"\n| {package} |")[2]
    rows = re.split(r"^\| \w", f"|{rows}", flags=re.MULTILINE)[0]
    listed = {
        name.strip("/")
        for line in rows.splitlines()
        for name in re.findall(r"`(\w+/?)`", line.removeprefix("| ").split(" | ")[0])
    }

    rooms = {
        path.stem
        for path in (ROOT / package).iterdir()
        if not path.name.startswith("__") and (path.is_dir() or path.suffix == ".py")
    }
    assert listed == rooms
