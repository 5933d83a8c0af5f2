"""The installed cuDNN plans our graphs for cards that are not here, or says why it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import pytest

from sexpgpu.cuda import cudnn
from sexpgpu.cuda.cards import CARDS
from sexpgpu.cuda.cudnn_graph import MatMul, Operation, OperationGraph, Pointwise, Reduction, Tensor
from sexpgpu.cuda.cudnn_graphs import attention, product
from sexpgpu.cuda.cudnn_plans import reasons_in
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.cuda.library import CUDNN, find
from sexpgpu.plan.kernel import Attention, Matrix, Place, Product
from tests.attending import Case
from tests.fake_cudnn.attentions import launches
from tests.fake_cudnn.planning import Planned, plans_of

if find(CUDNN) is None:
    pytest.skip("needs nvidia-cudnn-cu13, of the extra [test]", allow_module_level=True)

# GPT-2's attention, the same with fewer heads of k and v, and one of other lengths and widths without an order of time.
CASES = {
    "gpt2": Case((2, 12, 12, 1024, 1024, 64, 64), causal=True),
    "grouped": Case((2, 12, 4, 256, 256, 64, 64), causal=True),
    "crossed": Case((2, 4, 4, 128, 256, 64, 32)),
}


def multiplied(m: int = 512, n: int = 3072, k: int = 768) -> Product:
    """x · Wᵀ, as linear layers have it."""
    return Product(
        "bf16", m, n, k, Matrix(Place(0), k, 1, (0,)), Matrix(Place(1), 1, k, (0,)), Matrix(Place(2), n, 1, (0,))
    )


@cache
def graphs() -> Mapping[str, OperationGraph]:
    made: dict[str, OperationGraph] = {}
    for name, case in CASES.items():
        for launch in launches(case):
            made[f"{name} {'backward' if launch.backward else 'forward'}"] = attention(launch, "bf16")
    made["without lse"] = attention(without_lse(launches(CASES["gpt2"])[0]), "bf16")
    made["bias and gelu"] = product(multiplied(), Epilogue(Place(3), "gelu"))
    made["bias and gelu-tanh"] = product(multiplied(), Epilogue(Place(3), "gelu-tanh"))
    made["bias of f32"] = product(multiplied(), Epilogue(Place(3), bias_dtype="f32"))
    return made


def without_lse(launch: Attention) -> Attention:
    return msgspec.structs.replace(launch, stores=launch.stores[:1])


# What is planned for every card; the rest for one.
EVERYWHERE = ("gpt2 forward", "gpt2 backward", "grouped forward", "grouped backward", "bias and gelu-tanh", "bias of f32")


@cache
def planned(card: str) -> Mapping[str, Planned]:
    return plans_of(card, {n: graph for n, graph in graphs().items() if card == "a100" or n in EVERYWHERE})


@pytest.mark.parametrize("card", ["a100", "l4", "h100", "b200"])
def test_cudnn_takes_every_graph_as_it_is_meant(card: str) -> None:
    assert set(EVERYWHERE) <= set(planned(card))
    for name, found in planned(card).items():
        graph = graphs()[name]
        assert found.refusal == "", name
        assert found.understood is not None
        assert tensors_in(found.understood) == {t.number: tensor_words(t) for t in graph.tensors.values()}, name
        assert nodes_in(found.understood) == sorted(operation_words(o) for o in graph.operations), name


def test_a_forward_attention_is_one_fused_kernel_without_scores_in_memory() -> None:
    assert all(planned("a100")[f"{name} forward"].workspace_bytes <= 256 for name in CASES)


def test_a_backward_attention_keeps_ds_alone() -> None:
    # In bf16 for 2 · 12 heads; a row's δ and what engines round up to are small beside it.
    ds_bytes = 2 * 12 * 1024 * 1024 * 2
    assert ds_bytes <= planned("a100")["gpt2 backward"].workspace_bytes <= 1.01 * ds_bytes


# Refusals


def test_a_refusal_has_the_words_of_the_engines() -> None:
    narrow, _ = launches(Case((1, 2, 2, 64, 64, 36, 36), causal=True))
    _, backward = launches(Case((1, 2, 2, 64, 64, 64, 64), causal=True))
    found = plans_of("a100", {"narrow": attention(narrow, "bf16"), "f32": attention(backward, "f32")})
    assert "; Embedding dim per head for q and k is not a multiple of 8" in found["narrow"].refusal
    assert found["f32"].refusal == "cuDNN refuses: Data type for Q tensor should be half / bf16 / e4m3 / e5m2"


def test_a_workspace_that_is_too_large_is_a_refusal() -> None:
    _, backward = launches(CASES["grouped"])
    (found,) = plans_of("h100", {"": attention(backward, "bf16")}, most_workspace_bytes=1 << 20).values()
    assert re.search(r"engine \d needs a workspace of \d{7} bytes", found.refusal)


def test_of_every_engine_the_innermost_reason_is_told_once() -> None:
    text = """{"engineId":0,"smVersion":800}
Warning: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN; Reason: Fused Attention graph was not given to the engine at: true
Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: ptr->isSupported()

{"engineId":1,"smVersion":800}
Warning: CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE; Reason: Q should be half at: true
Warning: CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE; Reason: generate_mha_fort()

{"engineId":2,"smVersion":800}
Warning: CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE; Reason: Q should be half at: true
"""
    assert reasons_in(text) == ("Q should be half",)


# Numbers


PREFIXES: dict[type[Enum], tuple[str, str]] = {
    cudnn.Type: ("CUDNN_TYPE_", ""),
    cudnn.Kind: ("CUDNN_BACKEND_", "_DESCRIPTOR"),
    cudnn.Attribute: ("CUDNN_ATTR_", ""),
    cudnn.DataType: ("CUDNN_DATA_", ""),
    cudnn.PointwiseMode: ("CUDNN_POINTWISE_", ""),
    cudnn.Reducing: ("CUDNN_REDUCE_TENSOR_", ""),
    cudnn.Heuristic: ("CUDNN_HEUR_MODE_", ""),
    cudnn.NumericalNote: ("CUDNN_NUMERICAL_NOTE_", ""),
}


@cache
def header() -> Mapping[str, int]:
    """The enumerators of cudnn_graph_v9.h, which the wheel brings."""
    place = find(CUDNN)
    assert place is not None
    text = (place.path.parents[1] / "include" / "cudnn_graph_v9.h").read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    made: dict[str, int] = {}
    for body in re.findall(r"typedef enum[^{]*\{(.*?)\}", text, re.S):
        last = -1
        for item in body.split(","):
            words = item.split()
            if words:
                last = number_of(words[-1], made) if "=" in words else last + 1
                made[words[0]] = last
    return made


def number_of(word: str, known: Mapping[str, int]) -> int:
    return (
        known[word] if word in known else int(word, 0) if re.fullmatch(r"-?\w*\d\w*", word) and word[0] != "C" else -1
    )


@pytest.mark.parametrize("numbers", PREFIXES, ids=lambda numbers: numbers.__name__)
def test_numbers_are_those_of_the_header(numbers: type[Enum]) -> None:
    before, after = PREFIXES[numbers]
    for member in numbers:
        number = member.value[0] if isinstance(member.value, tuple) else member.value
        assert header()[f"{before}{member.name}{after}"] == number, member


def test_every_function_is_in_the_library_and_its_version_known() -> None:
    assert cudnn.version() >= (9, 13, 0)


def test_figures_of_cards_are_plausible() -> None:
    for name, card in CARDS.items():
        # Two transfers a clock: what the data sheet says within a twentieth (boost clocks differ).
        by_clock = 2 * card.memory_clock_khz * 1e3 * card.memory_bus_bits / 8
        assert card.bytes_a_second == pytest.approx(by_clock, rel=0.05), name
        assert card.shared_bytes_opt_in in (99 << 10, 163 << 10, 227 << 10)


# What cuDNN wrote down, and how we would

DTYPES = {"f32": "FLOAT", "bf16": "BFLOAT16", "f16": "HALF", "i32": "INT32", "bool": "BOOLEAN"}


def tensor_words(tensor: Tensor) -> tuple[Any, ...]:
    is_number = tensor.value is not None
    return f"CUDNN_DATA_{DTYPES[tensor.dtype]}", tensor.sizes, tensor.strides, tensor.is_virtual, is_number, 16


def tensors_in(understood: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    return {
        int(t["name"]): (
            t["dataType"], tuple(t["dim"]), tuple(t["stride"]), t["isVirtual"], t["isByValue"], t["ptrAlignment"],
        )
        for t in understood["tensors"]
    }  # fmt: skip


def operation_words(operation: Operation) -> str:
    if isinstance(operation, MatMul):
        return f"MATMUL {operation.a.number} {operation.b.number} {operation.y.number}"
    if isinstance(operation, Reduction):
        return f"REDUCTION CUDNN_REDUCE_TENSOR_{operation.operator} {operation.x.number} {operation.y.number}"
    if isinstance(operation, Pointwise):
        further = [t.number if t is not None else None for t in (operation.b, operation.chosen)]
        words = f"POINTWISE CUDNN_POINTWISE_{operation.mode} {operation.x.number} {operation.y.number}"
        return f"{words} {further} {operation.axis} {DTYPES[operation.precision]}"
    return f"RESHAPE {operation.x.number} {operation.y.number}"


def nodes_in(understood: Mapping[str, Any]) -> list[str]:
    return sorted(node_words(node) for node in understood["nodes"])


def node_words(node: Mapping[str, Any]) -> str:
    kind = node["operation"].removeprefix("CUDNN_BACKEND_OPERATION_").removesuffix("_DESCRIPTOR")
    if kind == "MATMUL":
        return f"MATMUL {node['matA']} {node['matB']} {node['matC']}"
    if kind == "REDUCTION":
        return f"REDUCTION {node['reductionOp']} {node['X']} {node['Y']}"
    if kind == "POINTWISE":
        further = [int(node[key]) if key in node else None for key in "BT"]
        precision = node["mathPrec"].removeprefix("CUDNN_DATA_")
        return f"POINTWISE {node['pointwiseMode']} {node['X']} {node['Y']} {further} {node.get('axis')} {precision}"
    return f"{kind} {node['X']} {node['Y']}"
