"""Cases of layers, attention and losses; optimizers and schedules step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import meaning
import numpy as np
from cases import Array, Case, OptimizerCase, Schedule, exact, fixed, flags, normal, positive, smooth, whole


def neural() -> list[Case]:
    def layer(name: str, expression: str, reference: Callable[..., Any], x: Array, **parameters: Array) -> Case:
        named = {key.replace("__", "."): value for key, value in parameters.items()}
        return Case(name, expression, {"x": x}, reference, ("x", *named), named)

    x, wide, row = normal(1, 2, 3, 7), normal(2, 5, 33), normal(3, 32)
    spread = np.array([[-200.0, 90.0, 100.0, 101.0], [0.0, 0.0, 0.0, 0.0]])
    cases = [
        layer("linear", "(linear x 5)", meaning.linear, x, linear__weight=normal(4, 7, 5), linear__bias=normal(5, 5)),
        layer("linear of rows", "(linear x 32)", meaning.linear, wide, linear__weight=normal(4, 33, 32), linear__bias=row),
        layer(
            "linear of one", "(linear x 1)", meaning.linear, normal(3, 1, 1),
            linear__weight=normal(4, 1, 1), linear__bias=normal(5, 1),
        ),
        layer("linear without bias", '(linear x 5 :bias false :name "up")', meaning.linear, x, up__weight=normal(4, 7, 5)),
        layer(
            "two linears", "(linear (relu (linear x 6)) 4 :bias false)",
            lambda x, a, bias, b: meaning.linear(meaning.relu(meaning.linear(x, a, bias)), b), x,
            linear__weight=normal(4, 7, 6), linear__bias=normal(5, 6), linear_2__weight=normal(6, 6, 4),
        ),
        smooth("embed", "(embed table ids)", lambda table, ids: table[ids], table=normal(6, 9, 5), ids=whole(7, 0, 9, 3, 7)),
        smooth("split-heads", "(split-heads x 3)", lambda x: meaning.split_heads(x, 3), x=normal(8, 2, 5, 6)),
        smooth("merge-heads", "(merge-heads x)", meaning.merge_heads, x=normal(9, 2, 3, 5, 4)),
        smooth("rope", "(rope x)", meaning.rope, x=normal(10, 1, 2, 7, 6)),
        smooth(
            "rope from a position", "(rope x :base 100 :offset 3)", lambda x: meaning.rope(x, 100.0, 3),
            x=normal(11, 2, 1, 5, 4),
        ),
    ]  # fmt: skip
    images = normal(12, 2, 6, 3, 2)
    for groups in (1, 3, 6):
        cases.append(
            layer(
                f"groupnorm of {groups}", f"(groupnorm x {groups})",
                lambda x, gain, bias, n=groups: meaning.groupnorm(x, gain, bias, n), images,
                groupnorm__gain=positive(13, 6), groupnorm__bias=normal(14, 6),
            )
        )  # fmt: skip
    for n in (7, 33):
        x, gain, bias = normal(n, 3, n), positive(n + 1, n), normal(n + 2, n)
        cases += [
            layer(f"layernorm of {n}", "(layernorm x)", meaning.layernorm, x, layernorm__gain=gain, layernorm__bias=bias),
            layer(
                f"layernorm of {n} without bias", "(layernorm x :bias false :eps 0.01)",
                lambda x, gain: meaning.layernorm(x, gain, None, 0.01), x, layernorm__gain=gain,
            ),
            layer(f"rmsnorm of {n}", "(rmsnorm x)", meaning.rmsnorm, x, rmsnorm__gain=gain),
            layer(
                f"rmsnorm of {n}, eps", "(rmsnorm x :eps 0.01)", lambda x, gain: meaning.rmsnorm(x, gain, 0.01), x,
                rmsnorm__gain=gain,
            ),
        ]  # fmt: skip
        for op, f in (("softmax", meaning.softmax), ("log-softmax", meaning.log_softmax)):
            cases.append(smooth(f"{op} of rows of {n}", f"({op} x)", f, x=x))
            cases.append(
                smooth(f"{op} of columns of {n}", f"({op} x :axis 0)", lambda x, f=f: f(x, 0), x=normal(n, n, 3))
            )
    for op, f in (("softmax", meaning.softmax), ("log-softmax", meaning.log_softmax)):
        cases.append(smooth(f"{op} far", f"({op} x)", f, x=spread))
        cases.append(smooth(f"{op} of one", f"({op} x)", f, x=normal(1, 3, 1)))
    return cases


def attentions() -> list[Case]:
    def case(name: str, options: str, q: tuple[int, ...], k: tuple[int, ...], **told: Any) -> Case:
        operands = {"q": normal(1, *q), "k": normal(2, *k), "v": normal(3, *k)}
        return smooth(
            name, f"(attention q k v{options})", lambda q, k, v: meaning.attention(q, k, v, **told), **operands
        )

    def masked(name: str, mask: Array, options: str = "", **told: Any) -> Case:
        def reference(q: Array, k: Array, v: Array, mask: Array) -> Array:
            return meaning.attention(q, k, v, mask=mask, **told)

        operands = {"q": normal(4, 2, 2, 5, 3), "k": normal(5, 2, 2, 5, 3), "v": normal(6, 2, 2, 5, 3), "mask": mask}
        return smooth(name, f"(attention q k v :mask mask{options})", reference, **operands)

    one, own = (1, 2, 7, 4), np.eye(5, dtype=bool)
    return [
        case("attention", "", one, one),
        case("attention, causal", " :causal true", one, one, causal=True),
        case("attention over 33", " :causal true", (1, 1, 33, 2), (1, 1, 33, 2), causal=True),
        case("attention, one place", " :causal true", (2, 2, 1, 3), (2, 2, 1, 3), causal=True),
        case("attention, scaled", " :scale 0.25", one, one, scale=0.25),
        case("attention, other keys", "", (1, 2, 3, 4), (1, 2, 7, 4)),
        case("attention, two queries a key", " :causal true", (1, 4, 5, 3), (1, 2, 5, 3), causal=True),
        case("attention, one key for all", "", (2, 3, 4, 2), (2, 1, 4, 2)),
        masked("attention, masked", flags(7, 5, 5) | own),
        masked("attention, masked in each row", flags(8, 2, 1, 5, 5) | own),
        masked("attention, masked and causal", flags(9, 5, 5) | own, " :causal true", causal=True),
    ]


def losses() -> list[Case]:
    def classes(name: str, options: str, targets: Array, classes: int, **told: Any) -> Case:
        logits = exact(3 * normal(1, *targets.shape, classes))
        expression = f"(cross-entropy x y{options})"
        return smooth(name, expression, lambda x, y: meaning.cross_entropy(x, y, **told), x=logits, y=targets)

    a, b, share = normal(2, 33), normal(3, 33), exact(meaning.sigmoid(normal(4, 33)))
    few, many, far = whole(5, 0, 10, 7), whole(6, 0, 33, 2, 5), np.array([[-200.0, 100.0, 101.0], [50.0, -50.0, 0.0]])
    logs = [exact(meaning.log_softmax(normal(k, 4, 7))) for k in (7, 8)]
    return [
        classes("cross-entropy", "", few, 10),
        classes("cross-entropy of tokens", "", many, 33),
        classes("cross-entropy of one", "", whole(7, 0, 2, 1), 2),
        classes("cross-entropy, smoothed", " :label-smoothing 0.1", many, 33, smoothing=0.1),
        classes("cross-entropy, ignoring", " :ignore 3", np.array([3, 0, 3, 9, 1], np.int32), 10, ignore=3),
        classes("cross-entropy, ignoring -1", " :ignore -1", np.array([-1, 0, 3, 9, -1], np.int32), 10, ignore=-1),
        classes(
            "cross-entropy, both", " :label-smoothing 0.2 :ignore 3", np.array([3, 0, 3, 9], np.int32), 10,
            smoothing=0.2, ignore=3,
        ),
        smooth("cross-entropy far", "(cross-entropy x y)", meaning.cross_entropy, x=far, y=np.array([1, 0], np.int32)),
        smooth("binary-cross-entropy", "(binary-cross-entropy x y)", meaning.binary_cross_entropy, x=exact(3 * a), y=share),
        fixed(
            "binary-cross-entropy far", "(binary-cross-entropy x y)", meaning.binary_cross_entropy,
            x=np.array([-80.0, -80.0, 80.0, 80.0, 0.0]), y=np.array([0.0, 1.0, 0.0, 1.0, 0.5]),
        ),
        smooth("mse", "(mse a b)", meaning.mse, a=a, b=b),
        smooth("huber", "(huber a b)", meaning.huber, a=a, b=b),
        smooth("huber, delta", "(huber a b :delta 0.5)", lambda a, b: meaning.huber(a, b, 0.5), a=a, b=b),
        smooth("kl-divergence", "(kl-divergence p q)", meaning.kl_divergence, p=logs[0], q=logs[1]),
    ]  # fmt: skip


def optimizers() -> list[OptimizerCase]:
    def case(expression: str, reference: Callable[..., list[Array]], *shape: int, **told: Any) -> OptimizerCase:
        def steps(p: Array, gradients: Sequence[Array]) -> list[Array]:
            return reference(p, gradients, **told)

        gradients = tuple(exact(normal(k, *shape) * 10.0**-k) for k in range(5))
        return OptimizerCase(expression, normal(9, *shape), gradients, steps)

    sgd, adam, lion = meaning.sgd, meaning.adam, meaning.lion
    return [
        case("(sgd)", sgd, 7),
        case("(sgd :lr 0.1 :momentum 0.9)", sgd, 33, lr=0.1, momentum=0.9),
        case("(sgd :lr 0.1 :momentum 0.9 :nesterov true)", sgd, 3, 7, lr=0.1, momentum=0.9, nesterov=True),
        case("(sgd :lr 0.1 :momentum 0.9 :decay 0.01)", sgd, 3, 7, lr=0.1, momentum=0.9, decay=0.01),
        case("(adam)", adam, 3, 7),
        case("(adam :lr 0.01 :betas [0.8 0.9] :eps 1e-3)", adam, 33, lr=0.01, betas=(0.8, 0.9), eps=1e-3),
        case("(adamw)", adam, 3, 7, decay=0.01),
        case("(adamw)", adam, 33),
        case("(adamw :lr 0.01 :betas [0.9 0.95] :decay 0.1)", adam, 1, 32, lr=0.01, betas=(0.9, 0.95), decay=0.1),
        case("(lion)", lion, 33),
        case("(lion :lr 0.01 :betas [0.8 0.9] :decay 0.1)", lion, 3, 7, lr=0.01, betas=(0.8, 0.9), decay=0.1),
    ]


def schedules() -> list[Schedule]:
    def cosine(expression: str, total: int, steps: Sequence[int], **told: Any) -> Schedule:
        return Schedule(expression, total, {step: meaning.warmup_cosine(step, total=total, **told) for step in steps})

    form = "(warmup-cosine step :peak 6e-4 :warmup {} :total total-steps{})"
    return [
        cosine(form.format(100, ""), 2000, (1, 50, 100, 101, 1050, 1999, 2000), peak=6e-4, warmup=100),
        cosine(form.format(0, ""), 10, (1, 5, 10), peak=6e-4, warmup=0),
        cosine(form.format(2, " :floor 0"), 7, (1, 2, 3, 6, 7), peak=6e-4, warmup=2, floor=0.0),
        Schedule("(warmup-linear step :peak 0.5 :warmup 2 :total 10)", 10, {1: 0.25, 2: 0.5, 6: 0.25, 10: 0.0}),
        Schedule("(constant-then-linear step :peak 0.5 :constant 4 :total 8)", 8, {1: 0.5, 4: 0.5, 5: 0.375, 8: 0.0}),
    ]
