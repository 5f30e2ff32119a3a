"""docs/protocol/tests.md: each line that it names is there, and has the example that it names."""

from __future__ import annotations

import re

import pytest

from tests.support.protocol_pages import PAGES, ROOT, section, table_rows

RULES = ("sets", "operations", "timing", "delay", "delivery", "commands")
CHECKER = ROOT / "tests" / "unit" / "checker"
TABLES = {
    rule: "".join(path.read_text("utf-8") for path in CHECKER.glob(f"test_{rule}*.py"))
    for rule in RULES
}
TESTS_PAGE = (ROOT / "docs" / "protocol" / "tests.md").read_text("utf-8")

# Page, section, line, the tests of the line.
LINES = [
    (path, title, *cells)
    for path, text in PAGES.items()
    for title in re.findall(
        r"^### (.*)$", section(path.rpartition("/")[2], TESTS_PAGE), re.MULTILINE
    )
    for cells in table_rows(section(title, TESTS_PAGE))
]

# Each row of these sections' tables, and each numbered line, has a test.
WHOLE_SECTIONS = [
    "Guarantees",
    "Which operation ends a half",
    "What happens to a half at an epoch",
    "Outcomes",
    "Causes",
    "Conflicts",
    "What became of a message",
    "Different from RocketMQ",
]


def has_line(text: str, line: str) -> bool:
    """Whether a section has a line: by its number, the names in its row, or its first words."""
    if line in ("all of it", "every reason"):
        return True

    if line.startswith('"'):
        words = line.strip('"').removesuffix(" ...")
        return words in " ".join(re.sub(r"^> ", "", text, flags=re.MULTILINE).split())

    if numbers := re.fullmatch(r"(\d+)(?: to (\d+))?", line):
        ends = (numbers[1], numbers[2] or numbers[1])
        return all(re.search(rf"^(\| {end} \||{end}\. )", text, re.MULTILINE) for end in ends)

    return any(cells[0] == line for cells in table_rows(text))


def test_the_page_of_tests_names_lines_that_are_there() -> None:
    missing = [
        (path, title, line)
        for path, title, line, _ in LINES
        if not has_line(section(title, PAGES[path]), line)
    ]
    assert missing == []
    assert len(LINES) > 130


@pytest.mark.parametrize("title", WHOLE_SECTIONS)
def test_every_row_of_a_section_has_a_test(title: str) -> None:
    named = [line.strip('"').removesuffix(" ...") for _, its, line, _ in LINES if its == title]
    text = section(title)
    lines = [cells[0] for cells in table_rows(text)]
    lines += re.findall(r"^(\d+)\. ", text, re.MULTILINE)

    assert len(lines) > 2
    assert [line for line in lines if not any(line.startswith(name) for name in named)] == []


def test_every_result_of_a_command_has_a_test() -> None:
    results = section("Operator commands").partition("| result |")[2]
    named = {line for _, title, line, _ in LINES if title == "Operator commands"}
    rows = [line.split(" | ")[0].strip("| ") for line in results.splitlines()[2:]]

    assert len(rows) > 15
    assert [row for row in rows if row and row not in named] == []


def test_tests_are_named_on_their_page_alone() -> None:
    named = {path: re.findall(r"\btest_\w+(?!\w*\.py)\b", text) for path, text in PAGES.items()}
    assert named == {path: [] for path in PAGES}


def test_each_line_that_names_a_rule_has_an_example_in_its_table() -> None:
    found, missing = 0, []
    for _, _, line, tests in LINES:
        names = re.findall(r"`(\w+)`", line)
        for rule in RULES:
            if not names or f"`{rule}`" not in tests.split(", "):
                continue
            examples = re.findall(r"\w+", TABLES[rule])
            found += 1
            missing += [(rule, names)] if not set(names) & set(examples) else []
    assert missing == []
    assert found > 20


def test_every_number_of_the_section_on_sets_has_an_example() -> None:
    numbers = re.findall(r"^(\d)\. ", section("Sets"), re.MULTILINE)
    whys = re.findall(r'why="(?:D\d\d, )?(\d)\. ', TABLES["sets"])
    assert set(numbers) <= set(whys), set(numbers) - set(whys)


def test_every_line_of_what_happens_to_a_half_and_every_test_of_an_operation_has_an_example() -> (
    None
):
    for rule, kind, least in (("timing", "LINE", 7), ("operations", "TEST", 7)):
        sections = " ".join(re.findall(rf"^{kind}S?_([\d_AND]+) = \[", TABLES[rule], re.M))
        assert set(map(int, re.findall(r"\d", sections))) == set(range(1, least + 1))
