"""Runs the PTX that NVRTC makes, on the CPU, and finds the mistakes that a GPU would hide.

`load(ptx).launch(name, grid, block, parameters, memory)` gives an Outcome whose findings are empty for a clean kernel.
"""

from tests.simulator.launch import Module, load
from tests.simulator.memory import Memory
from tests.simulator.report import Fault, Finding, Outcome, Traffic

__all__ = ["Fault", "Finding", "Memory", "Module", "Outcome", "Traffic", "load"]
