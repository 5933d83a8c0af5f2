"""The CUDA driver without a card: calls go through C functions of the true prototypes, and what is wrong is found."""

from tests.fake_cuda.card import A100 as A100
from tests.fake_cuda.card import H100 as H100
from tests.fake_cuda.card import T4 as T4
from tests.fake_cuda.card import Figures as Figures
from tests.fake_cuda.driver import FakeCuda as FakeCuda
