"""The tape's native code as LLVM text: workers that run records of {function, arguments, units} in step.

Words (i64) of the control block, a cache line (8 words) apart where threads spin on them:
     0 arrived at the barrier   8 barriers passed   16 calls so far   24 sleeping workers
    32 stop   33 workers   34 tape   35 records   36 address of sched_yield   37 of syscall (Linux)   38 of usleep
    40 … scratch of each worker
A record: function, arguments, units, units a block, blocks, 1 if all earlier records must be done before it.
"""

from __future__ import annotations

ARRIVED, PASSED, CALLS, SLEEPING = 0, 8, 16, 24
STOP, WORKERS, TAPE, RECORDS, YIELD, SYSCALL, USLEEP, SCRATCH = 32, 33, 34, 35, 36, 37, 38, 40
RECORD_WORDS = 6
# Looks at a word before a thread gives its time slice away: about 50 µs of x86 pauses.
SPINS = 1000
_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}


def pause(machine: str) -> str:
    """A spinning thread's hint to its core."""
    if machine in ("x86_64", "AMD64"):
        return "call void @llvm.x86.sse2.pause()"
    if machine in ("aarch64", "arm64"):
        return "call void @llvm.aarch64.hint(i32 1)"
    return "fence seq_cst"


_DECLARATIONS = {
    "call void @llvm.x86.sse2.pause()": "declare void @llvm.x86.sse2.pause()",
    "call void @llvm.aarch64.hint(i32 1)": "declare void @llvm.aarch64.hint(i32)",
}


def source(machine: str) -> str:
    """`@kernel(control, mode, worker, unused)`: mode 0 is one call, by worker 0; mode 1 is another worker's life."""
    hint = pause(machine)
    text = _TEXT
    names = {"PAUSE": hint, "SPINS": str(SPINS), "FUTEX": str(_FUTEX_NUMBER.get(machine, 0))}
    names |= {f"W_{name}": str(globals()[name]) for name in _WORD_NAMES}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"${name}", names[name])
    return f"; the tape\n{_DECLARATIONS.get(hint, '')}\n{text}"


_WORD_NAMES = (
    "ARRIVED", "PASSED", "CALLS", "SLEEPING", "STOP", "WORKERS", "TAPE", "RECORDS", "YIELD", "SYSCALL", "USLEEP", "SCRATCH",
)  # fmt: skip

_TEXT = """
define internal i64 @word(ptr %c, i64 %n) alwaysinline {
  %p = getelementptr i64, ptr %c, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}

; Gives the time slice away.
define internal void @give_way(ptr %c) {
  %a = call i64 @word(ptr %c, i64 $W_YIELD)
  %f = inttoptr i64 %a to ptr
  %r = call i32 %f()
  ret void
}

; Waits until the word at %p is no longer %old: first spinning, then giving way.
define internal void @wait(ptr %c, ptr %p, i64 %old) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %spin ], [ %j, %yield ]
  %now = load atomic i64, ptr %p acquire, align 8
  %same = icmp eq i64 %now, %old
  br i1 %same, label %more, label %done
more:
  %j = add i64 %i, 1
  %early = icmp ult i64 %j, $SPINS
  br i1 %early, label %spin, label %yield
spin:
  $PAUSE
  br label %look
yield:
  call void @give_way(ptr %c)
  br label %look
done:
  ret void
}

; All workers have come here before any goes on.
define internal void @barrier(ptr %c, i64 %workers) {
entry:
  %arrived = getelementptr i64, ptr %c, i64 $W_ARRIVED
  %passed = getelementptr i64, ptr %c, i64 $W_PASSED
  %alone = icmp eq i64 %workers, 1
  br i1 %alone, label %done, label %several
several:
  %generation = load atomic i64, ptr %passed acquire, align 8
  %before = atomicrmw add ptr %arrived, i64 1 seq_cst
  %last = sub i64 %workers, 1
  %is_last = icmp eq i64 %before, %last
  br i1 %is_last, label %open, label %waits
open:
  store atomic i64 0, ptr %arrived seq_cst, align 8
  %unused = atomicrmw add ptr %passed, i64 1 seq_cst
  br label %done
waits:
  call void @wait(ptr %c, ptr %passed, i64 %generation)
  br label %done
done:
  ret void
}

; This worker's blocks of every record.
define internal void @run(ptr %c, i64 %w) {
entry:
  %workers = call i64 @word(ptr %c, i64 $W_WORKERS)
  %tape_address = call i64 @word(ptr %c, i64 $W_TAPE)
  %tape = inttoptr i64 %tape_address to ptr
  %records = call i64 @word(ptr %c, i64 $W_RECORDS)
  %scratch_place = add i64 %w, $W_SCRATCH
  %scratch = call i64 @word(ptr %c, i64 %scratch_place)
  %w1 = add i64 %w, 1
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %following, %after ]
  %more = icmp ult i64 %i, %records
  br i1 %more, label %record, label %finish
record:
  %at = mul i64 %i, 6
  %r = getelementptr i64, ptr %tape, i64 %at
  %function_address = call i64 @word(ptr %r, i64 0)
  %args = call i64 @word(ptr %r, i64 1)
  %units = call i64 @word(ptr %r, i64 2)
  %per_block = call i64 @word(ptr %r, i64 3)
  %blocks = call i64 @word(ptr %r, i64 4)
  %waits = call i64 @word(ptr %r, i64 5)
  %must_wait = icmp ne i64 %waits, 0
  br i1 %must_wait, label %sync, label %split
sync:
  call void @barrier(ptr %c, i64 %workers)
  br label %split
split:
  %first0 = mul i64 %w, %blocks
  %first = udiv i64 %first0, %workers
  %end0 = mul i64 %w1, %blocks
  %end = udiv i64 %end0, %workers
  ; A record of one block is worker 0's.
  %single = icmp ule i64 %blocks, 1
  %lead = icmp eq i64 %w, 0
  %single_end = select i1 %lead, i64 %blocks, i64 0
  %b0 = select i1 %single, i64 0, i64 %first
  %b1 = select i1 %single, i64 %single_end, i64 %end
  %lo = mul i64 %b0, %per_block
  %hi0 = mul i64 %b1, %per_block
  %over = icmp ugt i64 %hi0, %units
  %hi = select i1 %over, i64 %units, i64 %hi0
  %some = icmp ult i64 %lo, %hi
  br i1 %some, label %work, label %after
work:
  %function = inttoptr i64 %function_address to ptr
  call void %function(i64 %args, i64 %lo, i64 %hi, i64 %scratch)
  br label %after
after:
  %following = add i64 %i, 1
  br label %loop
finish:
  call void @barrier(ptr %c, i64 %workers)
  ret void
}

; Sleeps until the count of calls is no longer %seen.
define internal void @sleep(ptr %c, i64 %seen) {
entry:
  %calls = getelementptr i64, ptr %c, i64 $W_CALLS
  %sleeping = getelementptr i64, ptr %c, i64 $W_SLEEPING
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %spin ]
  %now = load atomic i64, ptr %calls acquire, align 8
  %same = icmp eq i64 %now, %seen
  br i1 %same, label %more, label %done
more:
  %j = add i64 %i, 1
  %early = icmp ult i64 %j, $SPINS
  br i1 %early, label %spin, label %deep
spin:
  $PAUSE
  br label %look
deep:
  %u1 = atomicrmw add ptr %sleeping, i64 1 seq_cst
  br label %again
again:
  %then = load atomic i64, ptr %calls seq_cst, align 8
  %still = icmp eq i64 %then, %seen
  br i1 %still, label %rest, label %awake
rest:
  %syscall_address = call i64 @word(ptr %c, i64 $W_SYSCALL)
  %has_futex = icmp ne i64 %syscall_address, 0
  br i1 %has_futex, label %futex, label %nap
futex:
  %syscall = inttoptr i64 %syscall_address to ptr
  %low = trunc i64 %seen to i32
  %u2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %calls, i32 128, i32 %low, ptr null, ptr null, i32 0)
  br label %again
nap:
  %usleep_address = call i64 @word(ptr %c, i64 $W_USLEEP)
  %usleep = inttoptr i64 %usleep_address to ptr
  %u3 = call i32 %usleep(i32 100)
  br label %again
awake:
  %u4 = atomicrmw sub ptr %sleeping, i64 1 seq_cst
  br label %done
done:
  ret void
}

; Counts a call and wakes whoever sleeps.
define internal void @announce(ptr %c) {
entry:
  %calls = getelementptr i64, ptr %c, i64 $W_CALLS
  %sleeping = getelementptr i64, ptr %c, i64 $W_SLEEPING
  %u1 = atomicrmw add ptr %calls, i64 1 seq_cst
  %count = load atomic i64, ptr %sleeping seq_cst, align 8
  %syscall_address = call i64 @word(ptr %c, i64 $W_SYSCALL)
  %some = icmp ne i64 %count, 0
  %has_futex = icmp ne i64 %syscall_address, 0
  %both = and i1 %some, %has_futex
  br i1 %both, label %wake, label %done
wake:
  %syscall = inttoptr i64 %syscall_address to ptr
  %u2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %calls, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %done
done:
  ret void
}

define void @kernel(i64 %control, i64 %mode, i64 %w, i64 %seen0) {
entry:
  %c = inttoptr i64 %control to ptr
  %lives = icmp ne i64 %mode, 0
  br i1 %lives, label %life, label %call
call:
  call void @announce(ptr %c)
  %stopping = call i64 @word(ptr %c, i64 $W_STOP)
  %stopped = icmp ne i64 %stopping, 0
  br i1 %stopped, label %done, label %lead
lead:
  call void @run(ptr %c, i64 0)
  br label %done
life:
  %seen = phi i64 [ %seen0, %entry ], [ %number, %works ]
  call void @sleep(ptr %c, i64 %seen)
  %number = add i64 %seen, 1
  %stop = call i64 @word(ptr %c, i64 $W_STOP)
  %ends = icmp ne i64 %stop, 0
  br i1 %ends, label %done, label %works
works:
  call void @run(ptr %c, i64 %w)
  br label %life
done:
  ret void
}
"""
