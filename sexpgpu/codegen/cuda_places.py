"""What an index means on the GPU: the nearest valid place, and the flag for the first one out of range."""

from __future__ import annotations

from sexpgpu.codegen.cuda_source import MEMORY_TYPES, Argument
from sexpgpu.codegen.numba_indexed import FLAG_BASE
from sexpgpu.plan.kernel import Indexed, Place

_NEAREST = """\
// An index's place along an axis: a negative one counts from the end, for one out of range the nearest valid one stands.
__device__ __forceinline__ long long nearest(long long given, long long size)
{
    const long long wanted = given < 0 ? given + size : given;
    return wanted < 0 ? 0 : wanted < size ? wanted : size - 1;
}
"""

# No atomic choice among those that see one: which thread is the first is known from the indices alone.
_CHECK = """\
// Whoever meets an index out of range looks for an earlier one, so that one thread alone writes the flag and the choice is
// always the same. That takes long only in a run that stops for it, and ends as soon as the flag is written.
template <class T>
__device__ __forceinline__ void check(const T* indices, long long position, long long size, long long* flag)
{
    const long long given = indices[position];
    if (given >= -size && given < size) return;
    for (long long earlier = 0; earlier < position; ++earlier) {
        const long long other = indices[earlier];
        if (other < -size || other >= size) return;
        if (earlier % 1024 == 1023 && atomicOr((unsigned long long*)flag, 0ull)) return;
    }
    if (flag[0] == 0) {
        flag[0] = given + FLAG_BASEll;
        flag[1] = size;
    }
}
"""


def index_parameters(launch: Indexed, place: Place) -> tuple[tuple[str, Argument], ...]:
    """The index operand, and the flag where the launch has one."""
    indices = (f"const {MEMORY_TYPES[launch.index_dtype]}* __restrict__ indices", place)
    return (indices,) if launch.flag is None else (indices, ("long long* __restrict__ flag", launch.flag))


def index_functions(launch: Indexed) -> tuple[str, ...]:
    return (_NEAREST,) if launch.flag is None else (_NEAREST, _CHECK.replace("FLAG_BASE", str(FLAG_BASE)))
