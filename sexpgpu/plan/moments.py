"""When launches run and which buffers they use: a loop's launches have moments of their own between its begin and end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sexpgpu.plan.kernel import Launch, Loop, places_of

# Buffer, first and last moment of a use.
Use = tuple[int, int, int]


def uses(launches: Sequence[Launch], moment: int = 0) -> tuple[list[Use], int]:
    """Every use of a buffer from a moment on, and the moment after all of them. What outlasts an iteration of a loop is
    in use from the loop's begin to its end."""
    found: list[Use] = []
    for launch in launches:
        if isinstance(launch, Loop):
            inner, end = uses(launch.launches, moment + 1)
            found += [use if use[0] in launch.temporaries else (use[0], moment, end) for use in inner]
            found += [(window.base.buffer, moment, end) for window in launch.windows]
            moment = end
        else:
            found += [(at.buffer, moment, moment) for at in places_of(launch)]
        moment += 1
    return found, moment


def with_moments(launches: Sequence[Launch], moment: int = 0) -> Iterator[tuple[int, int, Launch]]:
    """Every launch, those of loops after the loop itself: its moment, in how many loops it is, the launch."""
    for launch in launches:
        yield moment, 0, launch
        if isinstance(launch, Loop):
            for inner, depth, held in with_moments(launch.launches, moment + 1):
                yield inner, depth + 1, held
            moment = uses(launch.launches, moment + 1)[1]
        moment += 1
