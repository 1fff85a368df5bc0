"""Generated files are as their generators write them, and generators refuse what they cannot read."""

import pytest

from _repository import load

gen_protocol = load("scripts/gen_protocol.py")
unasync = load("scripts/unasync.py")

HEADER = """
#define RAMET_SIZE 65536
#define RAMET_FRAME_MAGIC 0x31 /* why */
/* RAMET_NOT_A_MEMBER = 9, */
enum ramet_kind {
  /* group */
  RAMET_OK = 1, /* fine */
};
enum ramet_step {
  RAMET_STEP_PIVOT_ROOT = 3,
};
enum ramet_reason {
  RAMET_REASON_EXIT = 0,
};
enum ramet_tag {
  RAMET_TAG_ARG = 5, /* text;
                      * repeated */
};
"""


def test_the_numbers_of_python_are_those_of_the_header():
    assert gen_protocol.main(["--check"]) == 0


def test_the_sync_client_is_the_async_one_without_waiting():
    assert unasync.main(["--check"]) == 0


def test_macros_and_enumerators_are_read_with_their_names():
    names = {}
    exec(gen_protocol.render(HEADER, "a header"), names)
    assert (names["SIZE"], names["FRAME_MAGIC"], names["OK"], names["TAG_ARG"]) == (65536, 0x31, 1, 5)
    assert names["STEP_NAMES"][3] == "pivot_root"
    assert names["KIND_NAMES"][1] == "ok"


@pytest.mark.parametrize(
    "line",
    ["#define RAMET_SIZE (1 << 3)", "enum ramet_kind {\n  RAMET_A,\n};", "enum x {\n  RAMET_A = B,\n};"],
)
def test_a_line_that_cannot_be_read_is_an_error(line):
    with pytest.raises(gen_protocol.Unreadable):
        gen_protocol.parse(line)
