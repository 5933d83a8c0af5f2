"""cuBLASLt without a card: its calls as C functions of the true prototypes, computed by NumPy in a simulated card's memory."""

from tests.fake_cublas.library import FakeCublas as FakeCublas
