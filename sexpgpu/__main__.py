"""`python -m sexpgpu` and the command `sexpgpu`."""

from __future__ import annotations


def main() -> None:
    from sexpgpu.cli.main import start

    start()


if __name__ == "__main__":
    main()
