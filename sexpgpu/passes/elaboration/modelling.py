"""The table of what makes a model: parameters and their initializers, random fields, probes, the weighted loss."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sexpgpu.errors import nearest
from sexpgpu.initial import INITIALIZERS, Initializer
from sexpgpu.ir.graph import Node, Origin
from sexpgpu.passes.elaboration import values
from sexpgpu.passes.elaboration.hypers import folder_of
from sexpgpu.passes.elaboration.lowering import fitting
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.scope import Scope, kind_of
from sexpgpu.passes.elaboration.shaping import relabelled
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import Builtin, LoaderName, Problem, Value, Weighted, boolean, describe, number
from sexpgpu.passes.experiment import Parameter

# What may stand alone in the place of an initializer.
_ALONE = ("zeros", "ones", "kaiming", "xavier", "orthogonal")


def _initializer(kind: str) -> Callable[..., Initializer]:
    def run(m: Machine, *arguments: Value) -> Initializer:
        return Initializer(kind, tuple([float(number(a, kind)) for a in arguments]))

    return run


def _from_file(m: Machine, path: Value, key: Value) -> Initializer:
    for value, what in ((path, "the path"), (key, "the key")):
        if not isinstance(value, str) or not value:
            raise Problem("E-TYPE-001", f"from-file: {what} is a text, not {describe(value)}")
    assert isinstance(path, str) and isinstance(key, str) and m.here is not None
    return Initializer("from-file", stored=(str(folder_of(m.user_place(m.here)[0], path) / path), key))


def initializer(value: Value) -> Initializer:
    """What stands in the place of an initializer."""
    if isinstance(value, Initializer):
        return value
    if isinstance(value, Builtin) and value.name in _ALONE:
        return Initializer(value.name)
    shown = value.name if isinstance(value, Builtin) else describe(value)
    known = [*INITIALIZERS, "from-file"]
    close = nearest(str(shown), known)
    notes = [f"did you mean {close}?"] if close and close != shown else [f"initializers: {' '.join(known)}"]
    raise Problem("E-NAME-008", f"no initializer: {shown}", notes=notes)


def _open_scope(m: Machine, what: str) -> Scope:
    if m.scope is None or m.in_body:
        raise Problem("E-TYPE-001", f"{what} stands outside the expressions of a run")
    return m.scope


def _param(
    m: Machine, name: Value, size: Value, start: Value, decay: Value, trainable: Value, share: Value, convolution: Value
) -> Node:
    path, origin = _place(m, "param", name)
    shape, labels = values.shape(size, f"param {name}")
    decays = len(shape) >= 2 if decay is None else boolean(decay, "param: :decay")
    trained = boolean(trainable, "param: :trainable")
    begins = replace(initializer(start), convolution=boolean(convolution, "param: :convolution"))
    made = Parameter(path, shape, begins, decays, trained, origin, labels)
    return _declared(m, "param", made, share)


def _buffer(m: Machine, name: Value, size: Value, start: Value, share: Value) -> Node:
    path, origin = _place(m, "buffer", name)
    shape, labels = values.shape(size, f"buffer {name}")
    made = Parameter(path, shape, initializer(start), False, False, origin, labels, buffer=True)
    return _declared(m, "buffer", made, share)


def _place(m: Machine, what: str, name: Value) -> tuple[str, Origin]:
    """The path that a name has here, and what to remember of the place."""
    scope = _open_scope(m, what)
    if not isinstance(name, str) or not name:
        raise Problem("E-TYPE-001", f"{what}: the name is a text, not {describe(name)}")
    assert m.here is not None
    return scope.inner_path(name), m.origin(m.here)


def _declared(m: Machine, what: str, made: Parameter, share: Value) -> Node:
    shares = boolean(share, f"{what}: :share") or _open_scope(m, what).share
    # The node first: a shape that is too large is refused before the parameter is known.
    attributes = {"kind": kind_of(made), "name": made.name, "dtype": "f32", "shape": made.shape}
    node = m.graph.add("input", (), attributes, labels=made.labels or None)
    m.parameters.declare(made, shares)
    return relabelled(node, made.labels)


def _update(m: Machine, buffer: Value, value: Value) -> None:
    """What a buffer is after the step. Where `training` is false nothing is updated."""
    _open_scope(m, "update")
    if not isinstance(buffer, Node) or buffer.op != "input" or buffer.attributes["kind"] != "buffer":
        raise Problem("E-TYPE-001", f"update takes a buffer, not {describe(buffer)}")
    name = buffer.attributes["name"]
    node = fitting(m.graph, value, buffer.shape, f"the buffer {name}")
    if m.context.training:
        m.graph.results.discard(node)
        m.parameters.update(name, node, m.here)


def _real_rows(m: Machine, x: Value) -> Node | None:
    """`real`, bool[batch 1 …], where rows of X may repeat the last example of a short batch, else nil."""
    if m.context.real is None or not isinstance(x, Node) or m.in_body:
        return None
    real = m.context.real()
    if not x.shape or x.shape[0] != real.shape[0]:
        return None
    return m.graph.add("reshape", (real,), {"shape": (*real.shape, *(1 for _ in x.shape[1:]))})


def _random(m: Machine, size: Value) -> Node:
    """The one random primitive: uniform in [0, 1), the key is the scope's path and the count of draws there."""
    scope = _open_scope(m, "a random field")
    shape, labels = values.shape(size, "random")
    path, ordinal = scope.draw()
    return m.graph.add("random", (), {"shape": shape, "path": path, "ordinal": ordinal}, labels=labels or None)


def _weighted(m: Machine, loss: Value, weight: Value) -> Weighted:
    return Weighted(loss, weight)


def _probe(m: Machine, name: Value, x: Value) -> Value:
    if not isinstance(name, str) or not name:
        raise Problem("E-TYPE-001", f"probe: the name is a text, not {describe(name)}")
    return x


def _decays(m: Machine, p: Value) -> bool:
    return _own_parameter(m, "decays?", p).decay


def _is_convolution(m: Machine, p: Value) -> bool:
    return _own_parameter(m, "convolution?", p).initializer.convolution


def _own_parameter(m: Machine, what: str, p: Value) -> Parameter:
    """The parameter that an optimizer asks about."""
    if m.update is None:
        raise Problem("E-TYPE-001", f"{what} is asked in optimizers only")
    if not isinstance(p, Node) or p.op != "input" or p.attributes["name"] != m.update.parameter.name:
        raise Problem("E-TYPE-001", f"{what} takes the optimizer's parameter, not {describe(p)}")
    return m.update.parameter


def _vocabulary(m: Machine, loader: Value) -> int:
    if not isinstance(loader, LoaderName):
        raise Problem("E-TYPE-001", f"vocab-size takes a loader, not {describe(loader)}")
    header = m.header(loader.name)
    if header is None:
        raise Silent()
    if header.vocabulary is None:
        raise Problem("E-TYPE-001", f"vocab-size: the loader {loader.name} has no vocabulary")
    return values.labelled(header.vocabulary, "vocab")


class Silent(Problem):
    """A problem that is reported already, where it stands."""

    def __init__(self) -> None:
        super().__init__("E-DATA-007", "")


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row(
            "(param NAME S INIT :decay nil :trainable true :share false :convolution false)",
            _param,
            "The parameter NAME of this scope.",
        ),
        row("(buffer NAME S INIT :share false)", _buffer, "The buffer NAME of this scope: state that no gradient trains."),
        row("(update B V)", _update, "In :loss: after the step the buffer B is the mean of V over its microbatches."),
        row("(real-rows X)", _real_rows, "Where X's rows may repeat a short batch's last example: which do not; else nil."),
        row("(normal STD)", _initializer("normal"), "Initial values: normal with mean 0."),
        row("(trunc-normal STD)", _initializer("trunc-normal"), "Initial values: normal, cut at two deviations."),
        row("(uniform LO HI)", _initializer("uniform"), "Initial values: uniform."),
        row("(constant C)", _initializer("constant"), "Initial values: all C."),
        row("(kaiming)", _initializer("kaiming"), "Initial values: normal, deviation √(2 / fan-in)."),
        row("(xavier)", _initializer("xavier"), "Initial values: uniform, ± √(6 / (fan-in + fan-out))."),
        row("(orthogonal)", _initializer("orthogonal"), "Initial values: orthonormal rows or columns."),
        row("(from-file PATH KEY)", _from_file, "Initial values: the tensor KEY of a .safetensors file."),
        row("(random S)", _random, "Uniform numbers in [0, 1)."),
        row("(probe NAME X)", _probe, "X, shown to diagnostics as NAME."),
        row("(weighted L W)", _weighted, "As a whole :loss or metric: Σ L·W / Σ W over the step."),
        row("(decays? P)", _decays, "In optimizers: whether the parameter decays."),
        row("(convolution? P)", _is_convolution, "In optimizers: whether the parameter is a convolution's, [out in k…]."),
        row("(vocab-size LOADER)", _vocabulary, "How many tokens the loader's tokenizer knows."),
    ]
