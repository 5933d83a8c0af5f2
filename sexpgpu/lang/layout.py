"""`fmt`: a file laid out anew. Lines begin where the writer began them; what is wider than a line is broken further.

Bodies of definitions and forms are indented by two, arguments of calls stand under the first. Columns that the writer
aligned over several lines stay aligned. Comments and brackets are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexpgpu.ir.building import uncollected
from sexpgpu.lang.forms import Form
from sexpgpu.lang.grammar import DEFINITIONS, SPECIAL_FORMS
from sexpgpu.lang.nesting import deep_recursion
from sexpgpu.lang.pieces import Piece, pieces_of
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.reader import read
from sexpgpu.source import Source

WIDTH = 100
# A list that does not fit beside what stands before it begins a line of its own from this column on.
_FAR = 60
# Forms whose parts are indented as arguments of calls are.
_AS_CALLS = ("and", "or", "assert", "cond", "state", "update")
# How many parts stand beside the head where a list is broken: a name and its arguments.
_BESIDE = {"defun": 2, "deflayer": 2, "defregion": 2, "defoptimizer": 2, "defmacro": 2, "repeat": 2}
# Which part is a list of arguments, and no call.
_ARGUMENTS = {"defun": 2, "deflayer": 2, "defregion": 2, "defoptimizer": 2, "defmacro": 2, "fn": 1}
# Forms whose parts fill the lines.
_FILLED = ("defvariant", "defsweep")
_COLUMNS = 6


def formatted(source: Source) -> str:
    """The source's text laid out anew, with the same data and comments. Raises Diagnostics where it cannot be read."""
    with uncollected(), deep_recursion():
        return _formatted(source)


def _formatted(source: Source) -> str:
    before = read(source)
    text = source.text
    # Laying out what is laid out changes nothing but, rarely, a table that lost a row: then once more.
    for _ in range(4):
        again = _Layout(pieces_of(text)).text()
        if again == text:
            break
        text = again
    if text != source.text:
        _check_same(before, text, source)
    return text


def _check_same(before: Sequence[Form], text: str, source: Source) -> None:
    after = read(Source(source.name, text))
    # A nan is not equal to itself, but is when printed.
    same = list(before) == after or [print_form(form) for form in before] == [print_form(form) for form in after]
    assert same, "the layout changed what is read"
    assert _comments(pieces_of(source.text)) == _comments(pieces_of(text)), "the layout changed a comment"


def _comments(pieces: Sequence[Piece]) -> list[str]:
    """All comments in order; what `#;` drops is among them as it is written, without spaces."""
    made: list[str] = []
    for piece in pieces:
        if piece.kind == "comment" or piece.text.startswith("#"):
            made.append(piece.text.replace("\r", ""))
        elif piece.prefix:
            made.append(piece.prefix + "".join(_words(piece)))
        else:
            made += _comments(piece.items)
    return made


def _words(piece: Piece) -> list[str]:
    return [piece.text, *(word for item in piece.items for word in _words(item))]


class _Layout:
    """Writes pieces line by line; `trailing` are the comments behind lines, with the column that they had."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.lines: list[str] = [""]
        self.trailing: dict[int, tuple[str, int]] = {}

    def text(self) -> str:
        for piece in self.pieces:
            _measure(piece)
        _align(_rows(self.pieces))
        several = False
        for k, piece in enumerate(self.pieces):
            if k and self._begins_line(self.pieces, k, several, 0, None):
                self._break(piece, 0)
            several = self._put(piece, 0, False)
        self._place_comments()
        return "\n".join(self.lines).strip("\n") + "\n" if self.pieces else ""

    @property
    def column(self) -> int:
        return len(self.lines[-1])

    def _write(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.lines[-1] += first
        self.lines += rest

    def _break(self, piece: Piece, indent: int) -> None:
        if piece.breaks > 1:
            self.lines.append("")
        self.lines.append(" " * indent)

    def _put(self, piece: Piece, tail: int, is_data: bool, opening: bool = False) -> bool:
        """A piece at the end of the last line, `tail` brackets close behind it; `opening`: it is a list's first. Whether it
        has several lines."""
        before = len(self.lines)
        line = self.lines[-1]
        if piece.kind == "comment" and line.strip():
            self.trailing[before - 1] = (piece.text, piece.column)
            return True
        if line.strip() and not opening:
            self._write(" " * (1 + piece.pad))
        if piece.kind != "list":
            self._write(piece.prefix + piece.text)
        elif piece.width is not None and self.column + piece.width + tail <= WIDTH:
            self._write(_flat(piece))
        else:
            self._list(piece, tail, is_data)
        return len(self.lines) > before

    def _list(self, made: Piece, tail: int, is_data: bool) -> None:
        """A list over several lines."""
        self._write(made.prefix + made.text)
        start = self.column - 1
        head = None if is_data else made.head
        body = head is not None and (head in DEFINITIONS or head in SPECIAL_FORMS) and head not in _AS_CALLS
        indent = start + (1 if head is None else 2)
        breaks = _breaks(made, head, body) if made.width is not None else None
        several = False
        for k, item in enumerate(made.items):
            behind = tail + 1 if k == len(made.items) - 1 else 0
            if k and self._begins_line(made.items, k, several, behind, breaks):
                self._break(item, indent)
            elif k == 1 and head is not None and not body and item.kind != "comment":
                indent = self.column + 1 + item.pad
            several = self._put(item, behind, head is not None and _ARGUMENTS.get(head) == k, opening=k == 0)
        if made.items and made.items[-1].kind == "comment":
            self.lines.append(" " * indent)
        self._write(")" if made.text == "(" else "]")

    def _begins_line(
        self, items: Sequence[Piece], k: int, several: bool, tail: int, breaks: Callable[[int], bool] | None
    ) -> bool:
        """Whether an item begins a line: where its writer began one, after what has several lines, where it is too wide."""
        item, before = items[k], items[k - 1]
        if item.breaks > 0 or before.kind == "comment":
            return True
        if item.kind == "comment" or (_is_keyword(before) and not several):
            return False
        if several or (breaks is not None and breaks(k)):
            return True
        at = self.column + 1 + item.pad
        if item.kind == "list" and item.width is None:
            return at > _FAR
        width = item.width if item.width is not None else len(item.prefix) + item.text.index("\n")
        return at + width + tail > WIDTH and (item.kind != "list" or at > _FAR)

    def _place_comments(self) -> None:
        """Comments behind lines, two spaces from the longest where they stood in one column."""
        group: list[int] = []
        for number in [*sorted(self.trailing), -1]:
            if group and not (number == group[-1] + 1 and self.trailing[number][1] == self.trailing[group[-1]][1]):
                column = max(len(self.lines[k].rstrip()) for k in group) + 2
                for k in group:
                    self.lines[k] = self.lines[k].rstrip().ljust(column) + self.trailing[k][0]
                group = []
            group.append(number)


def _is_keyword(piece: Piece) -> bool:
    return piece.kind == "atom" and piece.text.startswith(":") and not piece.prefix


def _breaks(made: Piece, head: str | None, body: bool) -> Callable[[int], bool]:
    """Where a list that its writer wrote on one line is broken: before which items. Elsewhere lines are filled."""
    items = made.items
    if head in _FILLED or (head is None and not any(item.kind == "list" for item in items[:1])):
        return lambda k: False
    beside = 0 if head is None else _BESIDE.get(head, 1)

    def begins(k: int) -> bool:
        if _is_keyword(items[k]):
            return body or k > 1
        return k > beside and not (items[k].kind == "atom" and items[k - 1].kind == "atom" and k > beside + 1)

    return begins


def _measure(piece: Piece) -> None:
    """Finds the widths of a list and all in it, and its tables."""
    if piece.kind != "list":
        return
    for item in piece.items:
        _measure(item)
    _align(_rows(piece.items))
    one_line = all(item.width is not None and item.breaks == 0 for item in piece.items)
    if one_line:
        inside = sum((item.width or 0) + item.pad for item in piece.items)
        piece.width = len(piece.prefix) + 2 + inside + max(len(piece.items) - 1, 0)


def _flat(piece: Piece) -> str:
    if piece.kind != "list":
        return piece.prefix + piece.text
    parts = [(" " * (1 + item.pad) if k else "") + _flat(item) for k, item in enumerate(piece.items)]
    return piece.prefix + piece.text + "".join(parts) + (")" if piece.text == "(" else "]")


def _rows(items: Sequence[Piece]) -> list[list[Piece]]:
    """The cells of each line: a keyword and what follows it, or the items of the line's only list. Other lines have none."""
    lines: list[list[Piece]] = []
    for item in items:
        if item.breaks > 0 or not lines:
            lines += [[]] * min(item.breaks - 1, 1)  # an empty line
            lines.append([])
        if item.kind != "comment" or item.breaks > 0:
            lines[-1].append(item)
    return [_cells(line) for line in lines]


def _cells(line: list[Piece]) -> list[Piece]:
    if len(line) == 1 and line[0].kind == "list":
        return line[0].items
    return line if len(line) == 2 and _is_keyword(line[0]) else []


def _align(rows: Sequence[list[Piece]]) -> None:
    """Pads the cells that stood in one column over neighbouring lines, where the writer put more than a space before one.

    A cell that follows a longer one than the column has room for is left where it is.
    """
    for j in range(1, _COLUMNS):
        run: list[list[Piece]] = []
        for row in [*rows, []]:
            fits = _is_cell(row, j)
            if run and fits and row[j].column > run[-1][j].column and row[j].column == row[j - 1].end + 1:
                continue
            if run and not (fits and row[j].column == run[-1][j].column):
                _pad(run, j)
                run = []
            if fits:
                run.append(row)


def _is_cell(row: Sequence[Piece], j: int) -> bool:
    """Whether a line has a cell j with nothing before it but cells of one line."""
    if len(row) <= j or row[j].kind == "comment" or any(cell.width is None for cell in row[:j]):
        return False
    return not any(cell.breaks for cell in row[1 : j + 1])


def _pad(run: Sequence[list[Piece]], j: int) -> None:
    if len(run) < 2 or not any(row[j].column - row[j - 1].end > 1 for row in run):
        return
    offsets = [sum((cell.width or 0) + cell.pad for cell in row[:j]) + j for row in run]
    for row, offset in zip(run, offsets):
        row[j].pad = max(offsets) - offset
