"""Mistakes that people make: the code, the place and what helps. `▸` stands before the place, which a reader finds first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.program import load_program
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.train.loader import header

DATA = '(defloader d (builtin "digits" :batch 8))\n'
RUN = "(defrun r :data d :loss (cross-entropy (linear x 10) y) :optimizer (sgd) :steps 1)\n"


def with_definitions(text: str) -> str:
    return f"{DATA}{text}\n{RUN}"


def with_loss(loss: str, definitions: str = "", rest: str = ":steps 1") -> str:
    """x is f32[8 64], y is i32[8]."""
    return f"{DATA}{definitions}\n(defrun r :data d :optimizer (sgd) {rest}\n  :loss {loss})\n"


def with_option(option: str, definitions: str = "") -> str:
    return f"{DATA}{definitions}\n{RUN.rstrip()[:-1]}\n  {option})\n"


def with_loader(loader: str) -> str:
    loss = "(cross-entropy (linear (one-hot tokens 256) 256) targets)"
    return f"(defloader d {loader})\n(defrun r :data d :loss {loss} :optimizer (sgd) :steps 1)\n"


def with_optimizer(optimizer: str, definitions: str = "") -> str:
    return f"{DATA}{definitions}\n{RUN.replace('(sgd)', optimizer)}"


# What is wrong: the codes in the order of the places, the file, words of the first problem (message, label or notes).
MISTAKES: dict[str, tuple[str, str, str]] = {
    # Brackets, quotes and atoms
    "a bracket forgotten at the end of a form": ("E-READ-001", with_definitions("▸(def a (+ 1 2)"), "perhaps the end is missing"),
    "a bracket too many": ("E-READ-001", with_definitions("(def a (+ 1 2))▸)"), "closes no list"),
    "the wrong bracket": ("E-READ-001", with_definitions("(def a [1 2▸))"), "write `]`"),
    "a quote forgotten": ("E-READ-001", f'{DATA}(def name ▸"digits)\n', "never closed"),
    "a comment never closed": ("E-READ-001", f"{DATA}▸#| (def a 1)\n", "|#"),
    "commas between values": ("E-READ-002", with_definitions("(def a [1▸, 2])"), "separated by spaces"),
    "a quoted list as in Scheme": ("E-READ-002", with_definitions("(def a ▸`(1 2))"), "begins no datum"),
    "braces": ("E-READ-002 E-READ-002", with_definitions("(def a ▸{1▸})"), "( … ) and [ … ]"),
    "#t for true": ("E-READ-002", with_definitions("(def a ▸#t)"), "true and false"),
    "a fraction as in Scheme": ("E-READ-003", with_definitions("(def a ▸1/2)"), "is no number"),
    "a number with a unit": ("E-READ-003", with_definitions("(defhyper batch ▸64k)"), "is no number"),
    "a regular expression in a string": ("E-READ-003", with_definitions(r'(def a "▸\d+")'), "unknown escape"),
    "an integer beyond 64 bits": ("E-READ-003", with_definitions("(def a ▸99999999999999999999)"), "does not fit in 64 bits"),
    "a lone colon": ("E-READ-003", with_option("▸: 2"), "a keyword needs a name"),
    "an include that is not there": ("E-READ-006", with_definitions('(include ▸"layer.sexp")'), "cannot read"),
    "an include from above": ("E-READ-007", with_definitions('(include ▸"../layers.sexp")'), "--allow-outside"),
    # Names
    "a layer misspelt": ("E-NAME-001", with_loss("(cross-entropy (▸liner x 10) y)"), "did you mean linear?"),
    "a hyper misspelt": ("E-NAME-001", with_loss("(cross-entropy (linear x ▸widht) y)", "(defhyper width 10)"), "did you mean width?"),
    "letters swapped": ("E-NAME-001", with_loss("(mean (▸sofmtax x))"), "did you mean softmax?"),
    "an underscore for a dash": ("E-NAME-001", with_loss("(▸cross_entropy (linear x 10) y)"), "did you mean cross-entropy?"),
    "a capital letter": ("E-NAME-001", with_loss("(cross-entropy (▸Linear x 10) y)"), "did you mean linear?"),
    "a local variable misspelt": ("E-NAME-001", with_definitions("(defun f (hidden) (let ((out hidden)) ▸hiden))"), "did you mean hidden?"),
    "a variable used outside its let": ("E-NAME-001", with_definitions("(defun f (x) (+ (let ((h 1)) h) ▸h))"), "unknown name h"),
    "a let that sees itself": ("E-NAME-001", with_definitions("(defun f (x) (let ((a 1) (b ▸a)) b))"), "unknown name a"),
    "a field of another loader": ("E-NAME-001", with_loss("(mean ▸tokens)"), "unknown name tokens"),
    "a field inside a function": ("E-NAME-001", with_definitions("(defun f () (mean ▸x))"), "unknown name x"),
    "lambda": ("E-NAME-001", with_definitions("(def a (map (▸lambda (x) x) [1]))"), "did you mean fn?"),
    "not": ("E-NAME-001", with_definitions("(def a (▸not true))"), "did you mean logical-not?"),
    "two equals signs": ("E-NAME-001", with_definitions("(def a (▸== 1 2))"), "did you mean =?"),
    "clamp": ("E-NAME-001", with_loss("(mean (▸clamp x 0 1))"), "did you mean clip?"),
    "the step in a definition": ("E-NAME-001", with_definitions("(def a (* 2 ▸step))"), "run options only"),
    "a definition that needs itself": ("E-NAME-001", with_definitions("(def a (+ ▸a 1))"), "a → a"),
    "an optimizer misspelt": ("E-NAME-001", with_optimizer("(▸adamW :lr 1e-3)"), "did you mean adamw?"),
    "a loader misspelt": ("E-NAME-001", RUN.replace(":data d", ":data ▸digit") + DATA.replace(" d ", " digits "), "did you mean digits?"),
    "a source misspelt": ("E-NAME-001", with_loader('▸(txt "a.txt" :tokenizer (bytes) :seq 8 :batch 2)'), "did you mean text?"),
    "a metric misspelt": (
        "E-NAME-001", with_option(":eval (every 1 d :metrics [▸acuracy])", "(defmetric accuracy (= (argmax x :axis -1) y))"),
        "did you mean accuracy?",
    ),
    "two definitions of one name": ("E-NAME-002", with_definitions("(def width 1)\n(defhyper ▸width 2)"), "first defined at"),
    "a form's name": ("E-NAME-002", with_definitions("(defun ▸repeat (x) x)"), "take another name"),
    "a name twice in a let": ("E-NAME-002", with_definitions("(defun f (x) (let ((a 1) (▸a 2)) a))"), "`let*` binds one after the other"),
    "an argument twice": ("E-SYN-001", with_definitions("(defun f (x ▸x) x)"), "stands twice"),
    "one layer called twice under one name": (
        "E-NAME-003", with_loss('(cross-entropy (+ (linear x 10 :name "out") ▸(linear x 10 :name "out")) y)'), ":share true",
    ),
    "a shared layer of another width": (
        "E-NAME-004", with_loss('(mean (+ (linear x 10 :name "a") (sum ▸(linear x 9 :name "a" :share true))))'), "another shape",
    ),
    "a keyword of PyTorch": ("E-NAME-005", with_loss("(mean (softmax x ▸:dim 1))"), "its keywords: :axis"),
    "a keyword misspelt": ("E-NAME-005", with_loss("(mean (layernorm x ▸:esp 1e-6))"), "did you mean :eps?"),
    "a keyword of a function without any": ("E-NAME-005", with_loss("(mean (f x ▸:k 1))", "(defun f (x) x)"), "it has no keywords"),
    "an optimizer's keyword": ("E-NAME-005", with_optimizer("(adamw ▸:weight-decay 0.1)"), "its keywords"),
    "a metric's keyword": ("E-NAME-005", with_definitions("(defmetric m :reducer ▸mean (mean x))"), "did you mean :reduce?"),
    "a hyper misspelt in a variant": ("E-NAME-006", with_definitions("(defhyper layers 2)(defvariant s (▸layer 1))"), "did you mean layers?"),
    "a hyper misspelt in a sweep": ("E-NAME-006", with_definitions("(defhyper lr 0.1)(defsweep s (▸rl [0.1 0.2]))"), "did you mean lr?"),
    "a metric with a layer of its own": (
        "E-NAME-007", with_option(":eval (every 1 d :metrics [m])", "(defmetric m ▸(linear x 3 :name \"other\"))"), "of :loss",
    ),
    "an initializer without its number": ("E-NAME-008", with_loss('(mean (* x ▸(param "w" [64] normal)))'), "normal"),
    "a number as an initializer": ("E-NAME-008", with_loss('(mean (* x ▸(param "w" [64] 0.02)))'), "initializer"),
    # Shapes of forms
    "a let without its outer brackets": ("E-SYN-001", with_definitions("(defun f (x) (let (▸h (* x 2)) h))"), "a binding is (NAME EXPR)"),
    "a let without a body": ("E-SYN-001", with_definitions("(defun f (x) ▸(let ((h 1))))"), "BODY is missing"),
    "a binding with three parts": ("E-SYN-001", with_definitions("(defun f (x) (let (▸(h 1 2)) h))"), "a binding is"),
    "an if with four parts": ("E-SYN-001", with_definitions("(defun f (x) (if true 1 2 ▸3))"), "nothing may follow ELSE"),
    "an if without a branch": ("E-SYN-001", with_definitions("(defun f (x) ▸(if true))"), "THEN is missing"),
    "a cond without clauses in brackets": ("E-SYN-001", with_definitions("(defun f (x) (cond ▸true 1))"), "must be a list"),
    "a repeat as in another Lisp": ("E-SYN-001", with_definitions("(defun f (x) (repeat ▸3 (x x) x))"), "(I N) must be a list"),
    "a repeat without what is carried": ("E-SYN-001", with_definitions("(defun f (x) ▸(repeat (i 3) (f x)))"), "BODY is missing"),
    "a function without arguments": ("E-SYN-001", with_definitions("(defun f (+ ▸1 2) 3)"), "an argument's name must stand here"),
    "a default outside &key": ("E-SYN-001", with_definitions("(defun f (x ▸(k 1)) x)"), "an argument's name must stand here"),
    "a keyword as a value": ("E-SYN-001", with_definitions("(def a ▸:fast)"), "must be a form"),
    "a keyword without its value": ("E-SYN-001", with_option("▸:microbatches"), "no value after :microbatches"),
    "a key of a run twice": ("E-SYN-001", with_option("▸:steps 2"), "given twice"),
    "a run's option without its colon": ("E-SYN-001 E-SYN-001", with_option("▸microbatches ▸2"), "a keyword must stand here"),
    "an evaluation without every": ("E-SYN-001", with_option(":eval ▸(200 d)"), "(every …) must stand here"),
    "a metric of two expressions": ("E-SYN-001", with_definitions("(defmetric m x ▸y)"), "nothing may follow EXPR"),
    "a variant with a bare name": ("E-SYN-001", with_definitions("(defhyper w 1)(defvariant s ▸w)"), "must be a list"),
    "a sweep without a list": ("E-SYN-001", with_definitions("(defhyper w 1)(defsweep s (w ▸1))"), "as in [1 2]"),
    "an empty call": ("E-SYN-001", with_definitions("(def a ▸())"), "the empty list is []"),
    "a file name without quotes": ("E-SYN-001", with_definitions("(include ▸layers.sexp)"), "a text in quotes"),
    "an assertion without a message": ("E-SYN-001", with_definitions("▸(assert true)"), "is missing"),
    "an argument too many": ("E-SYN-002", with_loss("(mean ▸(relu x 1))"), "relu takes 1 argument, not 2"),
    "an argument missing": ("E-SYN-002", with_loss("(cross-entropy ▸(linear x) y)"), "out is missing"),
    "PyTorch's order of arguments": ("E-SYN-002", with_loss("(mean ▸(linear x 64 10))"), "linear takes 2 arguments, not 3"),
    "a recursion without end": ("E-SYN-003", with_definitions("(defun f (n) ▸(f (- n 1)))(def a (f 3))"), "1,000"),
    "a definition of another Lisp": ("E-SYN-004", with_definitions("▸(define a 1)"), "did you mean def or defun?"),
    "a definition misspelt": ("E-SYN-004", with_definitions("▸(deflyer net (x) x)"), "did you mean deflayer?"),
    "an expression at the top": ("E-SYN-004", with_definitions("▸(mean 3)"), "is no definition"),
    "a definition inside a function": ("E-SYN-001", with_definitions("(defun f (x) (▸def a 1))"), "is a form"),
    # Kinds and dtypes
    "a text in arithmetic": ("E-TYPE-001", with_definitions('(def a ▸(* 2 "3"))'), "takes numbers"),
    "if on a tensor": ("E-TYPE-002", with_loss("(mean (if ▸(> x 0) x 0))"), "where"),
    "if on a number": ("E-TYPE-001", with_definitions("(def a (if ▸0 1 2))"), "write a comparison"),
    "and on tensors": ("E-TYPE-002", with_loss("(mean (where (and ▸(> x 0) (< x 1)) x 0))"), "a condition on a tensor"),
    "a mask in a sum of bools": ("E-TYPE-001", with_loss("(mean ▸(- (> x 0)))"), "cast"),
    "a loss of integers": ("E-TYPE-001", with_loss("▸y"), "must be a float tensor"),
    "a tensor as a size": ("E-SHAPE-003", with_loss("(mean ▸(reshape x [y 1]))"), "a size is an integer"),
    "a tensor as a count": ("E-TYPE-001", with_loss("(mean (repeat (i ▸y) (x x) x))"), "must be an integer"),
    "a function without its call": ("E-TYPE-001", with_loss("(mean ▸(+ x relu))"), "relu"),
    "a number called": ("E-TYPE-004", with_loss("(mean ▸(2 x))"), "is no function"),
    "brackets around a value": ("E-TYPE-004", with_definitions("(def a 1)(def b ▸(a))"), "is no function"),
    "two values from three": ("E-TYPE-001", with_definitions("(def f (let (((a b) ▸[1 2 3])) a))"), "2 values are taken"),
    "one value where a repeat carries two": (
        "E-TYPE-001", with_definitions("(def a ▸(repeat (i 2) ((s 0) (t 1)) (+ s t)))"), "give (values …)",
    ),
    "an element beyond a list's end": ("E-TYPE-001", with_definitions("(def a ▸(nth [1 2] 2))"), "no element 2"),
    "a division by zero": ("E-TYPE-001", with_definitions("(def a ▸(// 1 0))"), "divided by 0"),
    "a dtype in quotes": ("E-TYPE-001", with_loss('(mean ▸(cast x "f32"))'), "a dtype is one of"),
    "an f64": ("E-NAME-001", with_loss("(mean (cast x ▸f64))"), "did you mean"),
    "dtypes without a common one": ("E-TYPE-003", with_loss("(mean ▸(+ (cast y u32) y))"), "cast one of them"),
    "an optimizer without brackets": ("E-TYPE-001", with_optimizer("▸adamw"), "as in (adamw :lr 1e-3)"),
    "a layer in a definition": ("E-TYPE-001", with_definitions("(def w ▸(linear (zeros [1 2]) 3))"), "outside the expressions of a run"),
    # Shapes
    "a weight the wrong way round": (
        "E-SHAPE-002", with_loss('(let ((w (param "w" [10 64] zeros))) (mean ▸(matmul x w)))'), "did you mean (transpose w)?",
    ),
    "sizes that do not broadcast": ("E-SHAPE-001", with_loss("(mean ▸(+ x (zeros [8])))"), "64 and 8 do not broadcast"),
    "a loss of [n 1] and [n]": (
        "E-SHAPE-001", with_loss("▸(mse (linear x 1) (cast y f32))"), "a is f32[batch=8 1], b is f32[batch=8]",
    ),
    "logits and targets that do not match": ("E-SHAPE-001", with_loss("▸(cross-entropy y y)"), "logits are"),
    "one-hot targets": ("E-SHAPE-001", with_loss("▸(cross-entropy (linear x 10) (one-hot y 10))"), "targets are integers"),
    "heads that do not divide the width": ("E-SHAPE-001", with_loss("(mean ▸(split-heads (expand-dims x 1) 5))"), "64"),
    "a reshape to another number of elements": ("E-SHAPE-001", with_loss("(mean ▸(reshape x [8 63]))"), "512"),
    "a width that is no integer": ("E-SHAPE-003", with_loss("(cross-entropy ▸(linear x (/ 64 3)) y)"), "64 / 3 = 21.33"),
    "a negative size": ("E-SHAPE-003", with_loss("(mean ▸(zeros [-1 2]))"), "at least 0"),
    "an axis that is not there": ("E-SHAPE-004", with_loss("(mean ▸(softmax x :axis 2))"), "no axis 2 in a tensor of rank 2"),
    "an axis named twice": ("E-SHAPE-004", with_loss("(mean ▸(sum x :axis [1 -1]))"), "stands twice"),
    "a tensor of a thousand billions": ("E-SHAPE-005", with_loss("(mean ▸(zeros [1_000_000_000 1_000_000]))"), "2^48"),
    "an einsum with a letter too many": ("E-SHAPE-001", with_loss('(mean ▸(einsum "b t d -> b d" x))'), "einsum"),
    # Macros
    "a macro's call of another shape": ("E-MACRO-001", with_definitions("(defmacro twice (x) (* 2 x))(def a ▸(twice 1 2))"), "its rules: (twice x)"),
    "an ellipsis forgotten": ("E-MACRO-002", with_definitions("(defmacro total (x ...) (+ ▸x))"), "`...` must follow it here, too"),
    "a macro that expands to itself": ("E-MACRO-003", with_definitions("(defmacro loop (x) (loop x))(def a ▸(loop 1))"), "without end"),
    "a variable of the call in a template": ("E-NAME-001", with_loss("(mean ▸(m))", "(defmacro m () (relu x))"), "give it x as an argument"),
    # Data
    "a file that is not there": ("E-DATA-001", with_loader('▸(text "shakespeare.txt" :tokenizer (bytes) :seq 8 :batch 2)'), "shakespeare.txt"),
    "a text shorter than a window": ("E-DATA-002", with_loader('▸(text "short.txt" :tokenizer (bytes) :seq 64 :batch 2)'), "64"),
    "a batch larger than the data": ("E-DATA-002", with_loader('▸(arrays "a.npz" :batch 16)'), "16"),
    "parts that are more than the whole": (
        "E-DATA-003", with_loader('▸(text "long.txt" :tokenizer (bytes) :seq 8 :batch 2 :split (a 0.9 b 0.2) :part a)'), "1",
    ),
    "a part that the split has not": (
        "E-DATA-003", with_loader('▸(text "long.txt" :tokenizer (bytes) :seq 8 :batch 2 :split (train 0.9 val 0.1) :part vla)'), "val",
    ),
    "a token file of a dtype that is not read": ("E-DATA-004", with_loader('▸(token-file "long.txt" :dtype i64 :seq 8 :batch 2)'), "u16"),
    "an array file of another format": ("E-DATA-005", with_loader('▸(arrays "long.txt" :batch 2)'), "long.txt"),
    "arrays of different lengths": ("E-DATA-006", with_loader('▸(arrays "uneven.npz" :batch 2)'), "examples"),
    "a loader without its batch": ("E-DATA-007", with_loader('▸(text "long.txt" :tokenizer (bytes) :seq 8)'), ":batch"),
    "a text in a column of numbers": ("E-DATA-008", with_loader('▸(csv "wrong.csv" :batch 2)'), "wrong.csv:3: column 2 (label) is no number: 'two'"),
    "a line that is no JSON": ("E-DATA-008", with_loader('▸(jsonl "long.txt" :tokenizer (bytes) :seq 8 :batch 2)'), "long.txt:1: not JSON"),
    "a column misspelt": ("E-DATA-010", with_loader('▸(csv "wrong.csv" :fields (x "witdh") :batch 2)'), "did you mean 'width'?"),
    "a tokenizer misspelt": ("E-DATA-007", with_loader('▸(text "long.txt" :tokenizer (byte) :seq 8 :batch 2)'), "did you mean bytes?"),
    "a mix of a loader that is not there": ("E-NAME-001", with_loader("(mix (▸e 0.5))"), "no loader e"),
    "a mix without weights": ("E-SYN-001", with_loader("(mix ▸d)"), "(LOADER WEIGHT)"),
    "fields without columns": ("E-SYN-001", with_loader('(csv "wrong.csv" :fields ▸(x) :batch 2)'), "as in"),
    "a loader's key misspelt": ("E-RUN-002", with_loader('(text "long.txt" :tokenizer (bytes) ▸:sqe 8 :batch 2)'), "did you mean :seq?"),
    # Runs
    "a run without its data": ("E-RUN-001", f"{DATA}▸(defrun r :loss (mean x) :optimizer (sgd) :steps 1)\n", "a run needs"),
    "a run without steps": ("E-RUN-001", f"{DATA}▸(defrun r :data d :loss (mean x) :optimizer (sgd))\n", "a run needs"),
    "a run's key misspelt": ("E-RUN-002", with_option("▸:microbatch 2"), "did you mean :microbatches?"),
    "an option of an evaluation misspelt": ("E-RUN-002", with_option(":eval (every 1 d ▸:batch 2)"), "did you mean :batches?"),
    "a runtime setting as an option": ("E-RUN-002", with_option("▸:device cuda"), "device"),
    "a runtime setting in a sweep": ("E-RUN-007", with_definitions("(defsweep s (▸device [cpu cuda]))"), "not swept"),
    "steps and epochs at once": ("E-RUN-003", with_option(":epochs ▸2"), "epochs"),
    "a text for a number": ("E-RUN-004", with_option(':seed ▸"seven"'), "integer"),
    "a precision misspelt": ("E-RUN-007", with_option(":precision ▸bf16"), "bfloat16"),
    "an average that is no fraction": ("E-RUN-007", with_option(":ema ▸1.5"), "below 1"),
    "two runs and no choice": ("E-RUN-005", f"{DATA}{RUN}▸{RUN.replace(' r ', ' s ')}", "--run"),
    # Assertions
    "a width that does not divide": (
        "E-ASSERT-001", with_definitions('(defhyper width 100)(defhyper heads 6)\n▸(assert (= (mod width heads) 0) "heads divide width" width heads)'),
        "width is the number 100, heads is the number 6",
    ),
    "an assertion inside a layer": (
        "E-ASSERT-001", with_loss("(mean (f x))", '(deflayer f (x) ▸(assert (= (rank x) 4) "images") x)'), "(rank x) is the number 2",
    ),
    # Several at once
    "two mistakes in two forms": (
        "E-NAME-001 E-SHAPE-003", with_definitions("(def a (▸foo 1))\n(def b ▸(zeros [1.5]))"), "unknown name foo",
    ),
    "a mistake in the run and one in a function": (
        "E-NAME-001 E-RUN-002", with_option("▸:step 3", "(defun f (x) (▸tnah x))"), "did you mean tanh?",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "wrong.csv").write_text("width,label\n1,1\n2,two\n")
    (tmp_path / "short.txt").write_text("to be or not to be")
    (tmp_path / "long.txt").write_text("to be or not to be, that is the question. " * 20)
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 4), np.float32))
    np.savez(tmp_path / "uneven.npz", x=np.zeros((8, 4), np.float32), y=np.zeros(7, np.int32))


def errors_of(text: str, folder: Path) -> list[Error]:
    path = folder / "wrong.sexp"
    path.write_text(text)
    with pytest.raises(Diagnostics) as problems:
        elaborate(load_program(path), lambda spec: header(spec, folder / "cache"))
    return problems.value.errors


def places_of(text: str) -> list[tuple[int, int]]:
    """Line and column of what each mark stands before, in the text without marks."""
    places = []
    for number, line in enumerate(text.split("\n"), 1):
        parts = line.split("▸")
        places += [(number, sum(map(len, parts[: k + 1])) + 1) for k in range(len(parts) - 1)]
    return places


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_has_its_code_its_place_and_help(what: str, tmp_path: Path) -> None:
    codes, text, words = MISTAKES[what]
    errors = errors_of(text.replace("▸", ""), tmp_path)
    got = [(e.code, (e.span.line, e.span.column)) for e in errors if e.span is not None]
    assert got == list(zip(codes.split(), places_of(text))), "\n".join(e.render() for e in errors)
    assert words in errors[0].render()


def test_there_are_a_hundred_mistakes_of_every_family() -> None:
    assert len(MISTAKES) >= 100 and len({text for _, text, _ in MISTAKES.values()}) == len(MISTAKES)
    families = {code.split("-")[1] for codes, _, _ in MISTAKES.values() for code in codes.split()}
    assert families == {"READ", "NAME", "SYN", "TYPE", "SHAPE", "MACRO", "DATA", "RUN", "ASSERT"}
