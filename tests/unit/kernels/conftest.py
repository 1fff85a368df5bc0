"""Running kernels. The shared ones serve tests that leave nothing behind that another could stumble over."""

import shutil

import pytest

from unit.kernels.driver import Driven


@pytest.fixture(scope="module")
def shared():
    with Driven("python") as kernel:
        yield kernel


@pytest.fixture
def python():
    with Driven("python") as kernel:
        yield kernel


@pytest.fixture(scope="module")
def bash():
    with Driven("bash") as kernel:
        yield kernel


@pytest.fixture(scope="module")
def node():
    if shutil.which("node") is None:
        pytest.skip("there is no node on this machine")
    with Driven("node") as kernel:
        yield kernel
