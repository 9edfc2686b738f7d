"""What starts parts again does not end because of an error."""

from live import wait_until

from sqsgd.deploy import processes, supervisor
from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.supervisor import Part, Supervisor


def test_the_watch_goes_on_where_a_part_cannot_be_started(tmp_path, monkeypatch):
    """As on a full disk: it is reported and tried again, and the other parts are watched meanwhile."""
    told, tries, start = [], [], processes.start

    def fails_twice(command, *arguments):
        tries.append(command)
        if len(tries) <= 2:
            raise OSError(28, "No space left on device")
        return start(command, *arguments)

    monkeypatch.setattr(processes, "start", fails_twice)
    monkeypatch.setattr(supervisor, "_MAX_WAIT", 0.1)
    watched = Supervisor(write_federation(tmp_path / "federation", Federation(nodes=1), 3), told.append)
    watched.live.mkdir(exist_ok=True)
    for name in ("first", "second"):
        watched.parts[name] = Part(
            name=name, command=["/bin/sleep", "60"], environment={}, log=tmp_path / f"{name}.log"
        )
    watched._watching = supervisor.threading.Thread(target=watched._watch, daemon=True)
    watched._watching.start()
    try:
        started = lambda: all(part.child is not None for part in watched.parts.values())  # noqa: E731
        wait_until(started, 120, "both parts are started")
        assert sum("No space left" in text for text in told) == 2
    finally:
        watched.end()
