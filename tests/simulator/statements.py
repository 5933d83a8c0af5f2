"""A body's text → its statements, labels and nested blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MARK = re.compile(r"::|[;{}:\n]")
LABEL = re.compile(r"\s*([\w$]+)\s*")


@dataclass(frozen=True)
class Statement:
    text: str
    line: int


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Block:
    """What stands between braces of its own: names declared in it are seen in it only."""

    items: list[Statement | Label | Block] = field(default_factory=list)

    def labels(self) -> list[str]:
        return [item.name for item in self.items if isinstance(item, Label)]


class Reader:
    """Reads marks one by one; a brace inside a statement is an operand, any other opens or closes a block."""

    def __init__(self, text: str, line: int) -> None:
        self.open = [Block()]
        self.words = ""
        self.line = line
        self.started = line
        self.depth = 0
        end = 0
        for found in MARK.finditer(text):
            self.add(text[end : found.start()])
            self.mark(found.group(0))
            end = found.end()

    def add(self, words: str) -> None:
        if words.strip() and not self.words.strip():
            self.started = self.line
        self.words += words

    def mark(self, mark: str) -> None:
        begun = bool(self.words.strip())
        if mark == "\n":
            self.line += 1
            self.words += " "
        elif mark == ";":
            self.finish()
        elif mark in "{}" and (begun or self.depth):
            self.depth += 1 if mark == "{" else -1
            self.words += mark
        elif mark == "{":
            block = Block()
            self.open[-1].items.append(block)
            self.open.append(block)
        elif mark == "}":
            self.open.pop()
        elif mark == ":" and LABEL.fullmatch(self.words):
            self.open[-1].items.append(Label(self.words.strip()))
            self.words = ""
        else:
            self.words += mark

    def finish(self) -> None:
        if self.words.strip():
            self.open[-1].items.append(Statement(" ".join(self.words.split()), self.started))
        self.words = ""


def read_block(text: str, line: int) -> Block:
    return Reader(text, line).open[0]


def operands(text: str) -> Iterator[str]:
    """Split at the commas that stand in no bracket."""
    depth, begun = 0, 0
    for found in re.finditer(r"[\[\](){},]", text):
        if found.group(0) in "[({":
            depth += 1
        elif found.group(0) in "])}":
            depth -= 1
        elif depth == 0:
            yield text[begun : found.start()].strip()
            begun = found.end()
    if text[begun:].strip():
        yield text[begun:].strip()
