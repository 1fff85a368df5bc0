"""Messages of kernels: how they are cut, and that what a fork or an enemy has cut is never taken for one."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramet import kernels
from ramet.errors import InvalidRequest
from ramet.kernels import BadEvent, Decoder, Kernel, _codec

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
REQUESTS = st.builds(lambda name, code: {"op": "run", "id": name, "code": code, "context": None}, TEXT, TEXT)
JSON_LINES = Kernel(name="lines", argv=("x",), channel="lines", source=b"")


def unescaped(field):
    """What printf's %b makes of a field."""
    whole = field.replace("\\\\", "\1").replace("\\n", "\n").replace("\\x1f", "\x1f")
    return whole.replace("\1", "\\")


@given(st.binary(max_size=200_000), st.booleans())
def test_packets_put_together_are_the_message(message, first):
    cut = _codec.packets(message, first=first)
    assert b"".join(packet[1:] for packet in cut) == message
    assert all(len(packet) <= kernels.PACKET for packet in cut)
    assert [packet[0] & 1 for packet in cut] == [1] * (len(cut) - 1) + [0]
    assert bool(cut[0][0] & 2) == first


@given(TEXT.filter(lambda text: "\1" not in text))
def test_fields_of_a_shell_come_back(code):
    line = _codec.as_fields({"op": "run", "id": "i", "code": code, "context": None}).decode()
    assert "\n" not in line
    assert [unescaped(field) for field in line.split("\x1f")] == ["run", "i", "", code, "end"]


@given(REQUESTS, st.data())
def test_no_line_that_a_fork_cut_is_a_request(request, data):
    for encode in (_codec.as_json, _codec.as_fields):
        line = encode(request)
        # The newline may be missing alone: then the whole line was read, and the parent answers it.
        cut = line[: data.draw(st.integers(0, len(line)))] + kernels.FRESH.rstrip(b"\n")
        if encode is _codec.as_json:
            with pytest.raises(ValueError, match=r"."):
                json.loads(cut)
        else:
            assert cut.split(b"\x1f")[-1] != b"end"


# Bytes alone are hardly ever an event.
NOISE = st.binary(max_size=100)
PACKETS = st.one_of(
    NOISE,
    NOISE.map(lambda rest: b"\1" + rest),
    st.sampled_from(
        [b'\2{"event":"x"}', b'\3{"event":', b'\0"x"}', b'\1"x', b'\0"}', b'\2{"event":5}', b"\2[]"]
    ),
)
LINES = st.one_of(
    NOISE,
    st.sampled_from(
        [b'{"event":"x"}\n', b'{"event":', b'"x"}\n', b"\n", b"\x18\n", b'{"event":5}\n', b"[]\n"]
    ),
)


@given(st.lists(PACKETS))
@example([b'\3{"event":', b'\0"x"}'])
def test_whatever_packets_come_only_events_come_out(packets):
    decoder = Decoder("packets")
    for packet in packets:
        try:
            events = decoder.feed(packet)
        except BadEvent:
            return
        assert all(isinstance(event["event"], str) for event in events)


@given(st.lists(LINES), st.booleans())
@example([b'{"event":"x"}\n'], False)
def test_whatever_bytes_come_only_events_come_out(chunks, fresh):
    decoder = Decoder("lines", fresh=fresh)
    for chunk in chunks:
        try:
            events = decoder.feed(chunk)
        except BadEvent:
            return
        assert all(isinstance(event["event"], str) for event in events)


@given(st.lists(TEXT, min_size=1), st.data())
def test_lines_arrive_however_they_are_cut(texts, data):
    stream = b"".join(_codec.as_json({"event": text}) + b"\n" for text in texts)
    decoder, events = Decoder("lines"), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        events += decoder.feed(stream[:size])
        stream = stream[size:]
    assert [event["event"] for event in events] == texts


def test_the_rest_of_an_event_that_went_to_the_parent_is_dropped():
    event = b'{"event":"done"}'
    packets = Decoder("packets", fresh=True)
    assert packets.feed(b"\1rest") == []
    assert packets.feed(b'\0of it"}') == []
    assert packets.feed(b"\2" + event) == [{"event": "done"}]
    lines = Decoder("lines", fresh=True)
    assert lines.feed(b'rest of it"}\n' + event + b"\n") == [{"event": "done"}]
    with pytest.raises(BadEvent, match="not JSON"):
        lines.feed(b"rest\n")


def test_a_message_begun_anew_replaces_what_was_gathered():
    decoder = Decoder("packets")
    assert decoder.feed(b'\3{"event":"half') == []
    assert decoder.feed(b'\3{"event":') == []
    assert decoder.feed(b'\0"whole"}') == [{"event": "whole"}]


@pytest.mark.parametrize("channel", ["packets", "lines"])
def test_an_event_without_end_is_refused(channel):
    decoder = Decoder(channel)
    decoder.feed(b"\3")
    with pytest.raises(BadEvent, match="more than"):
        decoder.feed(b"\1" + b"x" * (kernels.EVENT_MAX + 1))


@pytest.mark.parametrize(
    "packet", [b"", b"\4", b"\2", b"\2null", b"\2[]", b'\2{"event":5}', b"\2" + b"[" * 20_000]
)
def test_packets_that_are_no_events_are_refused(packet):
    with pytest.raises(BadEvent):
        Decoder("packets").feed(packet)


def test_a_nul_is_refused_for_a_shell():
    with pytest.raises(InvalidRequest, match="NUL"):
        kernels.get("bash").request({"op": "run", "id": "1", "code": "a\0b"})


def test_the_kernels_are_known_by_name_and_near_names_are_told():
    assert kernels.names() == ["bash", "node", "python"]
    with pytest.raises(InvalidRequest, match="bash, node, python") as raised:
        kernels.get("pythn")
    assert "python" in str(raised.value.hint)


def test_a_kernel_of_ones_own_can_be_added_once(monkeypatch):
    monkeypatch.setattr("ramet.kernels._kernel._known", {})
    kernels.register(JSON_LINES)
    assert kernels.get("lines") is JSON_LINES
    assert JSON_LINES.opening() == []
    assert JSON_LINES.fresh({"op": "forked"}) == [b"\x18\n", b'{"op":"forked"}\n']
    with pytest.raises(InvalidRequest, match="already"):
        kernels.register(JSON_LINES)


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"name": "a/b"}, "kernel"),
        ({"argv": ()}, "argv"),
        ({"channel": "packets", "requests": "fields"}, "requests"),
    ],
)
def test_a_kernel_that_cannot_work_is_refused_by_field(fields, field):
    given = {"name": "own", "argv": ("x",), "channel": "lines", "source": b"", **fields}
    with pytest.raises(InvalidRequest) as raised:
        Kernel(**given)
    assert raised.value.field == field
