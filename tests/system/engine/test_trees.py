"""Sandboxes of several processes: each is in a child what it was to the others."""

from system.engine._engine import Engine

SHELL = ["/bin/sh", "-c", 'echo READY; while read -r line; do eval "$line"; done']


def test_a_shell_with_a_job_in_the_background_waits_for_it_in_every_child(engine: Engine) -> None:
    source = engine.start(SHELL)
    source.ready()
    source.ask("sleep 1000 & job=$!; echo $job")
    snapshot = engine.snapshot(source)
    child = snapshot.fork()
    for one in (source, child):
        assert one.ask("cat /proc/$job/comm") == "sleep"
        assert one.ask("kill $job; wait $job; echo $?") == "143"
