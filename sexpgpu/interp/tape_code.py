"""The tape's native code as LLVM text: workers that run records of {function, arguments, units} in step.

Of the current record every worker takes the next blocks, a share of what is left at a time, until none is left; whoever
finishes the last block moves on to the next record. So nobody waits for a worker that the system has not scheduled,
only for blocks that are being computed. Blocks are cut by shape alone, so it does not matter who computes which.

Words (i64) of the control block; those that threads watch have a cache line (8 words) of their own:
     0 position: call (20 bits), record (20), next block (24); record 2^20 − 1: nothing to do
     8 blocks done of the current record   16 calls so far
    24 workers that sleep between calls   25 workers that sleep within one
    32 stop   33 workers   34 tape   35 records   36 address of sched_yield   37 of syscall (Linux)   38 of usleep
    39 of clock_gettime   40 … scratch of each worker   then the log of each worker
A record: function, arguments, units, units a block, blocks.
The timed tape also writes logs: events so far, room for events, then of each event record, blocks, begin and end in ns
of the system's monotonic clock. The other one has none of that code.
"""

from __future__ import annotations

POSITION, DONE, CALLS, SLEEPING, WAITING = 0, 8, 16, 24, 25
STOP, WORKERS, TAPE, RECORDS, YIELD, SYSCALL, USLEEP, CLOCK, SCRATCH = 32, 33, 34, 35, 36, 37, 38, 39, 40
RECORD_WORDS, EVENT_WORDS, LOG_WORDS = 5, 4, 2
MOST_RECORDS, MOST_BLOCKS = (1 << 20) - 2, (1 << 24) - 1
# The position when there is nothing to do.
IDLE = ((1 << 20) - 1) << 24
# Looks at a word before a thread sleeps: about 50 µs of x86 pauses between calls, 200 µs within one.
IDLE_LOOKS, BUSY_LOOKS = 1000, 4000
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


def source(machine: str, timed: bool = False) -> str:
    """`@kernel(control, mode, worker, seen)`: mode 0 is one call, by worker 0; mode 1 is another worker's life."""
    hint = pause(machine)
    text = _TEXT.replace("$BEGIN", _BEGIN if timed else "").replace("$END", _END if timed else "")
    text = text + _LOGGING if timed else text
    names = {
        "PAUSE": hint,
        "IDLY": str(IDLE_LOOKS),
        "BUSY": str(BUSY_LOOKS),
        "FUTEX": str(_FUTEX_NUMBER.get(machine, 0)),
        "IDLE": str(IDLE),
    }
    names |= {f"W_{name}": str(globals()[name]) for name in _WORD_NAMES}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"${name}", names[name])
    return f"; the tape\n{_DECLARATIONS.get(hint, '')}\n{text}"


_WORD_NAMES = (
    "POSITION", "DONE", "CALLS", "SLEEPING", "WAITING",
    "STOP", "WORKERS", "TAPE", "RECORDS", "YIELD", "SYSCALL", "USLEEP", "CLOCK", "SCRATCH",
)  # fmt: skip

_TEXT = """
define internal i64 @word(ptr %c, i64 %n) alwaysinline {
  %p = getelementptr i64, ptr %c, i64 %n
  %v = load i64, ptr %p
  ret i64 %v
}

; Waits until the word at %p is no longer %old: spins for %spins looks, giving way now and then, and sleeps after that.
; %sleepers counts who sleeps.
define internal i64 @wait(ptr %c, ptr %p, i64 %old, i64 %spins, ptr %sleepers) {
entry:
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %pause ], [ %j, %yield ]
  %now = load atomic i64, ptr %p acquire, align 8
  %same = icmp eq i64 %now, %old
  br i1 %same, label %more, label %done
more:
  %j = add i64 %i, 1
  %early = icmp ult i64 %j, %spins
  br i1 %early, label %spin, label %deep
spin:
  %part = and i64 %j, 255
  %often = icmp ne i64 %part, 0
  br i1 %often, label %pause, label %yield
pause:
  $PAUSE
  br label %look
yield:
  %a = call i64 @word(ptr %c, i64 $W_YIELD)
  %f = inttoptr i64 %a to ptr
  %r = call i32 %f()
  br label %look
deep:
  %u1 = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %again
again:
  %then = load atomic i64, ptr %p seq_cst, align 8
  %still = icmp eq i64 %then, %old
  br i1 %still, label %rest, label %awake
rest:
  %syscall_address = call i64 @word(ptr %c, i64 $W_SYSCALL)
  %has_futex = icmp ne i64 %syscall_address, 0
  br i1 %has_futex, label %futex, label %nap
futex:
  %syscall = inttoptr i64 %syscall_address to ptr
  %low = trunc i64 %old to i32
  %u2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %p, i32 128, i32 %low, ptr null, ptr null, i32 0)
  br label %again
nap:
  %usleep_address = call i64 @word(ptr %c, i64 $W_USLEEP)
  %usleep = inttoptr i64 %usleep_address to ptr
  %u3 = call i32 %usleep(i32 50)
  br label %again
awake:
  %u4 = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %done
done:
  %result = load atomic i64, ptr %p acquire, align 8
  ret i64 %result
}

; Wakes whoever sleeps on the word at %p, which has just been changed.
define internal void @wake(ptr %c, ptr %p, ptr %sleepers) {
entry:
  %count = load atomic i64, ptr %sleepers seq_cst, align 8
  %syscall_address = call i64 @word(ptr %c, i64 $W_SYSCALL)
  %some = icmp ne i64 %count, 0
  %has_futex = icmp ne i64 %syscall_address, 0
  %both = and i1 %some, %has_futex
  br i1 %both, label %call, label %done
call:
  %syscall = inttoptr i64 %syscall_address to ptr
  %u2 = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %p, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %done
done:
  ret void
}

; Works until there is nothing to do.
define internal void @work(ptr %c, i64 %w) {
entry:
  %position = getelementptr i64, ptr %c, i64 $W_POSITION
  %done_blocks = getelementptr i64, ptr %c, i64 $W_DONE
  %workers = call i64 @word(ptr %c, i64 $W_WORKERS)
  %share = mul i64 %workers, 2
  %alone = icmp eq i64 %workers, 1
  br label %loop
loop:
  %p = load atomic i64, ptr %position acquire, align 8
  %p1 = lshr i64 %p, 24
  %number = and i64 %p1, 1048575
  %idle = icmp eq i64 %number, 1048575
  br i1 %idle, label %finish, label %look
look:
  %tape_address = call i64 @word(ptr %c, i64 $W_TAPE)
  %tape = inttoptr i64 %tape_address to ptr
  %at = mul i64 %number, 5
  %r = getelementptr i64, ptr %tape, i64 %at
  %blocks = call i64 @word(ptr %r, i64 4)
  %next = and i64 %p, 16777215
  %some = icmp ult i64 %next, %blocks
  br i1 %some, label %take, label %none
none:
  %waiting = getelementptr i64, ptr %c, i64 $W_WAITING
  %u1 = call i64 @wait(ptr %c, ptr %position, i64 %p, i64 $BUSY, ptr %waiting)
  br label %loop
take:
  %left = sub i64 %blocks, %next
  %part0 = udiv i64 %left, %share
  %zero = icmp eq i64 %part0, 0
  %part = select i1 %zero, i64 1, i64 %part0
  %k = select i1 %alone, i64 %left, i64 %part
  %p2 = add i64 %p, %k
  %swap = cmpxchg ptr %position, i64 %p, i64 %p2 acq_rel acquire
  %taken = extractvalue { i64, i1 } %swap, 1
  br i1 %taken, label %run, label %loop
run:
  %function_address = call i64 @word(ptr %r, i64 0)
  %args = call i64 @word(ptr %r, i64 1)
  %units = call i64 @word(ptr %r, i64 2)
  %per_block = call i64 @word(ptr %r, i64 3)
  %scratch_place = add i64 %w, $W_SCRATCH
  %scratch = call i64 @word(ptr %c, i64 %scratch_place)
  %lo = mul i64 %next, %per_block
  %end = add i64 %next, %k
  %hi0 = mul i64 %end, %per_block
  %over = icmp ugt i64 %hi0, %units
  %hi = select i1 %over, i64 %units, i64 %hi0
  %function = inttoptr i64 %function_address to ptr$BEGIN
  call void %function(i64 %args, i64 %lo, i64 %hi, i64 %scratch)$END
  %before = atomicrmw add ptr %done_blocks, i64 %k acq_rel
  %after = add i64 %before, %k
  %last = icmp eq i64 %after, %blocks
  br i1 %last, label %advance, label %loop
advance:
  store atomic i64 0, ptr %done_blocks release, align 8
  %records = call i64 @word(ptr %c, i64 $W_RECORDS)
  %following = add i64 %number, 1
  %is_end = icmp eq i64 %following, %records
  %to = select i1 %is_end, i64 1048575, i64 %following
  %to1 = shl i64 %to, 24
  %call = and i64 %p, -17592186044416
  %p3 = or i64 %call, %to1
  store atomic i64 %p3, ptr %position seq_cst, align 8
  %watching = getelementptr i64, ptr %c, i64 $W_WAITING
  call void @wake(ptr %c, ptr %position, ptr %watching)
  br label %loop
finish:
  ret void
}

; Counts a call and wakes whoever sleeps.
define internal void @announce(ptr %c) {
  %calls = getelementptr i64, ptr %c, i64 $W_CALLS
  %sleeping = getelementptr i64, ptr %c, i64 $W_SLEEPING
  %unused = atomicrmw add ptr %calls, i64 1 seq_cst
  call void @wake(ptr %c, ptr %calls, ptr %sleeping)
  ret void
}

define void @kernel(i64 %control, i64 %mode, i64 %w, i64 %seen0) {
entry:
  %c = inttoptr i64 %control to ptr
  %lives = icmp ne i64 %mode, 0
  br i1 %lives, label %life, label %call
call:
  %stopping = call i64 @word(ptr %c, i64 $W_STOP)
  %stopped = icmp ne i64 %stopping, 0
  br i1 %stopped, label %end, label %begin
begin:
  ; Record 0, block 0 of this call: only now may anybody look at the tape.
  %calls = call i64 @word(ptr %c, i64 $W_CALLS)
  %place = shl i64 %calls, 44
  %position = getelementptr i64, ptr %c, i64 $W_POSITION
  store atomic i64 %place, ptr %position release, align 8
  call void @announce(ptr %c)
  call void @work(ptr %c, i64 0)
  br label %done
end:
  call void @announce(ptr %c)
  br label %done
life:
  %seen = phi i64 [ %seen0, %entry ], [ %number, %works ]
  %calls2 = getelementptr i64, ptr %c, i64 $W_CALLS
  %sleeping = getelementptr i64, ptr %c, i64 $W_SLEEPING
  %number = call i64 @wait(ptr %c, ptr %calls2, i64 %seen, i64 $IDLY, ptr %sleeping)
  %stop = call i64 @word(ptr %c, i64 $W_STOP)
  %ends = icmp ne i64 %stop, 0
  br i1 %ends, label %done, label %works
works:
  call void @work(ptr %c, i64 %w)
  br label %life
done:
  ret void
}
"""

_BEGIN = "\n  %begin = call i64 @now(ptr %c)"
_END = "\n  call void @log(ptr %c, i64 %w, i64 %number, i64 %k, i64 %begin)"

_LOGGING = """
; CLOCK_MONOTONIC of Linux, which Python's perf_counter reads too.
define internal i64 @now(ptr %c) {
  %time = alloca [2 x i64], align 8
  %address = call i64 @word(ptr %c, i64 $W_CLOCK)
  %clock = inttoptr i64 %address to ptr
  %r = call i32 %clock(i32 1, ptr %time)
  %seconds = call i64 @word(ptr %time, i64 0)
  %rest = call i64 @word(ptr %time, i64 1)
  %whole = mul i64 %seconds, 1000000000
  %ns = add i64 %whole, %rest
  ret i64 %ns
}

; An event into the worker's log, where there is room.
define internal void @log(ptr %c, i64 %w, i64 %number, i64 %blocks, i64 %begin) {
entry:
  %end = call i64 @now(ptr %c)
  %workers = call i64 @word(ptr %c, i64 $W_WORKERS)
  %after = add i64 %workers, $W_SCRATCH
  %place = add i64 %after, %w
  %address = call i64 @word(ptr %c, i64 %place)
  %log = inttoptr i64 %address to ptr
  %count = call i64 @word(ptr %log, i64 0)
  %room = call i64 @word(ptr %log, i64 1)
  %more = add i64 %count, 1
  store i64 %more, ptr %log
  %fits = icmp ult i64 %count, %room
  br i1 %fits, label %write, label %done
write:
  %words = mul i64 %count, 4
  %first = add i64 %words, 2
  %event = getelementptr i64, ptr %log, i64 %first
  store i64 %number, ptr %event
  %e1 = getelementptr i64, ptr %event, i64 1
  store i64 %blocks, ptr %e1
  %e2 = getelementptr i64, ptr %event, i64 2
  store i64 %begin, ptr %e2
  %e3 = getelementptr i64, ptr %event, i64 3
  store i64 %end, ptr %e3
  br label %done
done:
  ret void
}
"""
