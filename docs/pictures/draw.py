"""Draw the pictures of the documents, as SVG files beside this one.

    python -m docs.pictures.draw

Each picture is a function that returns the text of its file. A test compares these texts with the
committed files, so a picture changes here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

FOLDER = Path(__file__).parent
# Colours that colour-blind people can tell apart (Okabe and Ito), and a light tone of each.
BLUE, ORANGE, GREEN, PINK, GREY, INK = (
    "#0072B2",
    "#B56A00",
    "#00805E",
    "#A8467F",
    "#7a7a7a",
    "#222222",
)
LIGHT: Final = {
    BLUE: "#dcebf5",
    ORANGE: "#fbe9cc",
    GREEN: "#d5efe6",
    PINK: "#f5e1ee",
    GREY: "#eeeeee",
}


class Point(NamedTuple):
    """A point of a drawing, in pixels from its upper left corner."""

    x: float
    y: float


class Drawing:
    """A drawing that grows by boxes, arrows and texts, and becomes the text of an SVG file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="Verdana, DejaVu Sans, '
            f'sans-serif" font-size="13">\n<title>{escape(title)}</title>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" '
            f'fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        )
        self._parts: list[str] = []

    def box(
        self, at: Point, width: float, height: float, lines: Sequence[str], colour: str = GREY
    ) -> None:
        """Draws a box with centred lines of text; the first line is bold."""
        self._parts.append(
            f'<rect x="{at.x:g}" y="{at.y:g}" width="{width:g}" height="{height:g}" rx="5" '
            f'fill="{LIGHT[colour]}" stroke="{colour}"/>'
        )
        top = at.y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            middle = Point(at.x + width / 2, top + 16 * number)
            self.text(middle, line, anchor="middle", weight="bold" if number == 0 else "normal")

    def bar(self, left: float, right: float, top: float, text: str, colour: str) -> None:
        """Draws a bar of a time line with its text."""
        self._parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="26" rx="3" '
            f'fill="{LIGHT[colour]}" stroke="{colour}"/>'
        )
        self.text(Point((left + right) / 2, top + 17.5), text, anchor="middle", size=12)

    def text(
        self,
        at: Point,
        text: str,
        *,
        anchor: str = "start",
        weight: str = "normal",
        size: int = 13,
        colour: str = INK,
    ) -> None:
        """Writes a line of text; `at` is on its base line."""
        self._parts.append(
            f'<text x="{at.x:g}" y="{at.y:g}" text-anchor="{anchor}" font-weight="{weight}" '
            f'font-size="{size}" fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, *points: Point) -> None:
        """Draws an arrow through points."""
        path = " ".join(f"{point.x:g},{point.y:g}" for point in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.4" '
            'marker-end="url(#tip)"/>'
        )

    def line(
        self, start: Point, end: Point, colour: str = GREY, *, is_dashed: bool = False
    ) -> None:
        """Draws a thin line."""
        dashes = ' stroke-dasharray="5 4"' if is_dashed else ""
        self._parts.append(
            f'<line x1="{start.x:g}" y1="{start.y:g}" x2="{end.x:g}" y2="{end.y:g}" '
            f'stroke="{colour}"{dashes}/>'
        )

    def dot(self, at: Point, colour: str) -> None:
        """Draws a dot."""
        self._parts.append(f'<circle cx="{at.x:g}" cy="{at.y:g}" r="5" fill="{colour}"/>')

    def svg(self) -> str:
        """Returns the text of the file."""
        return self._head + "\n".join(self._parts) + "\n</svg>\n"


def whole() -> str:
    """Returns the picture of the whole: a producer, Kafka, the job, the lake, both ways out."""
    drawing = Drawing(980, 475, "A half message on its way from a producer to a consumer")
    drawing.box(Point(20, 60), 170, 130, ["producer", "an application", "with a listener"], BLUE)
    drawing.box(Point(20, 260), 170, 60, ["its own database", "orders"], BLUE)

    topics = (
        (60, "half topic"),
        (120, "op topic"),
        (180, "schedule topic"),
        (240, "admin topic"),
        (300, "the group's check topic"),
    )
    drawing.text(Point(395, 42), "Kafka", anchor="middle", weight="bold")
    for y, name in topics:
        drawing.box(Point(300, y), 190, 40, [name], ORANGE)

    drawing.text(Point(640, 42), "one Spark job", anchor="middle", weight="bold")

    drawing.box(Point(570, 60), 140, 70, ["tasks", "decode records,", "write messages"], GREEN)
    drawing.box(
        Point(570, 170),
        140,
        110,
        ["driver", "decides by rules,", "commits", "epoch by epoch"],
        GREEN,
    )

    tables = (
        (60, "half, op, schedule", "what was landed"),
        (125, "outcomes, checks ...", "what was decided"),
        (190, "topics/<table_id>", "what was delivered"),
        (255, "epochs", "committed last"),
    )
    drawing.text(Point(875, 42), "the lake: Delta tables", anchor="middle", weight="bold")
    for y, name, what in tables:
        drawing.box(Point(790, y), 170, 50, [name, what], PINK)

    drawing.box(Point(790, 340), 170, 46, ["consumers", "SQL, Spark, notebooks"], BLUE)

    drawing.arrow(Point(190, 80), Point(299, 80))
    drawing.text(Point(196, 72), "1 half message", size=11)
    drawing.arrow(Point(70, 190), Point(70, 259))
    drawing.text(Point(78, 229), "2 local transaction", size=11)

    drawing.arrow(Point(190, 140), Point(299, 140))
    drawing.text(Point(196, 132), "3 COMMIT or", size=11)
    drawing.text(Point(204, 155), "ROLLBACK", size=11)

    for y in (80, 140, 200, 260):
        drawing.line(Point(490, y), Point(530, y), INK)
    drawing.line(Point(530, 80), Point(530, 260), INK)
    drawing.arrow(Point(530, 95), Point(569, 95))
    drawing.arrow(Point(640, 130), Point(640, 169))
    drawing.text(Point(646, 154), "narrow rows", size=11)

    for y in (85, 150, 215, 280):
        drawing.arrow(Point(750, y), Point(789, y))
    drawing.line(Point(750, 85), Point(750, 280), INK)
    drawing.line(Point(710, 215), Point(750, 215), INK)

    drawing.arrow(Point(640, 280), Point(640, 320), Point(491, 320))
    drawing.text(Point(500, 312), "4 check: how did it end?", size=11)
    drawing.arrow(Point(300, 328), Point(230, 328), Point(230, 176), Point(191, 176))
    drawing.text(Point(120, 348), "asked only when no end came", size=11)

    drawing.arrow(Point(975, 215), Point(975, 363), Point(961, 363))
    drawing.line(Point(960, 215), Point(975, 215), INK)

    # The second way out.
    drawing.box(Point(570, 410), 140, 50, ["publisher", "txlake publish"], GREEN)
    drawing.box(Point(300, 410), 190, 50, ["Kafka topics", "orders, payments ..."], ORANGE)
    drawing.box(Point(20, 410), 170, 50, ["any Kafka consumer", "each message once"], BLUE)
    drawing.arrow(Point(975, 363), Point(975, 435), Point(711, 435))
    drawing.text(Point(720, 427), "committed epochs", size=11)
    drawing.arrow(Point(570, 435), Point(491, 435))
    drawing.arrow(Point(300, 435), Point(191, 435))
    drawing.text(Point(194, 427), "read_committed", size=11)

    return drawing.svg()


# Where the lanes of a time line stand, from top to bottom.
_STREAM, _LAND, _DELIVER, _EPOCH, _WRITERS = 70, 134, 168, 230, 294
_LANES: Final = (
    (_STREAM, "stream thread", "Spark calls it with each micro-batch"),
    (_LAND, "tasks", "of Spark, on executors"),
    (_EPOCH, "epoch thread", "one, named txlake-epoch"),
    (_WRITERS, "writer threads", "at most four"),
)
_BARS: Final = (
    (230, 360, _STREAM, "1 land", BLUE),
    (362, 410, _STREAM, "2 plan", BLUE),
    (416, 460, _STREAM, "ask", GREY),
    (240, 352, _LAND, "land", BLUE),
    (416, 502, _EPOCH, "3 decide", BLUE),
    (504, 590, _EPOCH, "4 write", BLUE),
    (592, 660, _EPOCH, "5 check", BLUE),
    (662, 740, _EPOCH, "6 commit", BLUE),
    (420, 515, _WRITERS, "half, schedule", BLUE),
    (518, 655, _WRITERS, "topics/<table_id>", BLUE),
    (666, 726, _WRITERS, "state", BLUE),
    (530, 645, _DELIVER, "deliver, if many", BLUE),
    (486, 690, _STREAM, "1 land", ORANGE),
    (692, 740, _STREAM, "wait", ORANGE),
    (746, 794, _STREAM, "2 plan", ORANGE),
    (800, 844, _STREAM, "ask", GREY),
    (496, 684, _LAND, "land", ORANGE),
    (800, 876, _EPOCH, "3 decide", ORANGE),
    (878, 950, _EPOCH, "4 write", ORANGE),
    (952, 1010, _EPOCH, "5 check", ORANGE),
    (1012, 1090, _EPOCH, "6 commit", ORANGE),
    (804, 900, _WRITERS, "half, schedule", ORANGE),
    (903, 1008, _WRITERS, "topics/...", ORANGE),
    (1014, 1074, _WRITERS, "state", ORANGE),
    (880, 1000, _DELIVER, "deliver, if many", ORANGE),
)


def epochs() -> str:
    """Returns the picture of two epochs on a time line: which thread does what, and when."""
    drawing = Drawing(1130, 430, "Two epochs on a time line, with their threads and tasks")
    for y, name, what in _LANES:
        drawing.text(Point(12, y + 12), name, weight="bold")
        drawing.text(Point(12, y + 28), what, size=10, colour=GREY)
        drawing.line(Point(225, y - 12), Point(1120, y - 12), "#dddddd")

    first, second = BLUE, ORANGE
    for x, text, y, colour in (
        (411, "planned row of epoch n: epoch_at and known_at are fixed", 18, first),
        (474, "Spark cuts the next micro-batch", 40, GREY),
        (740, "committed row of epoch n", 18, first),
        (796, "planned row of epoch n + 1", 40, second),
    ):
        drawing.line(Point(x, y - 8), Point(x, 340), colour, is_dashed=True)
        drawing.text(Point(x + 5, y), text, size=11, colour=colour)

    for left, right, y, text, colour in _BARS:
        drawing.bar(left, right, y, text, colour)

    drawing.arrow(Point(230, 362), Point(1120, 362))
    drawing.text(Point(1120, 380), "time", anchor="end", size=11)
    drawing.bar(230, 320, 388, "epoch n", first)
    drawing.bar(330, 420, 388, "epoch n + 1", second)

    drawing.text(
        Point(440, 405),
        "ask: where do Kafka's op queues end? The next micro-batch lands all of it.",
        size=11,
    )
    return drawing.svg()


def known_at() -> str:
    """Returns the picture of `known_at`: what Kafka was asked, what was landed, what is known."""
    drawing = Drawing(980, 400, "known_at on a time line")
    lanes = (
        (60, "op queue q in Kafka", "offset of each operation"),
        (130, "the job asks Kafka", "where does q end?"),
        (200, "epochs", "what each has landed of q"),
        (290, "known_at of q", "after each epoch"),
    )

    for y, name, what in lanes:
        drawing.text(Point(12, y), name, weight="bold")
        drawing.text(Point(12, y + 16), what, size=10, colour=GREY)

    for x, offset in ((240, 40), (330, 41), (500, 42), (560, 43), (700, 44)):
        drawing.dot(Point(x, 62), INK)
        drawing.text(Point(x, 50), str(offset), anchor="middle", size=11)
    drawing.line(Point(215, 62), Point(960, 62), "#cccccc")

    asks = (
        (380, 276, "at asked_at: 42", BLUE),
        (530, 216, "at epoch_at: 43", BLUE),
        (740, 216, "at asked_at: 45", ORANGE),
        (880, 338, "at epoch_at: 45", ORANGE),
    )
    for x, bottom, text, colour in asks:
        drawing.line(Point(x, 140), Point(x, bottom), colour, is_dashed=True)
        drawing.dot(Point(x, 136), colour)
        drawing.text(Point(x, 122), text, anchor="middle", size=11, colour=colour)

    drawing.bar(392, 530, 190, "epoch 7: to 42", BLUE)
    drawing.bar(752, 880, 190, "epoch 8: to 45", ORANGE)
    drawing.bar(215, 380, 276, "known after epoch 7", BLUE)
    drawing.bar(215, 880, 312, "known after epoch 8", ORANGE)

    drawing.text(
        Point(390, 294),
        "epoch 7 has landed all below 42, not yet all below 43",
        size=11,
        colour=BLUE,
    )

    drawing.arrow(Point(215, 365), Point(960, 365))
    drawing.text(Point(960, 383), "time", anchor="end", size=11)

    drawing.text(
        Point(215, 388),
        "An answer of Kafka counts as soon as an epoch has landed all that is below it.",
        size=12,
    )
    return drawing.svg()


PICTURES: Final[dict[str, Callable[[], str]]] = {
    "whole.svg": whole,
    "epochs.svg": epochs,
    "known_at.svg": known_at,
}


def main() -> None:
    """Writes every picture."""
    for name, picture in PICTURES.items():
        (FOLDER / name).write_text(picture(), "utf-8")


if __name__ == "__main__":
    main()
