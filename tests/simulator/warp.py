"""Exchanges between the lanes of a warp: shuffles, votes, reductions, matches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.form import Action, Form
from tests.simulator.machine import Machine
from tests.simulator.threads import WARP, Threads

LANES = np.arange(WARP)


def required(machine: Machine, threads: Threads, mask: Any, what: str) -> None:
    """Notes it when a lane that the mask names is not here, or one that is here is not named."""
    if threads.whole_warps and np.all(mask == 0xFFFFFFFF):
        return
    wanted = machine.spread(mask, threads)
    present = present_lanes(machine, threads)
    exited = lanes_by_warp(machine, np.flatnonzero(machine.exited))[threads.indices // WARP]
    if (wanted & ~present & ~exited).any():
        machine.note("inactive-lane", f"{what} names a lane that is not here")
    if (wanted >> machine.lane[threads.pick].astype(np.uint32) & np.uint32(1) == 0).any():
        machine.note("inactive-lane", f"{what} is run by a lane that it does not name")


def lanes_by_warp(machine: Machine, indices: Array) -> Array:
    """For each warp of the machine the lanes among the places, as bits."""
    mask = np.zeros(machine.places, bool)
    mask[indices] = True
    return np.packbits(mask.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)[:, 0]


def present_lanes(machine: Machine, threads: Threads) -> Array:
    return np.asarray(lanes_by_warp(machine, threads.indices)[threads.indices // WARP])


def source_lane(mode: str, lane: Array, by: Any, control: Any) -> tuple[Array, Array]:
    """The lane that each reads, and whether it lies in the lane's own segment."""
    by, clamp, segment = by & 31, control & 31, (control >> 8) & 31
    least = lane & segment
    most = least | (clamp & ~segment)
    lanes = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": least | (by & ~segment)}[mode]
    inside = lanes >= most if mode == "up" else lanes <= most
    return np.where(inside, lanes, lane), np.asarray(inside)


def same(value: Any) -> bool:
    return bool(np.min(value) == np.max(value))


def shuffle(form: Form) -> Action:
    mode = form.one_of("up", "down", "bfly", "idx")
    put, put_inside = form.two_targets()
    x, by, control = (form.source(place, "u32") for place in (1, 2, 3))
    mask = form.source(4, "u32")

    def run(machine: Machine, threads: Threads) -> None:
        required(machine, threads, mask(machine, threads), "shfl.sync's mask")
        value = machine.spread(x(machine, threads), threads)
        distance, bounds = by(machine, threads), control(machine, threads)
        if threads.whole_warps and same(distance) and same(bounds):
            lanes, inside = source_lane(mode, LANES, int(np.min(distance)), int(np.min(bounds)))
            moved = value.reshape(-1, WARP)[:, lanes].reshape(-1)
            inside = np.tile(inside, threads.count // WARP)
        else:
            lane = machine.lane[threads.pick]
            lanes, inside = source_lane(mode, lane, distance.astype(np.int64), bounds.astype(np.int64))
            moved = gather(machine, threads, value, threads.indices - lane + lanes)
        put(machine, threads, moved)
        if put_inside:
            put_inside(machine, threads, machine.spread(inside, threads))

    return run


def gather(machine: Machine, threads: Threads, value: Array, places: Array) -> Array:
    """Values by place where some lanes are not here."""
    held, here = np.zeros(machine.places, value.dtype), np.zeros(machine.places, bool)
    held[threads.pick] = value
    here[threads.pick] = True
    if not here[places].all():
        machine.note("inactive-lane", "shfl from a lane that is not here")
    return np.asarray(held[places])


def vote(form: Form) -> Action:
    mode = form.one_of("all", "any", "uni", "ballot")
    read, put = form.source(1, "pred"), form.target()
    mask = form.source(2, "u32") if form.count > 2 else None

    def run(machine: Machine, threads: Threads) -> None:
        if mask:
            required(machine, threads, mask(machine, threads), "vote.sync's mask")
        yes = lanes_by_warp(machine, threads.indices[machine.spread(read(machine, threads), threads)])
        yes, here = yes[threads.indices // WARP], present_lanes(machine, threads)
        answers = {"ballot": yes, "all": yes == here, "any": yes != 0, "uni": (yes == 0) | (yes == here)}
        put(machine, threads, answers[mode])

    return run


REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduction(form: Form) -> Action:
    function = REDUCTIONS.get(form.one_of(*REDUCTIONS))
    if function is None or form.dtype.kind == "f":
        raise form.unsupported()
    read, mask, put = form.source(1), form.source(2, "u32"), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        required(machine, threads, mask(machine, threads), "redux.sync's mask")
        value, warps = machine.spread(read(machine, threads), threads), threads.indices // WARP
        starts = np.flatnonzero(np.diff(warps, prepend=-1))
        found = function.reduceat(value, starts).astype(form.dtype)
        put(machine, threads, np.repeat(found, np.diff(starts, append=threads.count)))

    return run


def match(form: Form) -> Action:
    """match.any: the lanes with the same value; match.all: all of them or none."""
    read, mask, every = form.source(1, f"b{form.bits}"), form.source(2, "u32"), form.has("all")
    put, put_all = form.two_targets()

    def run(machine: Machine, threads: Threads) -> None:
        required(machine, threads, mask(machine, threads), "match.sync's mask")
        value = machine.spread(read(machine, threads), threads)
        warps, lane = threads.indices // WARP, machine.lane[threads.pick]
        _, group = np.unique(np.stack([warps.astype(np.uint64), value.astype(np.uint64)]), axis=1, return_inverse=True)
        same = np.zeros(int(group.max()) + 1, np.int64)
        np.bitwise_or.at(same, group, np.left_shift(1, lane))
        found = same[group].astype(np.uint32)
        whole = found == present_lanes(machine, threads)
        put(machine, threads, np.where(whole, found, np.uint32(0)) if every else found)
        if put_all:
            put_all(machine, threads, whole)

    return run


def active_mask(form: Form) -> Action:
    put = form.target()
    return lambda machine, threads: put(machine, threads, present_lanes(machine, threads))


def elect(form: Form) -> Action:
    """The first lane that is here."""
    put, put_leader = form.two_targets()

    def run(machine: Machine, threads: Threads) -> None:
        lanes = present_lanes(machine, threads).astype(np.int64)
        first = np.bitwise_count((lanes & -lanes) - 1).astype(np.uint32)
        put(machine, threads, first)
        if put_leader:
            put_leader(machine, threads, first == machine.lane[threads.pick])

    return run


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "shfl": shuffle,
    "vote": vote,
    "redux": reduction,
    "match": match,
    "activemask": active_mask,
    "elect": elect,
}
