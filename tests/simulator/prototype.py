# ruff: noqa
# mypy: ignore-errors
"""ptxsim: executes the PTX that NVRTC emits, on the CPU, with numpy.  Prototype.

Lockstep and vectorised over every thread of many blocks at once: a *fragment* is (pc, thread indices); the fragment with the
lowest pc runs until a branch, a barrier, an exit or the next fragment's pc (min-PC scheduling, so threads reconverge).
Checks: out-of-bounds / misaligned / use-after-free / uninitialised global and shared reads, undefined registers, shared-memory races
(between barriers; __syncwarp orders a warp), global write-write and cross-block read-after-write races in one launch, divergent or
incomplete barriers, partial warps at shfl / mma / ldmatrix, shfl from an inactive lane, cp.async data used before its wait.
"""

import re, struct, time
import numpy as np

u8, u16, u32, u64, i32, i64, f32, f64 = (np.dtype(x) for x in ("u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8"))
DT = {
    "pred": np.dtype(bool),
    "b8": u8,
    "u8": u8,
    "s8": np.dtype("i1"),
    "b16": u16,
    "u16": u16,
    "s16": np.dtype("i2"),
    "f16": u16,
    "bf16": u16,
    "b32": u32,
    "u32": u32,
    "s32": i32,
    "f32": f32,
    "f16x2": u32,
    "bf16x2": u32,
    "b64": u64,
    "u64": u64,
    "s64": i64,
    "f64": f64,
}
GLOBAL_BASE, SHARED_WIN, LOCAL_WIN = 0x7F0000000000, 0x7E0000000000, 0x7D0000000000


class Fault(Exception):
    pass


# ---------------------------------------------------------------- device memory with a shadow
class Memory:
    """Flat arena; shadow per byte: 0 unmapped, 1 allocated but never written, 3 initialised."""

    def __init__(s, size=64 << 20, red=256):
        s.a = np.zeros(size, u8)
        s.sh = np.zeros(size, u8)
        s.top = red
        s.red = red
        s.allocs = {}
        s.wr = np.zeros(size // 4, u32)  # last writer (global thread id + 1) in this launch
        s.wl = np.zeros(size // 4, u32)  # launch id of that write
        s.rl = np.zeros(size // 4, u32)  # launch id of the last read

    def alloc(s, n):
        o = s.top
        s.top += (n + s.red + 255) // 256 * 256
        if s.top > s.a.size:
            raise MemoryError("CUDA_ERROR_OUT_OF_MEMORY")
        s.sh[o : o + n] = 1
        s.allocs[GLOBAL_BASE + o] = n
        return GLOBAL_BASE + o

    def free(s, p):
        n = s.allocs.pop(p)
        o = p - GLOBAL_BASE
        s.sh[o : o + n] = 0  # quarantined for ever: use after free faults

    def _chk(s, p, n, what):
        o = p - GLOBAL_BASE
        if o < 0 or o + n > s.a.size or (n and not s.sh[o : o + n].all()):
            raise Fault(f"{what}: {n} bytes at {p:#x} not inside one allocation")
        return o

    def write(s, p, arr):
        b = np.ascontiguousarray(arr).view(u8).ravel()
        o = s._chk(p, b.size, "HtoD")
        s.a[o : o + b.size] = b
        s.sh[o : o + b.size] = 3

    def read(s, p, n, dtype=u8):
        o = s._chk(p, n, "DtoH")
        if not (s.sh[o : o + n] == 3).all():
            raise Fault(f"DtoH reads bytes never written at {p:#x}")
        return s.a[o : o + n].copy().view(dtype)

    def memset(s, p, v, n):
        o = s._chk(p, n, "memset")
        s.a[o : o + n] = v
        s.sh[o : o + n] = 3


# ---------------------------------------------------------------- numerics
def bf2f(h):
    return (h.astype(u32) << 16).view(f32)


def f2bf(x):
    x = np.asarray(x, f32)
    u = x.view(u32)
    r = ((u + u32.type(0x7FFF) + ((u >> 16) & 1)) >> 16).astype(u16)
    return np.where(np.isnan(x), u16.type(0x7FFF), r)


def h2f(h):
    return h.view(np.float16).astype(f32)


def f2h(x):
    return np.asarray(x, f32).astype(np.float16).view(u16)


def fma32(a, b, c):
    """Correctly rounded f32 fma: the product is exact in f64; the f64 sum is rounded to odd, so the final rounding is single."""
    p = a.astype(f64) * b
    c = np.asarray(c, f64)
    s = p + c
    t = s - p
    e = (p - (s - t)) + (c - t)
    s = np.atleast_1d(np.asarray(s, f64)).copy()
    e = np.broadcast_to(e, s.shape)
    q = s.view(i64)
    fix = (e != 0) & ((q & 1) == 0) & np.isfinite(s)
    if fix.any():
        q[fix] += np.where((e[fix] > 0) == (s[fix] > 0), 1, -1)
    return s.astype(f32)


def ftz(x):
    return np.where((np.abs(x) < np.float32(1.1754944e-38)), np.copysign(np.float32(0), x), x)


def fmin_(a, b):
    return np.fmin(a, b)


def fmax_(a, b):
    return np.fmax(a, b)


UN = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rcp": lambda x: 1.0 / x,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
CMP = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


# ---------------------------------------------------------------- parser
TOK = re.compile(r"\s*(?:(@!?%?\w+)\s+)?([a-z][\w.:]*)\s*(.*?);\s*$", re.S)


class Kernel:
    pass


def split_ops(s):
    out, d, cur = [], 0, ""
    for ch in s:
        if ch in "{[(":
            d += 1
        if ch in "}])":
            d -= 1
        if ch == "," and d == 0:
            out.append(cur.strip())
            cur = ""
        else:
            cur += ch
    if cur.strip():
        out.append(cur.strip())
    return out


def parse(ptx):
    if isinstance(ptx, bytes):
        ptx = ptx.decode()
    ptx = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx.rstrip("\0"), flags=re.S)
    mod = {"target": re.search(r"\.target\s+(\w+)", ptx).group(1), "kernels": {}, "globals": {}}
    for m in re.finditer(
        r"^(?:\.visible\s+|\.extern\s+|\.weak\s+)*\.(global|const|shared)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(\w+)(?:\[(\d*)\])?\s*(?:=\s*(.*?))?;",
        ptx,
        re.M | re.S,
    ):
        sp, al, ty, nm, n, init = m.groups()
        mod["globals"][nm] = (
            sp,
            int(al or 1),
            ty,
            int(n or 1) if n != "" else 0,
            init,
            bool(re.match(r"\.extern", m.group(0))),
        )
    for m in re.finditer(r"\.entry\s+(\w+)\s*\((.*?)\)\s*((?:\.\w+[^{]*?)*)\{", ptx, re.S):
        k = Kernel()
        k.name, ps, k.dirs = m.groups()
        k.params = {}
        off = 0
        k.mod = mod
        depth, e = 1, m.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(ptx[e], 0)
            e += 1
        body = ptx[m.end() : e - 1]
        for p in re.findall(
            r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?)?(\w+)(?:\[(\d+)\])?",
            ps,
        ):
            al, ty, nm, n = p
            sz = DT[ty].itemsize
            a = int(al or sz)
            off = (off + a - 1) // a * a
            k.params[nm] = (off, sz * int(n or 1))
            off += sz * int(n or 1)
        k.psize = off
        k.regs = {}
        k.shared = {}
        k.local = {}
        k.smax = {}
        sm = lo = 0
        k.code, k.labels = [], {}
        scopes = [{}]
        uniq = 0

        def ren(t):  # scoped names of inline asm blocks: innermost first
            for sc in reversed(scopes):
                if t in sc:
                    return sc[t]
            return t

        for st in statements(body):
            if st == "{":
                scopes.append({})
                continue
            if st == "}":
                scopes.pop()
                continue
            if st.endswith(":"):
                k.labels[st[:-1].strip()] = len(k.code)
                continue
            d = re.match(r"\.(reg|shared|local|param|pragma|loc|file|branchtargets|callprototype)\b\s*(.*)$", st, re.S)
            if d:
                kind, rest = d.groups()
                if kind == "reg":
                    ty, nms = re.match(r"\.(\w+)\s+(.*)$", rest, re.S).groups()
                    for nm in nms.split(","):
                        nm = nm.strip()
                        r = re.match(r"%(\w+?)<(\d+)>$", nm)
                        if r:
                            k.regs[r.group(1)] = ty
                        elif len(scopes) > 1:
                            uniq += 1
                            scopes[-1][nm] = f"%{nm.lstrip('%')}__{uniq}"
                            k.regs[f"{nm.lstrip('%')}__{uniq}"] = ty
                        else:
                            k.regs[nm.lstrip("%")] = ty
                elif kind in ("shared", "local"):
                    al, ty, nm, n = re.match(r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(\w+)(?:\[(\d+)\])?", rest).groups()
                    a = int(al or 1)
                    size = DT[ty].itemsize * int(n or 1)
                    if kind == "shared":
                        sm = (sm + a - 1) // a * a
                        k.shared[nm] = sm
                        sm += size
                    else:
                        lo = (lo + a - 1) // a * a
                        k.local[nm] = lo
                        lo += size
                continue
            t = TOK.match(st + ";")
            if not t:
                raise SyntaxError(f"ptxsim: cannot parse {st!r}")
            pr, op, args = t.groups()
            if pr and len(scopes) > 1:
                pr = "@" + "!" * ("!" in pr) + ren(pr.lstrip("@!"))
            if len(scopes) > 1 and any(scopes):
                args = re.sub(r"(?<![\w.$%])%?[A-Za-z_$][\w$]*", lambda q: ren(q.group(0)), args)
            k.code.append((pr, op.split("."), split_ops(args), st + ";"))
        for nm, (sp, al, ty, n, init, ext) in mod["globals"].items():
            if sp == "shared" and not ext and re.search(r"\b%s\b" % re.escape(nm), body):
                sm = (sm + al - 1) // al * al
                k.shared[nm] = sm
                sm += DT[ty].itemsize * n
        sm = (sm + 15) // 16 * 16
        for nm, (sp, al, ty, n, init, ext) in mod["globals"].items():
            if sp == "shared" and ext:
                k.shared[nm] = sm
        k.static_smem, k.local_size = sm, (lo + 15) // 16 * 16
        mod["kernels"][k.name] = k
    return mod


def statements(body):
    """statements, labels, and the braces that are scopes (a brace inside a statement is a vector operand)"""
    cur = ""
    for c in body:
        if c in "{}" and not cur.strip():
            cur = ""
            yield c
        elif c == ";":
            yield " ".join(cur.split())
            cur = ""
        elif c == ":" and re.fullmatch(r"\s*[\w$]+\s*", cur):
            yield cur.strip() + ":"
            cur = ""
        else:
            cur += c


# ---------------------------------------------------------------- one chunk of blocks
class Run:
    def __init__(s, k, grid, block, dyn, pbytes, mem, check=True, blocks=None, launch_id=1, gaddr=None, jitter=None):
        s.k, s.mem, s.check, s.lid = k, mem, check, launch_id
        bx, by, bz = block
        T = bx * by * bz
        s.T = T
        nb = len(blocks)
        s.N = N = nb * T
        s.gaddr = gaddr or {}
        s.pb = pbytes
        t = np.arange(N, dtype=i64) % T
        s.blk = np.arange(N, dtype=i64) // T
        b = np.asarray(blocks, i64)[s.blk]
        U = lambda x: x.astype(u32)
        s.sp = {
            "%tid.x": U(t % bx),
            "%tid.y": U(t // bx % by),
            "%tid.z": U(t // (bx * by)),
            "%ctaid.x": U(b % grid[0]),
            "%ctaid.y": U(b // grid[0] % grid[1]),
            "%ctaid.z": U(b // (grid[0] * grid[1])),
            "%laneid": U(t & 31),
            "%warpid": U(t >> 5),
            "%smid": u32.type(0),
            "%clock": u32.type(0),
            "%clock64": u64.type(0),
            "%globaltimer": u64.type(0),
            "%dynamic_smem_size": u32.type(dyn),
        }
        for q in ("lt", "le", "eq", "ge", "gt"):
            l = t & 31
            s.sp["%lanemask_" + q] = U(
                {
                    "lt": (1 << l) - 1,
                    "le": (2 << l) - 1,
                    "eq": 1 << l,
                    "ge": (1 << 32) - (1 << l),
                    "gt": (1 << 32) - (2 << l),
                }[q]
            )
        for i, c in enumerate("xyz"):
            s.sp["%ntid." + c] = u32.type(block[i])
            s.sp["%nctaid." + c] = u32.type(grid[i])
        s.tid = t
        s.gid = (b * T + t + 1).astype(u32)
        if T % 32:
            raise Fault("ptxsim prototype: block size must be a multiple of 32")
        s.ssize = max(16, (k.static_smem + dyn + 15) // 16 * 16)
        s.smem = np.zeros(nb * s.ssize, u8)
        s.ssh = np.ones(nb * s.ssize, u8)
        W = nb * s.ssize // 4
        s.lw = np.full(W, -1, i32)
        s.lwe = np.full(W, -1, i32)
        s.lww = np.full(W, -1, i32)  # last write: thread, block epoch, warp epoch
        s.lr = np.full(W, -1, i32)
        s.lre = np.full(W, -1, i32)
        s.lrw = np.full(W, -1, i32)  # last read (thread -2: several)
        s.ep = np.zeros(N, i32)
        s.wep = np.zeros(N, i32)
        s.lmem = np.zeros(N * max(1, k.local_size), u8)
        s.R, s.D = {}, {}
        s.groups = []
        s.gcount = np.zeros(N, i64)
        s.exited = np.zeros(N, bool)
        s.wait = np.zeros(N, bool)
        s.waitpc = np.zeros(N, i64)
        s.lane_ops = 0
        s.steps = 0
        s.bank = None
        s.findings = []

    # -- registers
    def reg(s, n):
        a = s.R.get(n)
        if a is None:
            q = n.lstrip("%")
            m = re.match(r"([A-Za-z_]+?)\d+$", q)
            a = s.R[n] = np.zeros(s.N, DT[s.k.regs[q] if q in s.k.regs else s.k.regs[m.group(1)]])
            s.D[n] = np.zeros(s.N, bool)
        return a

    def get(s, o, ty, idx):
        dt = DT[ty]
        if o[0] == "%":
            v = s.sp.get(o)
            if v is not None:
                v = v if np.ndim(v) == 0 or idx is None else v[idx]
                return v.astype(dt) if v.dtype.itemsize != dt.itemsize else v.view(dt)
            if o == "%WARP_SZ":
                return dt.type(32)
            a = s.reg(o)
            if s.check and s.D[o] is not True:
                if not (s.D[o] if idx is None else s.D[o][idx]).all():
                    s.note("undefined-register", o)
            a = a if idx is None else a[idx]
            if a.dtype == dt:
                return a
            if a.dtype.itemsize == dt.itemsize:
                return a.view(dt)
            return a.astype(dt) if dt != np.bool_ else a != 0
        if o[:2] in ("0f", "0F"):
            return (
                np.frombuffer(struct.pack("<I", int(o[2:], 16)), f32)[0]
                if dt == f32
                else np.array(int(o[2:], 16), u32).view(dt)[()]
            )
        if o[:2] in ("0d", "0D"):
            return np.frombuffer(struct.pack("<Q", int(o[2:], 16)), f64)[0]
        if o[0].isdigit() or o[0] == "-":
            x = float(o) if "." in o else int(o.rstrip("U"), 0)
            return (
                dt.type(x)
                if dt.kind == "f"
                else np.array(x & ((1 << 8 * dt.itemsize) - 1), dtype=f"u{dt.itemsize}").view(dt)[()]
            )
        return s.sym(o, dt)

    def sym(s, o, dt=u64):
        if o in s.k.shared:
            return dt.type(s.k.shared[o])
        if o in s.k.local:
            return dt.type(s.k.local[o])
        if o in s.gaddr:
            return dt.type(s.gaddr[o])
        raise Fault("unknown symbol " + o)

    def put(s, o, v, idx):
        if o == "_":
            return
        a = s.reg(o)
        v = np.asarray(v)
        if v.dtype != a.dtype:
            v = (
                v.view(a.dtype)
                if v.dtype.itemsize == a.dtype.itemsize and v.ndim and a.dtype != np.bool_
                else (
                    np.asarray(v).reshape(1).view(a.dtype)[0]
                    if v.dtype.itemsize == a.dtype.itemsize and a.dtype != np.bool_
                    else v.astype(a.dtype)
                )
            )
        if idx is None:
            a[...] = v
            s.D[o] = True
        else:
            a[idx] = v
            if s.D[o] is not True:
                s.D[o][idx] = True

    def note(s, kind, what, ids=None):
        f = (kind, what, s.pc, s.k.code[s.pc][3])
        if f[:3] not in [x[:3] for x in s.findings]:
            s.findings.append(f)

    def fault(s, msg):
        raise Fault(f"{s.k.name} pc={s.pc} `{s.k.code[s.pc][3]}`: {msg}")

    # -- memory
    def addr(s, o, idx):
        m = re.match(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]$", o)
        b, off = m.groups()
        w = s.get(b, "u64", idx) if b[0] == "%" else s.sym(b)
        if b[0] == "%" and s.reg(b).dtype.itemsize == 4:
            w = s.get(b, "u32", idx).astype(u64)
        return w.astype(i64) + i64.type(int(off, 0) if off else 0)

    def space(s, sp, a):
        if sp in ("global", "shared", "local", "param", "const"):
            return sp if sp != "const" else "global", a
        if np.ndim(a) == 0:
            a = np.array([a])
        if (a >= GLOBAL_BASE).all():
            return "global", a
        if ((a >= SHARED_WIN) & (a < GLOBAL_BASE)).all():
            return "shared", a - SHARED_WIN
        if ((a >= LOCAL_WIN) & (a < SHARED_WIN)).all():
            return "local", a - LOCAL_WIN
        s.fault(f"generic address in no window: {int(np.ravel(a)[0]):#x}")

    def ids(s, idx):
        return np.arange(s.N) if idx is None else idx

    def locate(s, sp, a, w, idx):
        """-> (byte offsets into the backing array, backing, shadow)"""
        I = s.ids(idx)
        a = np.broadcast_to(a, I.shape)
        if (a % w).any():
            s.fault(f"misaligned {w}-byte {sp} access at {int(a[(a % w) != 0][0]):#x}")
        if sp == "global":
            o = a - GLOBAL_BASE
            bad = (o < 0) | (o > s.mem.a.size - w)
            if bad.any():
                s.fault(
                    f"wild global address {int(a[bad][0]):#x} (thread {s.sp['%tid.x'][I[bad][0]]}, block {s.sp['%ctaid.x'][I[bad][0]]})"
                )
            return o, s.mem.a, s.mem.sh, I
        if sp == "shared":
            bad = (a < 0) | (a > s.ssize - w)
            if bad.any():
                s.fault(
                    f"shared address {int(a[bad][0])} outside the block's {s.ssize} bytes (thread {s.sp['%tid.x'][I[bad][0]]})"
                )
            return a + s.blk[I] * s.ssize, s.smem, s.ssh, I
        if sp == "local":
            if ((a < 0) | (a > s.k.local_size - w)).any():
                s.fault("local access outside the frame")
            return a + I * s.k.local_size, s.lmem, None, I

    def load(s, sp, a, w, n, idx, who=None):
        """n consecutive elements of w bytes from each address -> list of n uint arrays"""
        o, m, sh, I = s.locate(sp, a, w * n, idx)
        dt = np.dtype(f"u{w}")
        v = m.view(dt)
        q = o // w
        out = [v[q + j] for j in range(n)]
        if s.check and sh is not None:
            full = dt.type(int("03" * w, 16))
            one = dt.type(int("01" * w, 16))
            sv = sh.view(dt)
            for j in range(n):
                x = sv[q + j]
                if (x != full).any():
                    b = (x & one) != one
                    if b.any():
                        t = I[b][0]
                        s.fault(
                            f"{sp} read out of bounds at {int(np.ravel(np.broadcast_to(a, I.shape))[np.nonzero(b)[0][0]]):#x} (thread {s.tid[t]}, block {int(s.blk[t])})"
                        )
                    s.note(f"uninitialised-{sp}-read", f"{int((x != full).sum())} lanes")
            if sp == "shared":
                s.race(o, w * n, I, False)
            if sp == "global":
                wd = np.unique(o // 4) if w * n <= 4 else None
                k4 = o // 4
                for j in range(max(1, w * n // 4)):
                    s.mem.rl[k4 + j] = s.lid
                    lw = s.mem.wr[k4 + j]
                    bad = (s.mem.wl[k4 + j] == s.lid) & ((lw - 1) // s.T != (s.gid[I] - 1) // s.T)
                    if bad.any():
                        s.note(
                            "global-race: read of a word another block wrote in this launch", f"{int(bad.sum())} lanes"
                        )
        return out

    def store(s, sp, a, w, vals, idx, atomic=False):
        o, m, sh, I = s.locate(sp, a, w * len(vals), idx)
        dt = np.dtype(f"u{w}")
        v = m.view(dt)
        q = o // w
        if s.check and sh is not None:
            sv = sh.view(dt)
            one = dt.type(int("01" * w, 16))
            full = dt.type(int("03" * w, 16))
            for j in range(len(vals)):
                b = (sv[q + j] & one) != one
                if b.any():
                    t = I[b][0]
                    s.fault(
                        f"{sp} write out of bounds at {int(np.broadcast_to(a, I.shape)[np.nonzero(b)[0][0]]):#x} (thread {s.tid[t]}, block {int(s.blk[t])})"
                    )
            for j in range(len(vals)):
                sv[q + j] = full
            if sp == "shared":
                s.race(o, w * len(vals), I, True)
            if sp == "global":
                for j in range(max(1, w * len(vals) // 4)):
                    k4 = o // 4 + j
                    lw = s.mem.wr[k4]
                    bad = (s.mem.wl[k4] == s.lid) & (lw != s.gid[I]) & (w >= 4)
                    if bad.any() or (w >= 4 and len(np.unique(k4)) != len(k4)):
                        s.note("global-race: two threads store to one word", f"{int(bad.sum())} lanes")
                    s.mem.wr[k4] = s.gid[I]
                    s.mem.wl[k4] = s.lid
        for j, x in enumerate(vals):
            v[q + j] = x
        if not s.check and sp == "global":
            for j in range(len(vals)):
                sh.view(dt)[q + j] = dt.type(int("03" * w, 16))

    def race(s, o, nb, I, write):
        e, we, t, wp = s.ep[I], s.wep[I], s.tid[I].astype(i32), (s.tid[I] >> 5)
        for j in range(max(1, nb // 4)):
            k = o // 4 + j

            def clash(lt, le, lwp):
                other = (lt[k] != t) & (lt[k] != -1) & (le[k] == e)
                samewarp = (lt[k] >> 5) == wp
                return other & ~(samewarp & (lwp[k] != we))

            c = clash(s.lw, s.lwe, s.lww)
            if c.any():
                s.note(
                    "shared-race: " + ("write/write" if write else "read of another thread's write with no barrier"),
                    f"{int(c.sum())} lanes",
                )
            if write:
                c = clash(s.lr, s.lre, s.lrw) | ((s.lr[k] == -2) & (s.lre[k] == e))
                if c.any():
                    s.note("shared-race: write over another thread's read with no barrier", f"{int(c.sum())} lanes")
                if nb >= 4 and len(I) > 1 and len(np.unique(k)) != len(k):
                    s.note("shared-race: two threads write one word in one instruction", "")
                s.lw[k] = t
                s.lwe[k] = e
                s.lww[k] = we
            else:
                multi = (s.lre[k] == e) & (s.lr[k] != t) & (s.lr[k] != -1)
                s.lr[k] = np.where(multi, np.where((s.lr[k] >> 5 == wp) & (s.lr[k] >= 0), t, -2), t)
                s.lre[k] = e
                s.lrw[k] = we

    # -- warp helpers
    def warps(s, idx, what):
        I = s.ids(idx)
        if len(I) % 32 or (I.reshape(-1, 32)[:, 0] % 32).any() or (np.diff(I.reshape(-1, 32), axis=1) != 1).any():
            s.fault(f"{what} needs whole converged warps; a partial warp reached it")
        return I.reshape(-1, 32)

    # -- the scheduler
    def go(s, limit=50_000_000):
        k = s.k
        code = k.code
        prog = getattr(k, "prog", None)
        if prog is None:
            prog = k.prog = [decode(k, *c) for c in code]
        INF = 1 << 60
        fr = {0: None}  # pc -> None (every thread) or sorted indices
        with np.errstate(all="ignore"):
            while True:
                if not fr:
                    if s.exited.all():
                        break
                    s.pc = int(s.waitpc[s.wait][0])
                    s.fault(f"deadlock: {int(s.wait.sum())} threads wait at a barrier that the others never reach")
                pc = min(fr)
                idx = fr.pop(pc)
                stop = min(fr) if fr else INF
                while True:
                    if pc >= stop:
                        s.merge(fr, pc, idx)
                        break
                    s.pc = pc
                    kind, fn = prog[pc]
                    s.steps += 1
                    s.lane_ops += s.N if idx is None else len(idx)
                    if s.steps > limit:
                        s.fault("step limit")
                    if kind == 0:
                        fn(s, idx)
                        pc += 1
                        continue
                    if kind == 1:  # branch
                        pr, target = fn
                        if pr is None:
                            pc = target
                        else:
                            p = s.reg(pr[0])
                            p = p if idx is None else p[idx]
                            p = ~p if pr[1] else p
                            if p.all():
                                pc = target
                            elif not p.any():
                                pc += 1
                            else:
                                I = s.ids(idx)
                                s.merge(fr, target, I[p])
                                idx = I[~p]
                                pc += 1
                        s.merge(fr, pc, idx)
                        break
                    if kind == 2:  # ret / exit
                        pr = fn
                        I = s.ids(idx)
                        if pr is not None:
                            p = s.reg(pr[0])[I]
                            p = ~p if pr[1] else p
                            rest = I[~p]
                            I = I[p]
                        s.exited[I] = True
                        s.release(fr)
                        if pr is not None and len(rest):
                            s.merge(fr, pc + 1, rest)
                        break
                    if kind == 3:  # bar.sync 0
                        I = s.ids(idx)
                        s.wait[I] = True
                        s.waitpc[I] = pc
                        s.release(fr)
                        break
        return s

    def merge(s, fr, pc, idx):
        if pc in fr:
            a = fr[pc]
            if a is None or idx is None:
                fr[pc] = None
                return
            idx = np.sort(np.concatenate([a, idx]))
        fr[pc] = None if idx is not None and len(idx) == s.N else idx

    def release(s, fr):
        T = s.T
        w = s.wait.reshape(-1, T)
        ready = ((w | s.exited.reshape(-1, T)).all(1)) & w.any(1)
        if not ready.any():
            return
        I = np.nonzero((w & ready[:, None]).ravel())[0]
        pcs = s.waitpc[I]
        for b in np.nonzero(ready)[0]:
            q = s.waitpc.reshape(-1, T)[b][w[b]]
            if (q != q[0]).any():
                s.pc = int(q[0])
                s.note("divergent-barrier: threads of one block met at different bar.sync", "")
            if s.exited.reshape(-1, T)[b].any():
                s.pc = int(q[0])
                s.note("barrier-after-exit: some threads of the block had returned", "")
        s.wait[I] = False
        s.ep[I] += 1
        for p in np.unique(pcs):
            s.merge(fr, int(p) + 1, I[pcs == p])


# ---------------------------------------------------------------- decoder: one closure per instruction
def decode(k, pr, op, a, text):
    pred = (pr.lstrip("@!"), "!" in pr) if pr else None
    o = op[0]
    mods = op[1:]
    ty = next((m for m in reversed(mods) if m in DT), None)
    z = "ftz" in mods
    if o == "bra":
        return 1, (pred, k.labels[a[0]])
    if o in ("ret", "exit"):
        return 2, pred
    if o == "call" and "vprintf" in text:
        return 0, lambda s, idx: s.note("printf ignored", "")
    if o == "st" and "param" in mods or (o == "ld" and "param" in mods and "retval" in text):
        return 0, lambda s, idx: [s.put(x, DT[ty].type(0), idx) for x in (vec(a[0]) if o == "ld" else [])]
    if o in ("bar", "barrier") and "warp" not in mods:
        return 3, None
    f = ALU(k, o, mods, ty, z, a, text)
    if f is None:
        raise NotImplementedError(f"ptxsim: {text}")
    if pred is None:
        return 0, f
    n, neg = pred

    def g(s, idx):
        p = s.reg(n)
        p = p if idx is None else p[idx]
        p = ~p if neg else p
        if p.all():
            f(s, idx)
        elif p.any():
            f(s, s.ids(idx)[p])

    return 0, g


def vec(o):
    return [x.strip() for x in o[1:-1].split(",")] if o.startswith("{") else [o]


def ALU(k, o, m, ty, z, a, text):
    d = a[0] if a else None

    def fl(v):
        return ftz(v) if z else v

    def G(s, i, idx, t=None):
        v = s.get(a[i], t or ty, idx)
        return ftz(v) if z and v.dtype == f32 else v

    def bin2(fn):
        def f(s, idx):
            s.put(d, fl(fn(G(s, 1, idx), G(s, 2, idx))), idx)

        return f

    isf = ty in ("f32", "f64")
    sat = "sat" in m
    if o == "mov":

        def f(s, idx):
            D, S = vec(a[0]), vec(a[1])
            if len(D) == 1 and len(S) == 1:
                v = s.get(a[1], ty, idx)
                s.put(d, v, idx)
            elif len(S) > 1:  # pack
                w = DT[ty].itemsize * 8 // len(S)
                acc = 0
                for j, x in enumerate(S):
                    acc = acc | (s.get(x, f"b{w}", idx).astype(u64) << u64.type(j * w))
                s.put(d, np.asarray(acc).astype(DT[ty]), idx)
            else:
                w = DT[ty].itemsize * 8 // len(D)
                v = s.get(a[1], ty, idx).astype(u64)
                for j, x in enumerate(D):
                    s.put(x, (v >> u64.type(j * w)).astype(DT[f"b{w}"]), idx)

        return f
    if o == "ld" and "param" in m:

        def f(s, idx):
            nm, off = re.match(r"\[\s*(\w+)(?:\s*\+\s*(\d+))?\s*\]", a[1]).groups()
            p = s.k.params[nm][0] + int(off or 0)
            for j, x in enumerate(vec(d)):
                s.put(x, np.frombuffer(s.pb, DT[ty], 1, p + j * DT[ty].itemsize)[0], idx)

        return f
    if o in ("ld", "ldu"):
        sp0 = next((x for x in m if x in ("global", "shared", "local", "const")), None)

        def f(s, idx):
            sp, A = s.space(sp0, s.addr(a[1], idx))
            D = vec(d)
            for x, v in zip(D, s.load(sp, A, DT[ty].itemsize, len(D), idx)):
                v = v.view(DT[ty])
                r = s.reg(x) if x != "_" else None
                if r is not None and r.dtype.itemsize > v.dtype.itemsize:
                    v = v.astype(f"{'i' if v.dtype.kind == 'i' else 'u'}{r.dtype.itemsize}")
                s.put(x, v, idx)

        return f
    if o == "st":
        sp0 = next((x for x in m if x in ("global", "shared", "local")), None)
        w = DT[ty].itemsize
        ut = f"b{8 * w}"

        def f(s, idx):
            sp, A = s.space(sp0, s.addr(a[0], idx))
            s.store(sp, A, w, [s.get(x, ut, idx) for x in vec(a[1])], idx)

        return f
    if o == "cvta":
        base = {"shared": SHARED_WIN, "local": LOCAL_WIN}.get(m[-2] if len(m) > 1 else "", 0)
        to = "to" in m

        def f(s, idx):
            v = s.get(a[1], ty, idx).astype(u64)
            s.put(d, v - u64.type(base) if to else v + u64.type(base), idx)

        return f
    if o in ("add", "sub", "mul", "fma", "mad", "div", "rem", "min", "max") and ty in (
        "bf16x2",
        "f16x2",
        "bf16",
        "f16",
    ):
        up, dn = (bf2f, f2bf) if ty.startswith("bf") else (h2f, f2h)
        n = 2 if ty.endswith("x2") else 1

        def f(s, idx):
            X = [s.get(x, "b32" if n == 2 else "b16", idx) for x in a[1:]]
            acc = None
            for j in range(n):
                q = [up(((x >> u32.type(16 * j)) & u32.type(0xFFFF)).astype(u16)) if n == 2 else up(x) for x in X]
                r = {
                    "add": lambda: q[0] + q[1],
                    "sub": lambda: q[0] - q[1],
                    "mul": lambda: q[0] * q[1],
                    "fma": lambda: (q[0].astype(f64) * q[1] + q[2]).astype(f32),
                    "min": lambda: np.fmin(q[0], q[1]),
                    "max": lambda: np.fmax(q[0], q[1]),
                }[o]()
                r = dn(r)
                acc = (
                    r
                    if n == 1
                    else (
                        r.astype(u32) << u32.type(16 * j) if acc is None else acc | (r.astype(u32) << u32.type(16 * j))
                    )
                )
            s.put(d, acc, idx)

        return f
    if ty in ("bf16", "f16", "bf16x2", "f16x2") and o in ("abs", "neg"):
        k_ = 0x7FFF7FFF if o == "abs" else 0x80008000
        t_ = "b32" if ty.endswith("x2") else "b16"
        return lambda s, idx: s.put(
            d,
            (
                lambda v: (
                    v & v.dtype.type(k_ & (2 ** (8 * v.dtype.itemsize) - 1))
                    if o == "abs"
                    else v ^ v.dtype.type(k_ & (2 ** (8 * v.dtype.itemsize) - 1))
                )
            )(s.get(a[1], t_, idx)),
            idx,
        )
    if ty in ("bf16", "f16") and o == "setp":
        up = bf2f if ty == "bf16" else h2f
        fn = CMP[m[0].rstrip("u") if m[0] not in CMP else m[0]]
        return lambda s, idx: s.put(d, fn(up(s.get(a[1], "b16", idx)), up(s.get(a[2], "b16", idx))), idx)
    if isf:
        if o in ("add", "sub", "mul", "div", "min", "max", "copysign"):
            fn = {
                "add": np.add,
                "sub": np.subtract,
                "mul": np.multiply,
                "div": np.divide,
                "min": fmin_,
                "max": fmax_,
                "copysign": lambda x, y: np.copysign(y, x),
            }[o]
            if sat:
                return bin2(lambda x, y: np.clip(fn(x, y), 0, 1))
            return bin2(fn)
        if o in ("fma", "mad"):
            if ty == "f64":
                return lambda s, idx: s.put(d, G(s, 1, idx) * G(s, 2, idx) + G(s, 3, idx), idx)

            def f(s, idx):
                x, y, w = (np.atleast_1d(G(s, i, idx)) for i in (1, 2, 3))
                r = fl(fma32(x, y, w))
                s.put(d, np.clip(np.nan_to_num(r, nan=0), 0, 1) if sat else r, idx)

            return f
        if o == "neg":
            return lambda s, idx: s.put(d, -G(s, 1, idx), idx)
        if o == "abs":
            return lambda s, idx: s.put(d, np.abs(G(s, 1, idx)), idx)
        if o in UN:
            fn = UN[o]

            def f(s, idx):
                x = G(s, 1, idx)
                s.put(d, fl(fn(x.astype(f64)).astype(DT[ty])), idx)

            return f
        if o == "testp":
            fn = {
                "finite": np.isfinite,
                "infinite": np.isinf,
                "number": lambda x: ~np.isnan(x),
                "notanumber": np.isnan,
                "normal": lambda x: np.abs(x) >= 1.1754944e-38,
                "subnormal": lambda x: (x != 0) & (np.abs(x) < 1.1754944e-38),
            }[m[0]]
            return lambda s, idx: s.put(d, fn(G(s, 1, idx)), idx)
    if o == "set" or o == "setp":
        if o == "set":  # set.cmp.dtype.stype
            dt0, ty = m[-2], m[-1]
            isf = ty in ("f32", "f64")
        cm = m[0]
        nan = cm.endswith("u") and cm[:-1] in CMP
        fn = CMP.get(cm[:-1] if nan else cm)
        bo = next((x for x in m[1:] if x in ("and", "or", "xor")), None)

        def f(s, idx):
            x, y = G(s, 1, idx), G(s, 2, idx)
            if cm == "num":
                r = ~(np.isnan(x) | np.isnan(y))
            elif cm == "nan":
                r = np.isnan(x) | np.isnan(y)
            else:
                r = fn(x, y)
                if isf:
                    u = np.isnan(x) | np.isnan(y)
                    r = (r | u) if nan else (r & ~u)
            n = d.split("|")
            r2 = ~np.asarray(r)
            if bo:
                c = s.get(a[3].lstrip("!"), "pred", idx)
                c = ~c if a[3][0] == "!" else c
                B = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[bo]
                r, r2 = B(r, c), B(r2, c)
            if o == "set":
                s.put(
                    d,
                    np.where(r, np.float32(1), np.float32(0)).astype(f32)
                    if dt0 == "f32"
                    else np.where(r, u32.type(0xFFFFFFFF), u32.type(0)),
                    idx,
                )
                return
            s.put(n[0], r, idx)
            if len(n) > 1:
                s.put(n[1], r2, idx)

        return f
    if o == "selp":
        return lambda s, idx: s.put(d, np.where(s.get(a[3], "pred", idx), G(s, 1, idx), G(s, 2, idx)), idx)
    if o in ("and", "or", "xor"):
        fn = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[o]
        return bin2(fn)
    if o == "not":
        return lambda s, idx: s.put(d, ~G(s, 1, idx), idx)
    if o == "cvt":
        T = [x for x in m if x in DT or x in ("f16", "bf16", "bf16x2", "f16x2")]
        dt_, st_ = T[0], T[1]
        rnd = next((x for x in m if x in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")), None)

        def f(s, idx):
            if dt_ in ("bf16x2", "f16x2"):
                dn = f2bf if dt_[0] == "b" else f2h
                hi, lo = G(s, 1, idx, "f32"), G(s, 2, idx, "f32")
                if "relu" in m:
                    hi, lo = np.fmax(hi, 0), np.fmax(lo, 0)
                s.put(d, (dn(hi).astype(u32) << u32.type(16)) | dn(lo).astype(u32), idx)
                return
            x = s.get(a[1], st_, idx)
            if st_ == "bf16":
                x = bf2f(x)
            elif st_ == "f16":
                x = h2f(x)
            if dt_ == "bf16":
                v = f2bf(np.fmax(x, 0) if "relu" in m else x)
            elif dt_ == "f16":
                v = f2h(x)
            elif DT[dt_].kind == "f" or (dt_ == "f32"):
                if rnd in ("rni", "rzi", "rmi", "rpi"):
                    v = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rnd](x).astype(DT[dt_])
                else:
                    v = x.astype(DT[dt_])
                if z:
                    v = ftz(v)
                if sat:
                    v = np.clip(np.nan_to_num(v, nan=0.0), 0, 1)
            elif x.dtype.kind == "f":
                q = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rnd](x.astype(f64))
                ii = np.iinfo(DT[dt_])
                q = np.where(np.isnan(q), 0, q)
                v = np.where(
                    q >= float(ii.max),
                    ii.max,
                    np.where(
                        q <= float(ii.min),
                        ii.min,
                        np.clip(q, float(ii.min), float(ii.max) * (1 - 2**-53)).astype(DT[dt_]),
                    ),
                ).astype(DT[dt_])
            else:
                v = (
                    np.clip(x, np.iinfo(DT[dt_]).min, np.iinfo(DT[dt_]).max).astype(DT[dt_])
                    if sat
                    else x.astype(DT[dt_])
                )
            r = s.reg(d)
            if v.dtype.itemsize < r.dtype.itemsize:
                v = v.astype(f"{'i' if v.dtype.kind == 'i' else 'u'}{r.dtype.itemsize}")
            s.put(d, v, idx)

        return f
    if o in ("add", "sub"):
        return bin2(np.add if o == "add" else np.subtract)
    if o in ("mul", "mad") and ty and not isf:
        sz = DT[ty].itemsize
        wide, hi = "wide" in m, "hi" in m
        wt = np.dtype(f"{DT[ty].kind}{2 * sz}") if sz < 8 else None

        def f(s, idx):
            x, y = G(s, 1, idx), G(s, 2, idx)
            if wide:
                r = x.astype(wt) * y.astype(wt)
                r = r + s.get(a[3], wt.kind.replace("i", "s") + str(16 * sz), idx) if o == "mad" else r
            elif hi and wt is not None:
                r = (x.astype(wt) * y.astype(wt) >> wt.type(8 * sz)).astype(DT[ty])
                r = r + G(s, 3, idx) if o == "mad" else r
            elif hi:
                M = 0xFFFFFFFF
                X, Y = np.broadcast_arrays(x.astype(u64), y.astype(u64))
                lo = (X & M) * (Y & M)
                m1 = (X >> 32) * (Y & M) + (lo >> 32)
                m2 = (X & M) * (Y >> 32) + (m1 & M)
                r = (X >> 32) * (Y >> 32) + (m1 >> 32) + (m2 >> 32)
                if ty == "s64":
                    r = r - np.where(x < 0, Y, 0).astype(u64) - np.where(y < 0, X, 0).astype(u64)
            else:
                r = x * y
                r = r + G(s, 3, idx) if o == "mad" else r
            s.put(d, np.asarray(r), idx)

        return f
    if o == "dp2a":

        def f(s, idx):
            x, y, z = G(s, 1, idx), G(s, 2, idx), G(s, 3, idx)
            y = y >> y.dtype.type(16) if "hi" in m else y
            assert m.count("u32") == 2, text
            s.put(d, (x & 0xFFFF) * (y & 0xFF) + (x >> 16) * (y >> 8 & 0xFF) + z, idx)

        return f
    if o in ("div", "rem"):

        def f(s, idx):
            x, y = np.broadcast_arrays(G(s, 1, idx), G(s, 2, idx))
            if (y == 0).any():
                s.note("integer-divide-by-zero", "")
                y = np.where(y == 0, 1, y).astype(x.dtype)
            if DT[ty].kind == "u":
                r = x // y if o == "div" else x % y
            else:
                q = np.abs(x.astype(i64)) // np.abs(y.astype(i64))
                q = np.where((x < 0) != (y < 0), -q, q)
                r = q if o == "div" else x.astype(i64) - q * y
            s.put(d, np.asarray(r).astype(DT[ty]), idx)

        return f
    if o in ("min", "max"):
        return bin2(np.minimum if o == "min" else np.maximum)
    if o == "neg":
        return lambda s, idx: s.put(d, -G(s, 1, idx), idx)
    if o == "abs":
        return lambda s, idx: s.put(d, np.abs(G(s, 1, idx)), idx)
    if o in ("shl", "shr"):
        W = DT[ty].itemsize * 8

        def f(s, idx):
            x, n = G(s, 1, idx), s.get(a[2], "u32", idx)
            nn = np.minimum(n, W - 1).astype(DT[ty])
            if o == "shl":
                r = np.where(n >= W, 0, x << nn)
            else:
                r = x >> nn if DT[ty].kind == "i" else np.where(n >= W, 0, x >> nn)
            s.put(d, np.asarray(r).astype(DT[ty]), idx)

        return f
    if o == "shf":

        def f(s, idx):
            lo, hi, n = (s.get(a[i], "u32", idx).astype(u64) for i in (1, 2, 3))
            n = n & u64.type(31) if "wrap" in m else np.minimum(n, 32)
            v = (hi << u64.type(32)) | lo
            s.put(d, ((v << n) >> u64.type(32)).astype(u32) if "l" in m else (v >> n).astype(u32), idx)

        return f
    if o == "lop3":

        def f(s, idx):
            A, B, C = (s.get(a[i], "u32", idx) for i in (1, 2, 3))
            L = int(a[4], 0)
            r = np.zeros(np.broadcast(A, B, C).shape, u32)
            for j in range(8):
                if L >> j & 1:
                    r |= (A if j & 4 else ~A) & (B if j & 2 else ~B) & (C if j & 1 else ~C)
            s.put(d, r, idx)

        return f
    if o == "bfe":

        def f(s, idx):
            x, p, n = G(s, 1, idx), s.get(a[2], "u32", idx) & 255, s.get(a[3], "u32", idx) & 255
            W = DT[ty].itemsize * 8
            v = x.view(f"u{W // 8}") >> p.astype(f"u{W // 8}")
            mask = np.where(n >= W, 2**W - 1, (1 << np.minimum(n, W - 1).astype(u64)) - 1).astype(f"u{W // 8}")
            v = v & mask
            if DT[ty].kind == "i":
                sb = np.where(n > 0, (v >> np.maximum(n, 1).astype(v.dtype) - 1) & 1, 0)
                v = np.where(sb == 1, v | ~mask, v)
            s.put(d, v.astype(f"u{W // 8}"), idx)

        return f
    if o == "prmt":

        def f(s, idx):
            A, B, S = (s.get(a[i], "u32", idx).astype(u64) for i in (1, 2, 3))
            v = A | (B << u64.type(32))
            r = 0
            for j in range(4):
                c = (S >> u64.type(4 * j)) & u64.type(15)
                by = (v >> ((c & u64.type(7)) * u64.type(8))) & u64.type(255)
                by = np.where(c & u64.type(8), np.where(by & u64.type(128), 255, 0), by).astype(u64)
                r = r | (by << u64.type(8 * j))
            s.put(d, np.asarray(r).astype(u32), idx)

        return f
    if o == "brev":

        def f(s, idx):
            x = s.get(a[1], ty, idx)
            W = DT[ty].itemsize * 8
            r = np.zeros_like(x)
            for j in range(W):
                r = r | (((x >> x.dtype.type(j)) & x.dtype.type(1)) << x.dtype.type(W - 1 - j))
            s.put(d, r, idx)

        return f
    if o == "bfi":

        def f(s, idx):
            W = DT[ty].itemsize
            q = np.dtype(f"u{W}")
            x, y = s.get(a[1], ty, idx), s.get(a[2], ty, idx)
            p, n = (
                s.get(a[3], "u32", idx).astype(u64) & u64.type(255),
                s.get(a[4], "u32", idx).astype(u64) & u64.type(255),
            )
            mk = np.where(n >= 64, ~u64.type(0), (u64.type(1) << np.minimum(n, 63)) - u64.type(1)) << np.minimum(p, 63)
            s.put(d, ((y.astype(u64) & ~mk) | ((x.astype(u64) << np.minimum(p, 63)) & mk)).astype(q), idx)

        return f
    if o == "bfind":

        def f(s, idx):
            x = s.get(a[1], ty, idx)
            W = DT[ty].itemsize * 8
            x = np.where(x < 0, ~x, x) if DT[ty].kind == "i" else x
            fl_ = np.floor(np.log2(np.maximum(x, 1).astype(np.longdouble))).astype(i64)
            r = W - 1 - fl_ if "shiftamt" in m else fl_
            s.put(d, np.where(x == 0, 0xFFFFFFFF, r).astype(u64).astype(u32), idx)

        return f
    if o == "match":

        def f(s, idx):
            I = s.ids(idx)
            x = np.broadcast_to(s.get(a[1], ty, idx), I.shape)
            w = I // 32
            r = np.zeros(len(I), u32)
            for q in np.unique(w):
                z_ = w == q
                v = x[z_]
                l = s.tid[I[z_]] & 31
                r[z_] = ((v[:, None] == v[None, :]) * (1 << l)[None, :]).sum(1).astype(u32)
            s.put(d.split("|")[0], r, idx)

        return f
    if o == "trap":

        def f(s, idx):
            s.fault("trap executed")

        return f
    if o == "popc":
        return lambda s, idx: s.put(d, np.bitwise_count(G(s, 1, idx, ty)).astype(u32), idx)
    if o == "clz":
        W = DT[ty].itemsize * 8
        return lambda s, idx: s.put(
            d,
            np.where(
                G(s, 1, idx) == 0, W, W - 1 - np.floor(np.log2(np.maximum(G(s, 1, idx), 1).astype(np.longdouble)))
            ).astype(u32),
            idx,
        )
    # ---- warp-level
    if o == "shfl":
        mode = next(x for x in m if x in ("up", "down", "bfly", "idx"))

        def f(s, idx):
            I = s.ids(idx)
            x, b, c, mk = (s.get(a[i], "u32", idx) for i in (1, 2, 3, 4))
            lane = (s.tid[I] & 31).astype(i64)
            b = np.broadcast_to(b, I.shape).astype(i64) & 31
            c = np.broadcast_to(c, I.shape).astype(i64)
            seg, cl = (c >> 8) & 31, c & 31
            mx = (lane & seg) | (cl & ~seg)
            mn = lane & seg
            j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": mn | (b & ~seg)}[mode]
            ok = j >= mx if mode == "up" else j <= mx
            j = np.where(ok, j, lane)
            src = I - lane + j
            full = np.zeros(s.N, u32)
            act = np.zeros(s.N, bool)
            full[I] = x
            act[I] = True
            if s.check and not act[src].all():
                s.note("shfl from a lane that is not here", f"{int((~act[src]).sum())} lanes")
            n = d.split("|")
            s.put(n[0], full[src], idx)
            if len(n) > 1:
                s.put(n[1], ok, idx)

        return f
    if o == "vote":
        md = next(x for x in m if x in ("all", "any", "uni", "ballot"))

        def f(s, idx):
            I = s.ids(idx)
            p = s.get(a[1].lstrip("!"), "pred", idx)
            p = ~p if a[1][0] == "!" else p
            w = I // 32
            b = np.zeros(s.N // 32, u32)
            n = np.zeros(s.N // 32, i64)
            np.bitwise_or.at(b, w, (p.astype(u32) << (s.tid[I] & 31).astype(u32)))
            np.add.at(n, w, 1)
            cnt = np.bitwise_count(b)
            s.put(
                d,
                b[w] if md == "ballot" else {"all": cnt == n, "any": cnt > 0, "uni": (cnt == n) | (cnt == 0)}[md][w],
                idx,
            )

        return f
    if o == "redux":
        fn = {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[next(x for x in m if x in ("add", "min", "max", "and", "or", "xor"))]

        def f(s, idx):
            I = s.warps(idx, "redux")
            s.put(
                d,
                np.repeat(fn.reduce(np.broadcast_to(G(s, 1, idx), I.size).reshape(-1, 32), axis=1), 32).astype(DT[ty]),
                idx,
            )

        return f
    if o in ("bar", "barrier"):

        def f(s, idx):
            s.wep[s.ids(idx)] += 1

        return f
    if o == "activemask":
        return lambda s, idx: s.put(
            d,
            np.bincount(s.ids(idx) // 32, weights=2.0 ** (s.tid[s.ids(idx)] & 31), minlength=s.N // 32)
            .astype(u64)
            .astype(u32)[s.ids(idx) // 32],
            idx,
        )
    if o in ("membar", "fence", "prefetch", "nanosleep", "griddepcontrol", "discard", "applypriority"):
        return lambda s, idx: None
    # ---- atomics
    if o in ("atom", "red"):
        sp0 = next((x for x in m if x in ("global", "shared")), None)
        fn_ = next(x for x in m if x in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"))
        w = DT[ty].itemsize if ty not in ("bf16x2", "f16x2") else 4
        ad, va = (a[1], a[2:]) if o == "atom" else (a[0], a[1:])
        used = o == "atom" and sum(len(re.findall(re.escape(a[0]) + r"\b", c[3])) for c in k.code) > 1

        def f(s, idx):
            sp, A = s.space(sp0, s.addr(ad, idx))
            q, mm, sh, I = s.locate(sp, A, w, idx)
            if s.check and ((sh[q] & 1) == 0).any():
                s.fault(f"{sp} atomic out of bounds")
            if s.check and (sh[q] != 3).any():
                s.note(f"uninitialised-{sp}-read", "atomic")
            v = mm.view(DT[ty])
            kx = q // w
            X = np.broadcast_to(s.get(va[0], ty, idx), I.shape)
            uf = {
                "add": np.add,
                "min": np.minimum,
                "max": np.maximum,
                "and": np.bitwise_and,
                "or": np.bitwise_or,
                "xor": np.bitwise_xor,
            }.get(fn_)
            if not used and uf is not None and ty not in ("bf16x2", "f16x2", "bf16", "f16"):
                uf.at(v, kx, X)
            else:
                old = np.zeros(I.shape, v.dtype)
                Y = np.broadcast_to(s.get(va[1], ty, idx), I.shape) if len(va) > 1 else None
                for j in range(len(I)):
                    t = v[kx[j]]
                    old[j] = t
                    if fn_ == "cas":
                        nv = Y[j] if t == X[j] else t
                    elif fn_ == "exch":
                        nv = X[j]
                    elif ty == "bf16x2":
                        nv = sum(
                            int(
                                f2bf(
                                    bf2f(np.array([(t >> h) & 0xFFFF], u16))
                                    + bf2f(np.array([(X[j] >> h) & 0xFFFF], u16))
                                )[0]
                            )
                            << h
                            for h in (0, 16)
                        )
                    else:
                        nv = uf(t, X[j])
                    v[kx[j]] = nv
                if o == "atom":
                    s.put(d, old, idx)
            sh[q] = 3

        return f
    # ---- tensor cores, ldmatrix, cp.async
    if o == "mma":
        shp = next(x for x in m if x.startswith("m16"))
        ab = [x for x in m if x in ("bf16", "f16")][-2:] if "f32" in m else ["f16"]
        if shp not in ("m16n8k16", "m16n8k8") or m.count("f32") != 2:
            return None
        K = int(shp.split("k")[1])
        up = bf2f if "bf16" in m else h2f
        D, A_, B_, C_ = (vec(x) for x in a)
        lane = np.arange(32)
        g, t = lane >> 2, lane & 3

        def f(s, idx):
            I = s.warps(idx, "mma.sync")
            W = len(I)
            A = np.zeros((W, 16, K), f32)
            B = np.zeros((W, K, 8), f32)
            C = np.zeros((W, 16, 8), f32)
            for r, x in enumerate(A_):
                v = s.get(x, "b32", idx).reshape(W, 32)
                for h in (0, 1):
                    A[:, g + 8 * (r & 1), t * 2 + h + 8 * (r >> 1)] = up(
                        ((v >> u32.type(16 * h)) & u32.type(0xFFFF)).astype(u16)
                    )
            for r, x in enumerate(B_):
                v = s.get(x, "b32", idx).reshape(W, 32)
                for h in (0, 1):
                    B[:, t * 2 + h + 8 * r, g] = up(((v >> u32.type(16 * h)) & u32.type(0xFFFF)).astype(u16))
            for r, x in enumerate(C_):
                C[:, g + 8 * (r >> 1), t * 2 + (r & 1)] = np.broadcast_to(s.get(x, "f32", idx), I.size).reshape(W, 32)
            Z = (np.matmul(A.astype(f64), B.astype(f64)) + C).astype(f32)
            for r, x in enumerate(D):
                s.put(x, Z[:, g + 8 * (r >> 1), t * 2 + (r & 1)].ravel(), idx)

        return f
    if o == "ldmatrix":
        n = int(next(x for x in m if re.fullmatch(r"x[124]", x))[1])
        tr = "trans" in m
        lane = np.arange(32)

        def f(s, idx):
            I = s.warps(idx, "ldmatrix")
            sp, A = s.space("shared", s.addr(a[1], idx))
            A = np.broadcast_to(A, I.size).reshape(-1, 32)
            rows = A[:, : 8 * n]
            I8 = I[:, : 8 * n]
            q, mm, sh, _ = s.locate("shared", rows.ravel(), 16, I8.ravel())
            s.load("shared", rows.ravel(), 4, 4, I8.ravel())
            H = mm.view(u16)[(q // 2)[:, None] + np.arange(8)].reshape(len(I), n, 8, 8)
            for r, x in enumerate(vec(d)):
                M = H[:, r].transpose(0, 2, 1) if tr else H[:, r]
                lo = M[:, lane >> 2, (lane & 3) * 2]
                hi = M[:, lane >> 2, (lane & 3) * 2 + 1]
                s.put(x, (lo.astype(u32) | (hi.astype(u32) << u32.type(16))).ravel(), idx)

        return f
    if o == "cp" and m[0] == "async":
        if "commit_group" in m:

            def f(s, idx):
                I = s.ids(idx)
                s.gcount[I] += 1
                for e in s.groups:
                    e[4] = np.where((e[4] < 0) & np.isin(e[0], I), s.gcount[e[0]], e[4])

            return f
        if "wait_group" in m or "wait_all" in m:
            keep = int(a[0], 0) if a else 0
            every = "wait_all" in m

            def f(s, idx):
                I = s.ids(idx)
                here = np.zeros(s.N, bool)
                here[I] = True
                left = []
                for J, A, n, data, g in s.groups:
                    done = here[J] & (every | ((g >= 0) & (g <= s.gcount[J] - keep)))
                    if done.any():
                        s.store("shared", A[done], 4, [x[done] for x in data], J[done])
                    if not done.all():
                        r = ~done
                        left.append([J[r], A[r], n, [x[r] for x in data], g[r]])
                s.groups = left

            return f
        n = int(a[2], 0)

        def f(s, idx):
            I = s.ids(idx)
            dst = np.broadcast_to(s.addr(a[0], idx), I.shape).copy()
            src = s.addr(a[1], idx)
            if len(a) > 3:
                s.fault("cp.async src-size is not in the prototype")
            if (dst % n).any():
                s.fault("misaligned cp.async destination")
            data = s.load("global", src, 4, n // 4, idx)
            q, _, _, _ = s.locate("shared", dst, n, I)
            if s.check:
                for j in range(n):
                    s.ssh[q + j] = 1  # in flight: a read before the wait counts as uninitialised
            s.groups.append([I, dst, n, data, np.full(I.shape, -1, i64)])

        return f
    return None


# ---------------------------------------------------------------- launch
class Device:
    def __init__(s, mem=64 << 20):
        s.mem = Memory(mem)
        s.launches = 0

    def place(s, mod):
        g = {}
        for nm, (sp, al, ty, n, init, ext) in mod["globals"].items():
            if sp in ("global", "const"):
                g[nm] = s.mem.alloc(max(1, n) * DT[ty].itemsize)
                v = [int(x, 0) for x in re.findall(r"-?\w+", init or "")]
                v += [0] * (n - len(v))
                s.mem.write(g[nm], np.array([x & (2 ** (8 * DT[ty].itemsize) - 1) for x in v], f"u{DT[ty].itemsize}"))
        return g

    def launch(s, mod, name, grid, block, params, smem=0, check=True, chunk=1 << 16):
        k = mod["kernels"][name]
        s.launches += 1
        pb = bytearray(max(1, k.psize))
        grid, block = (tuple(grid) + (1, 1))[:3], (tuple(block) + (1, 1))[:3]
        if len(params) != len(k.params):
            raise Fault(f"{name} takes {len(k.params)} parameters, got {len(params)}")
        for (nm, (off, sz)), v in zip(k.params.items(), params):
            b = v if isinstance(v, bytes) else np.asarray(v).tobytes()
            if len(b) != sz:
                raise Fault(f"{name} parameter {nm} is {sz} bytes, got {len(b)}")
            pb[off : off + sz] = b
        m = re.search(r"\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", k.dirs)
        T = block[0] * block[1] * block[2]
        if m and T > int(m.group(1)) * int(m.group(2) or 1) * int(m.group(3) or 1):
            raise Fault(f"block of {T} threads exceeds __launch_bounds__")
        nb = grid[0] * grid[1] * grid[2]
        per = max(1, chunk // T)
        st = dict(lane_ops=0, steps=0, findings=[])
        t0 = time.perf_counter()
        for b in range(0, nb, per):
            r = Run(
                k, grid, block, smem, bytes(pb), s.mem, check, range(b, min(nb, b + per)), s.launches, mod["gaddr"]
            ).go()
            st["lane_ops"] += r.lane_ops
            st["steps"] += r.steps
            st["findings"] += [f for f in r.findings if f[:3] not in [x[:3] for x in st["findings"]]]
        st["s"] = time.perf_counter() - t0
        return st
