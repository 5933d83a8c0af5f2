"""One expression elaborated by itself, outside any run: what `sexpgpu eval` computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sexpgpu.errors import Diagnostics
from sexpgpu.ir.graph import Graph
from sexpgpu.lang.forms import Form
from sexpgpu.lang.nesting import deep_recursion
from sexpgpu.lang.program import Program
from sexpgpu.passes.elaborate import in_order
from sexpgpu.passes.elaboration.bodies import is_wrong, tensors
from sexpgpu.passes.elaboration.compile import Compiler
from sexpgpu.passes.elaboration.loaders import HeaderReader, Loaders
from sexpgpu.passes.elaboration.machine import Context, Machine
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC
from sexpgpu.passes.elaboration.scope import Scope
from sexpgpu.passes.elaboration.values import POISON, Value
from sexpgpu.passes.experiment import Parameter


@dataclass(frozen=True)
class Evaluated:
    """A value of the language; its tensors are nodes of the graph, whose outputs they are, numbered in order."""

    value: Value
    graph: Graph
    parameters: Sequence[Parameter]


def evaluated(program: Program, form: Form, read_header: HeaderReader, training: bool = False) -> Evaluated:
    """The value of an expression among a program's definitions. Raises Diagnostics."""
    machine = Machine()
    compiler = Compiler(program, machine, BUILTINS, CONSTANTS, DYNAMIC)
    Loaders(program, compiler, read_header)
    for error in program.problems:
        machine.report(error)
    graph = Graph("eval")
    machine.graph, machine.scope, machine.context = graph, Scope(), Context(training=training)
    with deep_recursion():
        value = machine.guarded(lambda: compiler.evaluate(form), POISON)
    if machine.errors:
        raise Diagnostics(in_order(program, machine.errors))
    assert not is_wrong(value), "a wrong value and no problem"
    graph.outputs = {str(k): node for k, node in enumerate(tensors(value))}
    return Evaluated(value, graph, list(machine.parameters.model.values()))
