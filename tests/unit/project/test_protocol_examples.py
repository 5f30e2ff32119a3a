"""PROTOCOL.md names a rule's table only where that table has an example of the line."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULES = ("sets", "operations", "timing", "delay", "delivery", "commands")
PROTOCOL = (ROOT / "PROTOCOL.md").read_text("utf-8")
CHECKER = ROOT / "tests" / "unit" / "checker"
TABLES = {
    rule: "".join(path.read_text("utf-8") for path in CHECKER.glob(f"test_{rule}*.py"))
    for rule in RULES
}


def test_each_line_that_names_a_rule_has_an_example_in_its_table() -> None:
    found, missing = 0, []
    for line in PROTOCOL.splitlines():
        *_, last = [cell.strip() for cell in line.strip("|").split("|")]
        rule = last.strip("`")
        if not line.startswith("| ") or rule not in RULES:
            continue
        names = re.findall(r"`(\w+)`", line.rsplit("|", 2)[0])
        examples = re.findall(r"\w+", TABLES[rule])
        found += 1
        missing += [(rule, names)] if not set(names) & set(examples) else []
    assert missing == []
    assert found > 20


def test_every_number_of_the_section_on_sets_has_an_example() -> None:
    section = PROTOCOL.split("\n## Sets\n")[1].split("\n## ")[0]
    numbers = re.findall(r"^(\d)\. ", section, re.M)
    whys = re.findall(r'why="(?:D\d\d, )?(\d)\. ', TABLES["sets"])
    assert set(numbers) <= set(whys), set(numbers) - set(whys)


def test_every_line_of_what_happens_to_a_half_and_every_test_of_an_operation_has_an_example() -> (
    None
):
    for rule, kind, least in (("timing", "LINE", 7), ("operations", "TEST", 7)):
        sections = " ".join(re.findall(rf"^{kind}S?_([\d_AND]+) = \[", TABLES[rule], re.M))
        assert set(map(int, re.findall(r"\d", sections))) == set(range(1, least + 1))
