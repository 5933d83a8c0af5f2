"""Which parameter each argument of a call fills."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.errors import nearest
from sexpgpu.passes.elaboration.values import Problem, Signature


def resolve_arguments(signature: Signature, positional: int, keywords: Sequence[str], name: str) -> tuple[int, ...]:
    """Which parameter each argument fills: positional ones first, then the keywords in the order given.

    Parameters are numbered names, then keys; arguments beyond the names go to `rest`, number -1.
    """
    if positional > len(signature.names) and signature.rest is None:
        raise Problem("E-SYN-002", f"{name} takes {_count_text(signature)}, not {positional}")
    missing = [n for n in signature.names[positional : len(signature.names) - signature.optional] if n not in keywords]
    if missing:
        raise Problem("E-SYN-002", f"{name} takes {_count_text(signature)}, {', '.join(missing)} is missing")
    fixed = min(positional, len(signature.names))
    places = list(range(fixed)) + [-1] * (positional - fixed)
    key_names = signature.key_names
    for keyword in keywords:
        if keyword not in key_names:
            raise UnknownKeyword(name, keyword, key_names)
        places.append(len(signature.names) + key_names.index(keyword))
    return tuple(places)


class UnknownKeyword(Problem):
    """E-NAME-005; the caller knows where the keyword stands."""

    def __init__(self, name: str, keyword: str, known: Sequence[str]) -> None:
        close = nearest(keyword, known)
        listed = " ".join(f":{k}" for k in known)
        note = f"did you mean :{close}?" if close else f"its keywords: {listed}" if known else "it has no keywords"
        super().__init__("E-NAME-005", f"{name} has no keyword :{keyword}", notes=[note])
        self.keyword = keyword


def _count_text(signature: Signature) -> str:
    count = len(signature.names)
    least = count - signature.optional
    if signature.rest is not None:
        return f"{least} or more arguments"
    words = f"{least} to {count}" if least != count else str(count)
    return f"{words} argument{'' if words == '1' else 's'}"
