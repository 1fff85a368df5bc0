"""Code that is interrupted once it runs, which its output tells."""

import threading

import ramet


def interrupted(sandbox: ramet.Sandbox, code: str, patience: float) -> list[ramet.Execution]:
    """How `code`, which writes and goes on for long, ended; nothing where it has not in this time."""
    started, ended = threading.Event(), []
    running = threading.Thread(
        target=lambda: ended.append(sandbox.run_code(code, on_stdout=lambda _: started.set()))
    )
    running.start()
    assert started.wait(patience)
    sandbox.interrupt()
    running.join(patience)
    return ended
