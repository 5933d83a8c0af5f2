"""Every error code with its meaning, cause, fix and an example: `explain` and the docs page are made from it."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True):
    """One code. `example` is a file (or a command line) that gives the error; '' where none can be typed."""

    code: str
    title: str
    why: str
    fix: str
    example: str = ""


def _table(*entries: Entry) -> dict[str, Entry]:
    table = {entry.code: entry for entry in entries}
    assert len(table) == len(entries), "the same code twice"
    return table


def _text_run(loader: str) -> str:
    """A file that is whole but for its loader."""
    loss = "(cross-entropy (linear (one-hot tokens 256) 256) targets)"
    return f"(defloader data {loader})\n(defrun go :data data :loss {loss} :optimizer (sgd :lr 0.1) :steps 1)\n"


def _digits_run(loss: str, rest: str = ":steps 1", optimizer: str = "(sgd)") -> str:
    """A file that is whole but for its loss or an option: x is f32[8 64], y is i32[8]."""
    run = f"(defrun go :data digits :optimizer {optimizer} {rest}\n  :loss {loss})"
    return f'(defloader digits (builtin "digits" :batch 8))\n{run}\n'


CATALOGUE: dict[str, Entry] = _table(
    Entry(
        "E-READ-001",
        "unbalanced bracket or quote",
        "a list, a string or a block comment is not closed, or a list is closed by the other bracket",
        "close it with the bracket that opened it",
        "(defhyper width 384",
    ),
    Entry(
        "E-READ-002",
        "stray character",
        "a character begins no datum (`# , { } | \\`, a backquote, a control, a space other than U+0020), or `#;` has no datum after it",
        "remove it",
        "(def a {1 2})",
    ),
    Entry(
        "E-READ-003",
        "malformed atom",
        "a number, an escape in a string or a keyword is not well formed, or a number does not fit in 64 bits",
        'numbers are 12, -3, 50_257, 0x1f, 0.5, 3e-4, inf, nan; escapes `\\n \\t \\" \\\\ \\u{3c0}`; a keyword is :name',
        "(def a 12abc)",
    ),
    Entry(
        "E-READ-004",
        "not a text",
        "the file is not UTF-8, or has a NUL character",
        "write the file as UTF-8",
    ),
    Entry(
        "E-READ-005",
        "limit of the reader",
        "at most 16 MiB a file, lists 1,000 deep, 1,000,000 data, 4,096 characters an atom, 20 problems",
        "split the file",
    ),
    Entry(
        "E-READ-006",
        "file not readable",
        "the file does not exist, is a folder, or may not be read",
        "check the path",
        '(include "missing.sexp")',
    ),
    Entry(
        "E-READ-007",
        "include refused",
        "a cycle of includes, more than 64 of them, or a file outside the main file's folder",
        "include each file once, from the main file's folder",
        '(include "../elsewhere.sexp")',
    ),
    Entry(
        "E-NAME-001",
        "unknown name",
        "no definition, argument, field or operation has this name where it stands",
        "define it, or take the suggestion",
        "(def a (+ b 1))",
    ),
    Entry(
        "E-NAME-002",
        "name defined twice",
        "two top-level definitions have the same name, or one form binds a name twice",
        "rename one",
        "(def a 1) (def a 2)",
    ),
    Entry(
        "E-NAME-003",
        "parameter path used twice",
        "two parameters or buffers of one expression have the same path, or a buffer is updated twice",
        "give one a :name, or :share true to use the same parameter",
        _digits_run('(+ (mean (* x (param "w" [64] zeros)))\n           (mean (* x (param "w" [64] zeros))))'),
    ),
    Entry(
        "E-NAME-004",
        "shared parameters differ",
        "`:share true` needs equal shape, initializer and options",
        "make them equal, or give one another name",
        _digits_run(
            '(+ (mean (* x (param "w" [64] zeros)))\n           (mean (* x (param "w" [64] ones :share true))))'
        ),
    ),
    Entry(
        "E-NAME-005",
        "unknown keyword",
        "a function, layer or form has no such keyword",
        "take the nearest known one",
        "(def a (sum [1 2] :axes 0))",
    ),
    Entry(
        "E-NAME-006",
        "unknown hyperparameter or variant",
        "a variant, a sweep or --set names what the file does not define",
        "take the nearest known one",
        "(defhyper width 8) (defvariant small (widht 4))",
    ),
    Entry(
        "E-NAME-007",
        "parameter outside the loss",
        "the model's parameters are those of :loss; another expression reaches one that the loss does not",
        "use the same layers and names in both",
        _digits_run('(mean (linear x 10 :name "a"))', ':steps 1\n  :predict (linear x 10 :name "b")'),
    ),
    Entry(
        "E-NAME-008",
        "not an initializer",
        "what stands in an initializer's place is none, or wants its arguments",
        "take one of (normal 0.02), (trunc-normal 0.02), (uniform -1 1), zeros, ones, (constant 3), (kaiming), (xavier), (orthogonal), (from-file \"x.safetensors\" \"key\")",
        _digits_run('(mean (* x (param "w" [64] normal)))'),
    ),
    Entry(
        "E-NAME-009",
        "parameter without an optimizer",
        "no part of `by-name` matches a parameter's name, and it has no (else OPTIMIZER)",
        "add (else OPTIMIZER), or a part whose glob matches the parameter",
        _digits_run("(mean (linear x 10))", ':steps 1', '(by-name ("*.weight" (adamw)))'),
    ),
    Entry(
        "E-SYN-001",
        "form not well formed",
        "a form's parts are not what its grammar says",
        "write it as the reference shows",
        "(defhyper width)",
    ),
    Entry(
        "E-SYN-002",
        "wrong number of arguments",
        "a function or operation takes another number of arguments",
        "give as many as it takes",
        "(def a (exp 1 2))",
    ),
    Entry(
        "E-SYN-003",
        "calls nested too deeply",
        "functions call each other more than 1,000 deep",
        "end the recursion",
        "(defun f (x) (f x)) (def a (f 1))",
    ),
    Entry(
        "E-SYN-004",
        "not a top-level form",
        "only definitions stand at a file's top",
        "wrap it in a definition",
        "(+ 1 2)",
    ),
    Entry(
        "E-SYN-005",
        "too much to elaborate",
        "the file's functions and loops take more than 1,000,000 calls and iterations before anything runs",
        "use `scan` for a loop over data, and end recursions earlier",
        "(def a (repeat (i 100_000) (x 0) (repeat (j 100_000) (y x) (+ y 1))))",
    ),
    Entry(
        "E-TYPE-001",
        "operation on the wrong kind of value",
        "an operation does not take a value of this kind or dtype",
        "cast it, or use another operation",
        '(def a (+ 1 "two"))',
    ),
    Entry(
        "E-TYPE-002",
        "condition on a tensor",
        "`if` and `cond` choose at compile time; a tensor has a value only at run time",
        "use `where`",
        _digits_run("(mean (if (> x 0) x 0))"),
    ),
    Entry(
        "E-TYPE-003",
        "dtypes that do not combine",
        "these dtypes have no common dtype",
        "cast one of them",
        _digits_run("(mean (+ (cast x i32) (cast x u32)))"),
    ),
    Entry(
        "E-TYPE-004",
        "not a function",
        "the head of a call is no function",
        "call a function",
        "(def a 1) (def b (a 2))",
    ),
    Entry(
        "E-SHAPE-001",
        "shapes that do not fit",
        "an operation's operands have shapes that do not go together",
        "reshape or transpose one of them",
        _digits_run("(mean (+ x (zeros [8 63])))"),
    ),
    Entry(
        "E-SHAPE-002",
        "inner sizes differ",
        "the contracted axes of a product have different sizes",
        "transpose or reshape one operand",
        _digits_run("(mean (matmul x (zeros [10 64])))"),
    ),
    Entry(
        "E-SHAPE-003",
        "not a shape",
        "sizes are integers of at least 0; a float or a tensor is no size",
        "make the division exact",
        "(def a (zeros [(/ 16 3)]))",
    ),
    Entry(
        "E-SHAPE-004",
        "no such axis",
        "an axis is outside the tensor's rank, or named twice",
        "name an axis from -rank to rank - 1",
        "(def a (sum (zeros [2 3]) :axis 2))",
    ),
    Entry(
        "E-SHAPE-005",
        "tensor too large",
        "a tensor of 2^48 elements or more",
        "check the sizes",
        "(def a (zeros [16777216 16777216]))",
    ),
    Entry(
        "E-MACRO-001",
        "no rule for a macro's call",
        "none of the macro's patterns matches the call, or what they repeat together has different lengths",
        "call it as one of its patterns says, or add a rule",
        "(defmacro twice (x) (* 2 x))\n(def a (twice 1 2))",
    ),
    Entry(
        "E-MACRO-002",
        "a macro's rule that cannot be",
        "a variable stands twice in a pattern, or `...` does not follow what is repeated",
        "let each variable stand once in the pattern, with `...` after it in the template where the pattern has one",
        "(defmacro total (x ...) (+ x))",
    ),
    Entry(
        "E-MACRO-003",
        "expansion without end",
        "at most 30,000 expansions, 1,000 deep, 1,000,000 data in them, lists 2,000 deep",
        "end the macro's recursion with a rule of its own",
        "(defmacro again (x) (again x))\n(def a (again 1))",
    ),
    Entry(
        "E-DATA-001",
        "a data file cannot be read",
        "there is no such file, no file matches the pattern, or the system refuses it",
        "check the path: it is relative to the file that the loader stands in",
        _text_run('(text "missing.txt" :tokenizer (bytes) :seq 8 :batch 2)'),
    ),
    Entry(
        "E-DATA-002",
        "too little data",
        "the data is empty, shorter than one window of seq + 1 tokens, or has fewer examples than a batch",
        "give more data, or a smaller :seq or :batch",
        _text_run('(builtin "text" :tokenizer (bytes) :seq 400000 :batch 2)'),
    ),
    Entry(
        "E-DATA-003",
        "a split that cannot be made",
        ":part and :split belong together, a part is one of the split's, fractions are above 0 and sum to at most 1",
        "name the parts with their fractions, and one of them: :split (train 0.9 val 0.1) :part train",
        _text_run('(builtin "text" :tokenizer (bytes) :seq 8 :batch 2 :split (train 0.9 val 0.1) :part test)'),
    ),
    Entry(
        "E-DATA-004",
        "a dtype that is not read",
        "token files hold u16 or u32; arrays bool, integers up to i64 and u32, or floats",
        "convert the file",
        _text_run('(token-file "tokens.bin" :dtype i64 :seq 8 :batch 2)'),
    ),
    Entry(
        "E-DATA-005",
        "a damaged or unknown data file",
        "a file's header contradicts its size or the loader, or its format is not known",
        "write the file again, or say the dtype that it has",
    ),
    Entry(
        "E-DATA-006",
        "arrays that do not fit together",
        "the arrays of a loader need the same number of examples (first axis) and different names",
        "name one file of matching arrays",
    ),
    Entry(
        "E-DATA-007",
        "a loader's option is missing or wrong",
        "the source needs an option, or does not know the value that it has",
        "see the source's row in the table of data sources",
        _text_run('(builtin "poems" :tokenizer (bytes) :seq 8 :batch 2)'),
    ),
    Entry(
        "E-DATA-008",
        "a record that cannot be read",
        "a text that is not UTF-8, a line that is not the JSON it should be, a cell that is no number",
        "mend the place that the message names: file, line and, of a cell, its column",
    ),
    Entry(
        "E-DATA-009",
        "data that needs a package which is missing",
        "what reads this kind of data is not installed with sexpgpu itself",
        "install the extra that the message names",
    ),
    Entry(
        "E-DATA-010",
        "columns that are not there",
        "a table has no column, or several columns, of the name, has no line of names, or differs from the other tables",
        "name the columns as the file's first line does: :fields (x [\"width\" \"height\"] y \"label\")",
    ),
    Entry(
        "E-STORE-001",
        "the run folder is in use",
        "another process writes to it; a run folder has one writer at a time",
        "wait for the other run, stop it with `sexpgpu stop`, or start in a new folder",
    ),
    Entry(
        "E-STORE-003",
        "the run folder cannot be written",
        "the folder cannot be made, or a write failed: no space, no permission",
        "free some space, or choose another folder with --out",
    ),
    Entry(
        "E-STORE-004",
        "a damaged file in the store",
        "a file that sexpgpu wrote does not read back",
        "restore the file, or remove the damaged line",
    ),
    Entry(
        "E-RUN-001",
        "a run's key is missing",
        "a run needs :data, :loss, :optimizer, and :steps or :epochs",
        "add the key",
        '(defloader digits (builtin "digits" :batch 8))\n(defrun go :data digits :steps 1)\n',
    ),
    Entry(
        "E-RUN-002",
        "unknown key",
        "a run, loader or option has no such key",
        "take the nearest known one",
        _digits_run("(mean x)", ":steps 1 :microbatch 2"),
    ),
    Entry(
        "E-RUN-003",
        "options that exclude each other",
        "two options say different things about the same",
        "keep one",
        _digits_run("(mean (square (linear x 1)) :axis -1)", ":steps 1 :epochs 1"),
    ),
    Entry(
        "E-RUN-004",
        "value of the wrong kind",
        "an option or --set has a value of another kind than its default",
        "give a value of the default's kind",
        _digits_run("(mean x)", ':steps "many"'),
    ),
    Entry(
        "E-RUN-005",
        "no such run",
        "the file has no run, or none of this name",
        "name one of the file's runs",
        '(defloader digits (builtin "digits" :batch 8))\n',
    ),
    Entry(
        "E-RUN-006",
        "no such code",
        "`explain` knows no such code",
        "`sexpgpu explain` lists them",
    ),
    Entry(
        "E-RUN-007",
        "option out of range",
        "an option's value is not in its range",
        "give a value in the range",
        _digits_run("(mean x)", ":steps 1 :microbatches 0"),
    ),
    Entry(
        "E-DEV-001",
        "device not available",
        "the device that was asked for cannot be used on this machine",
        "install what is missing, or choose another device",
    ),
    Entry(
        "E-DEV-002",
        "MPI not available",
        "several ranks need an MPI library that fits the launcher",
        "pip install mpich, and start with its mpirun",
    ),
    Entry(
        "E-DEV-003",
        "CUDA library missing",
        "a run on cuda needs a CUDA library that is not installed",
        "run the `pip install` that the message names, or pip install 'sexpgpu[cuda]' for all of them",
    ),
    Entry(
        "E-DEV-004",
        "CUDA library does not load",
        "a CUDA library is installed and cannot be used: its file is damaged, or another version than the library that needs it",
        "run the `pip install --force-reinstall` that the message names",
    ),
    Entry(
        "E-DEV-005",
        "CUDA device failed",
        "a call of the CUDA driver failed while the run was going on",
        "see nvidia-smi and the system's log, and go on from the last checkpoint with --resume latest",
    ),
    Entry(
        "E-MEM-001",
        "does not fit in memory",
        "the plan needs more memory than the device has",
        "a smaller :batch, or a smaller model",
    ),
    Entry(
        "E-DP-001",
        "devices named wrongly",
        "SEXPGPU_DEVICES does not parse, repeats an ordinal, names one that is not visible, or no GPU is visible",
        "list visible ordinals once each, SEXPGPU_DEVICES=0,1",
    ),
    Entry(
        "E-DP-002",
        "resume with another count",
        "a resume's rank count, node count or loader rank differs from the checkpoint's",
        "resume with the checkpoint's nodes and devices",
    ),
    Entry(
        "E-DP-003",
        "microbatches do not divide",
        "the global microbatches do not divide over the ranks",
        "pick a device count that divides :microbatches",
    ),
    Entry(
        "E-DP-004",
        "ranks disagree",
        "the ranks' or the nodes' parameters or optimizer states disagree at a checkpoint",
        "a backend bug, never the experiment's fault: report it with the step and SEXPGPU_DEVICES",
    ),
    Entry(
        "E-DP-005",
        "node variables wrong",
        "SEXPGPU_NODES is not a count, SEXPGPU_NODE_RANK is not in 0..nodes, SEXPGPU_RENDEZVOUS is not host:port, SEXPGPU_NODE_GRADIENTS is not f32 or bf16, or the device is not cuda",
        "set all three on every node, with SEXPGPU_DEVICE=cuda",
    ),
    Entry(
        "E-DP-006",
        "nodes differ",
        "a node differs from node 0 at the rendezvous",
        "the same files, flags, device count and checkpoint location on every node",
    ),
    Entry(
        "E-DP-007",
        "node missing",
        "a node did not arrive at the rendezvous within 300 s, or left the run",
        "start every node; after a loss, restart every node with --resume latest",
    ),
    Entry(
        "E-DP-008",
        "rank died",
        "a rank of this run ended before the others",
        "see its own message; restart with --resume latest",
    ),
    Entry(
        "E-CKPT-001",
        "checkpoint not usable",
        "a checkpoint is damaged, incomplete, or of another experiment",
        "name a whole checkpoint of this experiment",
    ),
    Entry(
        "E-CKPT-002",
        "no checkpoint",
        "there is none where one was asked for",
        "name a run folder, a run's id or a checkpoint",
    ),
    Entry(
        "E-CKPT-003",
        "tensors that a run cannot begin with",
        "`:init`, --init or `(from-file …)` finds no tensor of the name, none of the run's parameters, not all of them under :strict, or no floats",
        "take the nearest name, or a :rename that gives the parameters' names",
    ),
    Entry(
        "E-NUM-001",
        "not finite",
        "the loss or the gradient's norm is infinite or NaN (under float16: at a loss scale of 1); the update was not applied",
        "a smaller learning rate, clipping, or a look at the named form",
    ),
    Entry(
        "E-NUM-002",
        "index out of range",
        "a take, gather or scatter read outside its axis; the update was not applied",
        "check the data against the table's size",
    ),
    Entry(
        "E-ASSERT-001",
        "assertion failed",
        "an `assert` of the file does not hold",
        "see its message",
        '(assert (= 1 2) "one is not two")',
    ),
)
