"""`python -m sexpgpu` and the command `sexpgpu`."""

from __future__ import annotations


def main() -> None:
    import gc
    import os

    # Almost nothing that a start imports and builds is garbage, and a step leaves little: so it is looked for less often.
    gc.set_threshold(200_000, 10, 10)
    # OpenBLAS is used on one thread; those that it would make as NumPy is imported spin on a core that ours want.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from sexpgpu.cli.main import start

    start()


if __name__ == "__main__":
    main()
