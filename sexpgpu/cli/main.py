"""The command line: verbs to functions, exit codes, and errors in their printed form. No logic of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import sexpgpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from sexpgpu.train.request import Request


class Commands(click.Group):
    """A group that names the nearest command for a misspelt one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from sexpgpu.errors import nearest

            close = nearest(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {close!r}?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(sexpgpu.__version__, message="sexpgpu %(version)s")
def commands() -> None:
    """Train what one s-expression file says: model, loss, optimizer, data, run."""


def file_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that reads a file."""
    for option in (
        click.argument("words", nargs=-1, metavar="[FILE] [KEY=VALUE]…"),
        click.option(
            "--variant", "--profile", "variants", multiple=True, metavar="NAME", help="Take a defvariant; repeats."
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="K=V", help="Replace a hyperparameter or run.KEY; repeats."
        ),
        click.option("--run", "run", metavar="NAME", help="Which defrun, where the file has several."),
        click.option("--steps", metavar="N", help="Optimizer steps; wins over :steps and :epochs."),
        click.option("--seed", metavar="N", help="Seed of initial values, draws and order."),
        click.option("--device", metavar="KIND", help="auto, cpu, cuda or cuda:N."),
        click.option("--precision", metavar="P", help="off, bfloat16 or float16."),
        click.option("--allow-outside", is_flag=True, help="Let includes leave the file's folder."),
    ):
        function = option(function)
    return function


@commands.command()
@file_options
@click.option("--out", metavar="DIR", help="The folder that run folders are made in.")
@click.option("--name", metavar="NAME", help="The run's name, instead of its defrun's.")
@click.option("--resume", metavar="latest|PATH", help="Go on from the newest checkpoint, or from a run or checkpoint.")
@click.option("--init", metavar="RUN|PATH", help="Begin with the tensors of a run, a checkpoint or a .safetensors file.")
@click.option("--keep-values", is_flag=True, default=None, help="One kernel a node, nothing fused, every value kept.")
@click.option("--deterministic", is_flag=True, default=None, help="Nothing measured, stacking 1.")
@click.option("--allow-tf32", is_flag=True, default=None, help="Round the operands of f32 products to tf32, on cuda.")
@click.option("--timings", is_flag=True, default=None, help="Time every launch: a table at the end, and trace.json.")
@click.option("--explain-config", is_flag=True, help="Print every setting with its origin, and stop.")
@click.option("--quiet", is_flag=True, help="No words on stderr; they are in log.txt.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def run(as_json: bool, quiet: bool, explain_config: bool, name: str | None, **options: Any) -> None:
    """Train FILE; without one experiment.sexp here, else the built-in example."""
    from sexpgpu.dist.world import launch_of
    from sexpgpu.train.progress import Progress

    # Of the ranks of a launch only the first speaks.
    progress = Progress(quiet or launch_of(os.environ).rank > 0)
    request = request_of(options, name, progress.line)
    from sexpgpu.cli.run import explain_settings, run_request

    if explain_config:
        click.echo(explain_settings(request))
    else:
        run_request(request, progress, as_json)


commands.add_command(
    click.Command("train", callback=run.callback, params=run.params, help="Train FILE, and no analyses.")
)


# Those of cuda/cards.py, which the command line does not import for its help.
CARD_NAMES = ("a100", "l4", "h100", "h200", "b200")


@commands.command()
@file_options
@click.option("--init", metavar="RUN|PATH", help="Begin with the tensors of a run, a checkpoint or a .safetensors file.")
@click.option(
    "--card", type=click.Choice(CARD_NAMES), help="With --device cuda: as on such a card, which need not be here."
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def check(as_json: bool, card: str | None, **options: Any) -> None:
    """Everything short of running: errors, parameters, cost, memory, how to try the file."""
    request = request_of(options, None, lambda line: None)
    from sexpgpu.cli.check import check_request

    click.echo(check_request(request, as_json, card))


STAGES = ("ast", "ir", "grad", "regions", "plan", "kernels", "lowering")


@commands.command()
@file_options
@click.option("--arch", metavar="SM", help="The CUDA kernels, or their lowering, of cards like sm_90.")
def show(words: tuple[str, ...], arch: str | None, **options: Any) -> None:
    """Print a stage of FILE: ast, ir, grad, regions, plan, kernels or lowering."""
    stages = [word for word in words if word in STAGES]
    if len(stages) != 1:
        raise click.UsageError(f"which stage? one of {', '.join(STAGES)}")
    if arch is not None and stages[0] not in ("kernels", "lowering"):
        raise click.UsageError(f"--arch is for kernels and lowering, not for {stages[0]}")
    if arch is None and stages[0] == "lowering":
        raise click.UsageError("lowering needs --arch, as in: show FILE lowering --arch sm_90")
    rest = tuple(word for word in words if word not in STAGES)
    request = request_of({"words": rest, **options}, None, lambda line: None)
    from sexpgpu.cli.show import show_stage

    click.echo(show_stage(request, stages[0], arch))


@commands.command("eval")
@click.argument("form")
@click.option("--file", "file", metavar="FILE", help="Have the definitions of FILE in scope.")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="Take a defvariant of FILE; repeats.")
@click.option("--set", "sets", multiple=True, metavar="K=V", help="Replace a hyperparameter of FILE; repeats.")
@click.option("--seed", default=0, metavar="N", help="Seed of initial values and draws.")
@click.option("--allow-outside", is_flag=True, help="Let includes leave the file's folder.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def evaluate(
    form: str, file: str | None, variants: tuple[str, ...], sets: tuple[str, ...], seed: int, allow_outside: bool, as_json: bool
) -> None:
    """Print the value of FORM: a number, a list, or a tensor with its type, computed on the CPU.

    Definitions may stand before it, as in '(defun f (x) (* x x)) (f [1 2])'. Parameters have their initial values.
    """
    from sexpgpu.cli.evaluate import evaluate_text

    click.echo(evaluate_text(form, file, variants, sets, seed, allow_outside, as_json))


@commands.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 where a file would change.")
def fmt(files: tuple[str, ...], check: bool) -> int:
    """Lay FILEs out anew, `-` from stdin to stdout; print the names of those that changed.

    Lines begin where you began them; indentation and spaces are made regular, lines are broken at 100 columns, columns
    that you aligned stay aligned. Comments and brackets are kept, and what is read stays the same.
    """
    from sexpgpu.cli.fmt import format_files

    return format_files(files, check)


@commands.command()
@file_options
@click.option("--loader", metavar="NAME", help="One of the file's loaders, instead of all.")
@click.option("--tokenizer", metavar="bytes|FILE", help="With prepare: bytes (the default) or a tokenizer.json.")
@click.option("--out", metavar="FILE", help="With prepare: the token file.")
@click.option("--header", is_flag=True, help="With prepare: begin with llm.c's header of 1 KiB.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def data(
    words: tuple[str, ...],
    loader: str | None,
    tokenizer: str | None,
    out: str | None,
    header: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """What the loaders of FILE yield; or, as `data prepare TEXT… --out x.bin`, a token file from texts."""
    if words[:1] != ("prepare",):
        given = [name for name, value in (("tokenizer", tokenizer), ("out", out), ("header", header)) if value]
        if given:
            raise click.UsageError(f"--{given[0]} is for data prepare")
        request = request_of({"words": words, **options}, None, lambda line: None)
        from sexpgpu.cli.data import data_report

        click.echo(data_report(request, loader, as_json))
        return
    if len(words) < 2 or out is None:
        raise click.UsageError("data prepare TEXT… --out x.bin [--tokenizer bytes|tokenizer.json]")
    from sexpgpu.cli.data import prepare_report

    click.echo(prepare_report(list(words[1:]), tokenizer or "bytes", Path(out), header, as_json))


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def doctor(as_json: bool) -> int:
    """What this machine has of what a run needs, and the fix for what it has not."""
    from sexpgpu.cli.doctor import print_report

    return print_report(as_json)


@commands.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """What an error code means, why it comes, how to mend it; without a code, the list."""
    from sexpgpu.cli.explain import explain as explained

    click.echo(explained(code))


def request_of(options: dict[str, Any], name: str | None, say: Callable[[str], None]) -> Request:
    """What the words and options of a command ask for. `say` gets the first line, before anything slow is imported."""
    file, sets = split_words(options.pop("words"))
    variants = options.pop("variants")
    if file is None:
        file, variants = default_file(variants, say)
    say(f"sexpgpu {sexpgpu.__version__}: {', '.join([str(file), *(f'variant {v}' for v in variants)])}")
    from sexpgpu.train.request import Request

    flags = {
        key.replace("_", "-"): value
        for key, value in options.items()
        if key not in ("sets", "run", "allow_outside", "resume", "init")
    }
    return Request(
        file,
        tuple(variants),
        (*options["sets"], *sets),
        options["run"],
        flags,
        name,
        options["allow_outside"],
        options.get("resume"),
        options.get("init"),
    )


def split_words(words: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """FILE and KEY=VALUE words. More than one file is a wrong command line."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise click.UsageError(f"one FILE, not {len(files)}: {' '.join(files)} (a replacement is KEY=VALUE)")
    return (Path(files[0]) if files else None), tuple(word for word in words if "=" in word)


def default_file(variants: tuple[str, ...], say: Callable[[str], None]) -> tuple[Path, tuple[str, ...]]:
    """`experiment.sexp` in this folder, else the built-in example at its smoke variant."""
    here = Path("experiment.sexp")
    if here.is_file():
        return here, variants
    builtin = Path(sexpgpu.__file__).parent / "examples" / "builtin.sexp"
    say("no FILE and no experiment.sexp here: the built-in example at its smoke variant")
    return builtin, variants or ("smoke",)


def start() -> None:
    """Run a command; the process ends with its exit code."""
    try:
        code = commands.main(standalone_mode=False)
    except click.UsageError as problem:
        problem.show()
        sys.exit(2)
    except click.exceptions.Exit as asked:
        sys.exit(asked.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does; Python must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as problem:
        sys.exit(exit_code_of(problem))
    sys.exit(code if isinstance(code, int) else 0)


def exit_code_of(problem: Exception) -> int:
    """Print the user's errors; anything else is a bug of ours and keeps its traceback."""
    from sexpgpu.errors import Diagnostics, Error

    if isinstance(problem, (Error, Diagnostics)):
        sys.stdout.flush()
        sys.stderr.write(problem.render() + "\n")
        return 1
    from sexpgpu.train.stopping import Stopped

    if isinstance(problem, Stopped):
        return problem.exit_code
    raise problem
