"""Products by cuBLASLt: which of a plan's it runs, the words why our own kernels run the others, and their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sexpgpu.codegen.cuda_emit import alignment_of
from sexpgpu.cuda import cublas
from sexpgpu.cuda.attentions import Attending, ChosenGraph
from sexpgpu.cuda.context import Stream
from sexpgpu.cuda.cublas import EpilogueFlag
from sexpgpu.cuda.epilogue import NO_EPILOGUE, Epilogue
from sexpgpu.cuda.folding import folds
from sexpgpu.cuda.matmul import WORKSPACE_BYTES, Matmul, Rules, Three, describe
from sexpgpu.cuda.matmul_calls import NoAlgorithm, PreparedMatmul, new_handle
from sexpgpu.cuda.product_graphs import ProductGraphs
from sexpgpu.plan.kernel import Place, Plan, Product, flattened

NOWHERE: Three = (0, 0, 0)
# Of a bias while an algorithm is asked for.
UNPLACED = 256


@dataclass(frozen=True)
class Chosen:
    """A product of a plan that the library runs: the calls of its matmul differ from others of its shape in their
    places alone. `prepared` None: there is no card to ask for an algorithm."""

    matmul: Matmul
    prepared: PreparedMatmul | None

    def at(self, address: Callable[[Place], int], workspace: int) -> PlacedProduct:
        assert self.prepared is not None
        bases = [address(place) for place in self.matmul.places]
        calls = tuple(_moved(bases, call) for call in self.matmul.calls)
        bias = self.matmul.bias
        return PlacedProduct(self.prepared, calls, workspace, 0 if bias is None else address(bias))


@dataclass(frozen=True)
class PlacedProduct:
    """The calls of a product, with the addresses of b, a and c of each, and of its bias (0: none)."""

    prepared: PreparedMatmul
    calls: Sequence[Three]
    workspace: int
    bias: int = 0

    def run(self, stream: Stream) -> None:
        self.prepared.run_at(self.calls, self.workspace, stream, self.bias)


def _moved(bases: Sequence[int], offsets: Three) -> Three:
    b, a, c = (base + offset for base, offset in zip(bases, offsets, strict=True))
    return b, a, c


@dataclass(frozen=True)
class Division:
    """Who runs the products of a plan: the library those of `chosen`, by their launches' numbers; of the others, how many
    for which reason. `done`: kernels that their calls do, by number. `graphs`: products that cuDNN runs
    with their bias. `attending`: who runs its attention."""

    chosen: Mapping[int, Chosen] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)
    library: str = ""
    done: frozenset[int] = frozenset()
    graphs: ProductGraphs = field(default_factory=ProductGraphs)
    attending: Attending = field(default_factory=Attending)

    @property
    def elsewhere(self) -> Set[int]:
        """Launches that have no kernel: a library's call does what they do."""
        return {*self.chosen, *self.done, *self.graphs.chosen, *self.graphs.done}

    @property
    def native(self) -> Mapping[int, ChosenGraph]:
        """What cuDNN runs, by its launch's number."""
        return {**self.graphs.chosen, **self.attending.chosen}

    @property
    def native_workspace_bytes(self) -> int:
        return max(self.graphs.workspace_bytes, self.attending.workspace_bytes)

    @property
    def words(self) -> str:
        """`36 cuBLASLt 13.1.0, 3 own kernels`, as the lowering report has it."""
        parts = [f"{len(self.chosen)} {self.library}"] if self.chosen else []
        parts += [f"{len(self.graphs.chosen)} cuDNN"] if self.graphs.chosen else []
        others = sum(self.own.values())
        return ", ".join([*parts, f"{others} own kernels"] if others else parts)

    @property
    def notes(self) -> list[str]:
        own = [f"products: {count} by our own kernels: {reason}" for reason, count in self.own.items() if reason]
        return [*own, *self._epilogues(), *self.graphs.notes, *self.attending.notes]

    def _epilogues(self) -> list[str]:
        flags = Counter(chosen.matmul.epilogue for chosen in self.chosen.values())
        said = {EpilogueFlag.BIAS: "add their bias", EpilogueFlag.BGRADA: "sum the gradient of a bias"}
        return [f"products: {flags[flag]} {words} in {self.library}'s call" for flag, words in said.items() if flags[flag]]

    @property
    def workspace_bytes(self) -> int:
        return WORKSPACE_BYTES if self.chosen else 0


class Library:
    """cuBLASLt in the current context. What it was told of a shape is kept for the next product of that shape."""

    def __init__(self, rules: Rules, calls: Any = None) -> None:
        self.calls = calls or cublas.cublas()
        self.rules = rules
        self.handle = new_handle(self.calls)
        self.name = library_name(self.calls)
        self._prepared: dict[Matmul, PreparedMatmul | str] = {}

    def divide(self, plan: Plan, graphs: ProductGraphs) -> Division:
        """The library takes what it can; a shape for which it has no algorithm is one that it cannot."""
        return divided(plan, self.rules, self.name, self._prepared_of, graphs)

    def _prepared_of(self, matmul: Matmul) -> PreparedMatmul | str:
        bias = None if matmul.bias is None else Place(0)
        shape = replace(matmul, calls=(NOWHERE,), places=(Place(0),) * 3, bias=bias)
        if shape not in self._prepared:
            self._prepared[shape] = self._prepare(shape)
        return self._prepared[shape]

    def _prepare(self, shape: Matmul) -> PreparedMatmul | str:
        try:
            # Every call is given the place of its bias.
            return PreparedMatmul(self.calls, self.handle, shape, NOWHERE, UNPLACED if shape.bias else 0, 0)
        except NoAlgorithm as none:
            return str(none)

    def close(self) -> None:
        while self._prepared:
            prepared = self._prepared.popitem()[1]
            if not isinstance(prepared, str):
                prepared.close()
        self.calls.cublasLtDestroy(self.handle)


def divided(
    plan: Plan,
    rules: Rules,
    library: str,
    prepare: Callable[[Matmul], PreparedMatmul | str | None],
    graphs: ProductGraphs,
) -> Division:
    """Who runs the products of a plan that are not `graphs`: each with the kernel that its call can do, else alone, else our
    own kernels."""
    alignment, together = alignment_of(plan), folds(plan)
    chosen: dict[int, Chosen] = {}
    own: Counter[str] = Counter()
    done: set[int] = set()

    def choose(product: Product, epilogue: Epilogue) -> Chosen | str:
        matmul = describe(product, alignment, epilogue, rules)
        if isinstance(matmul, str):
            return matmul
        prepared = prepare(matmul)
        return prepared if isinstance(prepared, str) else Chosen(matmul, prepared)

    for number, launch in enumerate(flattened(plan.launches)):
        if not isinstance(launch, Product) or number in graphs.chosen:
            continue
        fold = together.get(number)
        found = choose(fold.product, fold.epilogue) if fold is not None else ""
        if fold is not None and not isinstance(found, str):
            done.add(fold.kernel)
        else:
            found = choose(launch, NO_EPILOGUE)
        if isinstance(found, str):
            own[found] += 1
        else:
            chosen[number] = found
    return Division(chosen, own, library, frozenset(done), graphs)


def foreseen(plan: Plan, rules: Rules) -> Division:
    """Who would run the products of a plan on a card that is not here: the library is asked for no algorithm."""
    own = own_division(plan)
    return divided(plan, rules, library_name(cublas.cublas()), lambda _: None, ProductGraphs()) if own.own else own


def library_name(calls: Any) -> str:
    return "cuBLASLt " + ".".join(map(str, cublas.version(calls)))


def own_division(plan: Plan, graphs: ProductGraphs | None = None) -> Division:
    """Our own kernels run all that are not `graphs`."""
    graphs = graphs or ProductGraphs()
    count = sum(isinstance(launch, Product) for launch in flattened(plan.launches)) - len(graphs.chosen)
    return Division(own={"": count} if count else {}, graphs=graphs)
