"""A small process beside the ranks of a node: it notices the first that fails, says so once, and lets none live on.

MPI lets the survivors of a dead rank wait for ever, a launcher that ends them leaves no time for words, and of ranks that
fail together each would print. The guard outlives them all, in a session of its own. Every rank holds a socket to it and,
once the guard has said `here`, sends lines: `phase …`, `beat`, `failed` with its message, `ready` to end, `bye`. A socket
that closes without `bye` is a death. The guard answers `end` once a rank has failed, `go` when all are ready or have had
their time, and kills the rest. All end in one moment, so that the launcher finds none to end, of which it would tell.

Started as a script, `python -I -S guard.py`, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

# From the first failure: time for other ranks to report the same, then for all to write their last words, then to end.
GATHER_S = 0.1
LAST_WORDS_S = 2.0
END_S = 4.0
# Causes of the deaths that a launcher brings, the most likely last; '' is unknown.
KILLED = {"": 1, " (SIGKILL)": 2, " (SIGTERM)": 2}
HERE, END, GO = b"h", b"e", b"g"
# Ranks that have not come by then never will.
ARRIVE_S = 60.0


class Member:
    """A rank as the guard sees it. `left`: it has said its last word, so the end of its socket is no death."""

    def __init__(self, connection: socket.socket, pid: int = 0) -> None:
        self.connection = connection
        self.rank = -1
        self.pid = pid
        self.process = -1
        self.phase = "start"
        self.heard = time.monotonic()
        self.left = self.ready = False
        self.rest = b""


class Guard:
    """The ranks of a node, and what has become of them. `silence_s`: a rank that sends nothing for so long has stopped."""

    def __init__(self, listener: socket.socket, local_size: int, size: int, node: str, silence_s: float) -> None:
        self.listener, self.local_size, self.size = listener, local_size, size
        self.node, self.silence_s = node, silence_s
        self.members: dict[int, Member] = {}
        self.arrived = 0
        self.began = time.monotonic()
        self.failures: dict[int, str] = {}
        self.failed_at = 0.0
        self.told_at = 0.0
        self.gone = False

    def run(self) -> None:
        """Until every rank has gone."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while self.members or (self.arrived < self.local_size and not self.told_at):
            gone = []
            for descriptor, _ in poll.poll(20 if self.failures else 1000):
                if descriptor == self.listener.fileno():
                    self.admit(poll)
                elif self.hear(self.members[descriptor]):
                    poll.unregister(descriptor)
                    gone.append(self.members.pop(descriptor))
                    gone[-1].connection.close()
            self.bury([member for member in gone if not member.left])
            self.look()

    def bury(self, dead: list[Member]) -> None:
        """Speak of ranks that ended without a word, at once: the launcher ends the others now, and then nobody reads.

        Of several at a time, one came first and the launcher killed the others: it is one that was not killed, else one
        that the launcher has asked about already, so that its cause is gone.
        """
        if dead and not self.failures:
            causes = {member: cause(member.pid) for member in dead}
            suspicion = {member: KILLED.get(causes[member], 0) for member in dead}
            first = [member for member in dead if suspicion[member] == min(suspicion.values())]
            self.fail(first[0], death(first, causes[first[0]], self.size, self.node))
            self.tell()

    def admit(self, poll: select.poll) -> None:
        connection, _ = self.listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, user = int.from_bytes(credentials[:4], sys.byteorder), int.from_bytes(credentials[4:8], sys.byteorder)
        if user != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        member = Member(connection, pid=pid)
        try:
            member.process = os.pidfd_open(pid)
        except OSError:
            # It is dead already; its socket says the same.
            pass
        self.members[connection.fileno()] = member
        self.arrived += 1
        poll.register(connection, select.POLLIN)
        connection.sendall(HERE)

    def hear(self, member: Member) -> bool:
        """Take in what a rank has sent; true when it has gone."""
        member.heard = time.monotonic()
        gone = False
        # All of it: a rank that has gone must not seem to live for what it said before.
        while not gone:
            try:
                data = member.connection.recv(65536)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            gone = not data
            member.rest += data
        *lines, member.rest = member.rest.split(b"\n")
        for line in lines:
            self.obey(member, json.loads(line))
        return gone

    def obey(self, member: Member, said: dict[str, str]) -> None:
        if "rank" in said:
            member.rank = int(said["rank"])
        elif "phase" in said:
            member.phase = said["phase"]
        elif "failed" in said:
            member.left = True
            self.fail(member, said["failed"])
        elif "ready" in said:
            member.ready = True
        elif "bye" in said:
            member.left = True

    def fail(self, member: Member, message: str) -> None:
        self.failures.setdefault(member.rank, message)
        self.failed_at = self.failed_at or time.monotonic()

    def look(self) -> None:
        """What time alone brings: silence, the moment to speak, the moment to kill."""
        now = time.monotonic()
        for member in self.members.values():
            if not member.left and now - member.heard > self.silence_s and not self.failures:
                self.fail(member, silence(member, self.size, self.node, self.silence_s))
        if self.arrived < self.local_size and now - self.began > ARRIVE_S and not self.failures:
            self.fail(Member(self.listener), missing(self.local_size - self.arrived, self.node))
        if self.failures and not self.told_at and now - self.failed_at > GATHER_S:
            self.tell()
        if self.told_at and not self.gone:
            if all(member.ready for member in self.members.values()) or now - self.told_at > LAST_WORDS_S:
                self.gone = True
                self.send(GO)
        elif self.told_at and now - self.told_at > END_S:
            self.kill()

    def tell(self) -> None:
        """Print the failure: the first one, or the only one that all ranks of the run share, without a rank."""
        self.told_at = time.monotonic()
        rank, message = next(iter(self.failures.items()))
        alike = set(self.failures.values()) == {message} and len(self.failures) == self.size
        if message and not alike and rank >= 0 and "E-DP-008" not in message:
            message += f"\n   = on rank {rank} of {self.size}"
        if message:
            write_line(message)
        self.send(END)

    def send(self, word: bytes) -> None:
        for member in self.members.values():
            try:
                member.connection.sendall(word)
            except OSError:
                # It has gone; that is what is asked of it.
                pass

    def kill(self) -> None:
        for member in self.members.values():
            if member.process >= 0:
                try:
                    signal.pidfd_send_signal(member.process, signal.SIGKILL)
                except ProcessLookupError:
                    # It ended in this moment.
                    pass


def write_line(text: str) -> None:
    try:
        os.write(2, (text + "\n").encode(errors="replace"))
    except OSError:
        # The launcher has gone, and with it whoever would have read this.
        pass


def cause(pid: int) -> str:
    """How a process ended, as far as its remains still say: they are gone once its parent has asked."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    status = int(fields[-1])
    if not status:
        return ""
    number = status & 0x7F
    return f" ({signal.Signals(number).name})" if number else f" (exit code {status >> 8})"


def death(members: list[Member], cause: str, size: int, node: str) -> str:
    ranks = " and ".join(str(member.rank) for member in members)
    noun = "rank" if len(members) == 1 else "ranks"
    return report(f"{noun} {ranks} of {size} on {node} ended{cause} during {members[0].phase}")


def silence(member: Member, size: int, node: str, seconds: float) -> str:
    return report(f"rank {member.rank} of {size} on {node} has not answered for {seconds:g} s, during {member.phase}")


def missing(count: int, node: str) -> str:
    return report(f"{count} of the ranks on {node} never came")


def report(message: str) -> str:
    return f"error[E-DP-008]: {message}\n   = see its own message; restart with --resume latest"


def main() -> None:
    """Arguments: descriptor of the listening socket, ranks on this node, ranks in all, the node's name, silence."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    descriptor, local_size, size, node, silence_s = sys.argv[1:]
    listener = socket.socket(fileno=int(descriptor))
    Guard(listener, int(local_size), int(size), node, float(silence_s)).run()


if __name__ == "__main__":
    main()
