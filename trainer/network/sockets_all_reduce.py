"""A sum over all workers in one or two hops, over plain TCP connections between each pair of workers.

A ring takes 2(N-1) hops per sum, and on a small or busy host each hop waits for a process to wake up. Here every worker sends each
other worker a part, sums the parts that it receives, and sends the sum to all: 2 hops, and as many bytes as the ring (reduce-scatter
and all-gather by direct exchange: Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521). Tiny arrays go whole: 1 hop.

Sums are formed in order of rank, by one worker or by all of them, so all workers get the same bits.
"""

import errno
import select
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.common.errors import PeerLost
from trainer.network.bfloat16 import KIND, narrow, widen
from trainer.network.host_array import aligned
from trainer.network.peer_watch import STOPPED_ANSWERING

ONE_HOP = 2**16
"""Most bytes that a worker may send for everything to go to all workers in one hop."""
PACKED = 2**20
"""Arrays of up to this many bytes in total are packed into one before they are sent."""
LANE = 64
"""Alignment of each packed array in bytes: TensorFlow takes over aligned memory without a copy."""
BUFFERS_A_CALL = 64
AHEAD = 2**15
"""On connections with TCP_USER_TIMEOUT, most bytes for a peer that has sent none of its own yet, since it may save or evaluate for minutes.
They fit into its kernel's buffer; a full one is what a lost host is to that option."""
LATE_S = 30.0
"""Seconds without any data after which a worker says for whom it waits."""
UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
"""How a connection ends whose other side does not answer."""

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Piece:
    """A part of one array: elements `start` to `stop`."""

    array: int
    start: int
    stop: int


def _pieces(sizes: Sequence[int], parts: int) -> list[list[Piece]]:
    """Cut the concatenated arrays into equal parts (to within one element): a list of pieces per part."""
    total, starts = sum(sizes), np.cumsum([0, *sizes]).tolist()
    cut = []
    for part in range(parts):
        first, last = total * part // parts, total * (part + 1) // parts
        inside = (
            (array, max(first - start, 0), min(last - start, size)) for array, (start, size) in enumerate(zip(starts, sizes, strict=False))
        )
        cut.append([Piece(array, start, stop) for array, start, stop in inside if start < stop])
    return cut


class _Outputs:
    """Memory for sums, used again once nobody has them: TensorFlow takes over arrays without a copy, and reads them when it likes."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._kinds = [(array.size, array.dtype) for array in arrays]
        self._made: list[tuple[Arrays, list[int]]] = []

    def free(self) -> Arrays:
        """Arrays, flat, that nobody reads."""
        for arrays, alone in self._made:
            if _holders(arrays) == alone:
                return arrays
        made = [aligned((size,), kind) for size, kind in self._kinds]
        self._made.append((made, _holders(made)))
        return made


def _holders(arrays: Arrays) -> list[int]:
    """How many objects hold each array's memory, as every view of it does."""
    return [sys.getrefcount(array.base) for array in arrays]


class _Route:
    """Assignment of sums to workers for arrays of certain sizes and types, and the buffers for incoming data."""

    def __init__(self, arrays: Sequence[np.ndarray], workers: int, rank: int):
        self.one_hop = sum(array.nbytes for array in arrays) * (workers - 1) <= ONE_HOP
        sizes = [array.size for array in arrays]
        everything = [Piece(array, 0, size) for array, size in enumerate(sizes) if size]
        self.summed_by = [everything] * workers if self.one_hop else _pieces(sizes, workers)
        mine = self.summed_by[rank]
        self.incoming = [[np.empty(piece.stop - piece.start, arrays[piece.array].dtype) for piece in mine] for _ in range(workers)]
        self.outputs = _Outputs(arrays)


class _Packing:
    """Many small arrays concatenated into one: copying them costs less than handling them one by one."""

    def __init__(self, arrays: Sequence[np.ndarray]):
        lane = LANE // arrays[0].itemsize
        lengths = [-(-array.size // lane) * lane for array in arrays]
        starts = np.cumsum([0, *lengths]).tolist()
        self.flat = np.zeros(starts[-1], arrays[0].dtype)
        self._places = [(start, array.size, array.shape) for start, array in zip(starts, arrays, strict=False)]

    @staticmethod
    def fits(arrays: Sequence[np.ndarray]) -> bool:
        alike = len({array.dtype.char for array in arrays}) == 1
        return len(arrays) > 1 and alike and sum(array.nbytes for array in arrays) <= PACKED

    def pack(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        for (start, size, _), array in zip(self._places, arrays, strict=True):
            self.flat[start : start + size] = array.reshape(-1)
        return self.flat

    def unpack(self, flat: np.ndarray) -> Arrays:
        return [flat[start : start + size].reshape(shape) for start, size, shape in self._places]


class Direct:
    """This worker's connections to all others."""

    def __init__(self, rank: int, sockets: dict[int, socket.socket], timeout: float, hosts: Sequence[str] = (), ahead: int | None = None):
        """Use sockets by rank of the peer.

        Args:
            rank: this worker's.
            sockets: as from `handshake`, whose options end those of lost hosts.
            timeout: seconds after which a peer that sends nothing is lost, although its host answers.
            hosts: addresses of all workers by rank, for messages.
            ahead: most bytes for a peer that has sent none of its own yet; None: any number.
        """
        self.rank, self.workers = rank, len(sockets) + 1
        self._sockets, self._timeout, self._hosts, self._ahead = sockets, timeout, hosts, ahead
        # Each worker begins with its right-hand neighbour, so that not all send to the same one.
        self._peers = [(rank + distance) % self.workers for distance in range(1, self.workers)]
        self._routes: dict[Any, _Route] = {}
        self._packings: dict[Any, _Packing] = {}
        self.bytes_sent = 0
        self.lost: PeerLost | None = None
        """Why the last sum failed: TensorFlow does not pass on the exception itself."""

    @property
    def connections(self) -> list[socket.socket]:
        """The connections to the other workers."""
        return list(self._sockets.values())

    def all_reduce(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """The sum of each array over all workers, whose memory is used again once nobody has it; PeerLost if a worker ended, or is silent.

        All workers pass the same shapes in the same order. A half-precision type is summed in float32 and rounded once.
        """
        contiguous = [np.asarray(array, order="C") for array in arrays]
        try:
            return self._packed(contiguous) if _Packing.fits(contiguous) else self._all_reduce(contiguous)
        except PeerLost as error:
            self.lost = error
            raise

    def all_gather(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """Each array's rows of all workers, in order of rank; all workers pass the same types and shapes, but for the number of rows."""
        mine = [np.ascontiguousarray(array) for array in arrays]
        table = np.zeros((self.workers, len(mine)), np.int32)
        table[self.rank] = [len(array) for array in mine]
        lengths = self.all_reduce([table])[0].tolist()
        every = [[np.empty((length, *array.shape[1:]), array.dtype) for length, array in zip(row, mine, strict=True)] for row in lengths]
        every[self.rank] = mine
        flat = [[array.reshape(-1) for array in one] for one in every]
        try:
            self._swap(dict.fromkeys(self._peers, flat[self.rank]), {peer: flat[peer] for peer in self._peers})
        except PeerLost as error:
            self.lost = error
            raise
        return [np.concatenate(parts) for parts in zip(*every, strict=True)]

    def _packed(self, arrays: Arrays) -> Arrays:
        key = (arrays[0].dtype.char, *(array.shape for array in arrays))
        if key not in self._packings:
            self._packings[key] = _Packing(arrays)
        packing = self._packings[key]
        return packing.unpack(self._all_reduce([packing.pack(arrays)])[0])

    def _all_reduce(self, arrays: Arrays) -> Arrays:
        key = tuple((array.size, array.dtype.char) for array in arrays)
        if key not in self._routes:
            self._routes[key] = _Route(arrays, self.workers, self.rank)
        route = self._routes[key]
        flat, sums = [array.reshape(-1) for array in arrays], route.outputs.free()
        to_sum = {peer: _cut(flat, route.summed_by[peer]) for peer in self._peers}
        self._swap(to_sum, {peer: route.incoming[peer] for peer in self._peers})
        mine = _cut(sums, route.summed_by[self.rank])
        parts = [_cut(flat, route.summed_by[self.rank]) if rank == self.rank else route.incoming[rank] for rank in range(self.workers)]
        for out, *addends in zip(mine, *parts, strict=True):
            _add_up(addends, out)
        if not route.one_hop:
            self._swap(dict.fromkeys(self._peers, mine), {peer: _cut(sums, route.summed_by[peer]) for peer in self._peers})
        return [total.reshape(array.shape) for total, array in zip(sums, arrays, strict=True)]

    def _swap(self, out: dict[int, Arrays], into: dict[int, Arrays]) -> None:
        """Send to and receive from all peers at the same time."""
        receiving = {peer: _Buffers(into[peer]) for peer in self._peers}
        sending = {peer: _Buffers(out[peer], self._ahead if receiving[peer] else None) for peer in self._peers}
        self.bytes_sent += sum(array.nbytes for arrays in out.values() for array in arrays)
        for peer in self._peers:
            self._send(peer, sending[peer])
        waiting = {self._sockets[peer].fileno(): peer for peer in self._peers if sending[peer] or receiving[peer]}
        poll = select.poll()
        for number, peer in waiting.items():
            poll.register(number, _events(sending[peer], receiving[peer]))
        while waiting:
            for number, event in self._await(poll, waiting.values()):
                peer = waiting[number]
                if event & ~(select.POLLIN | select.POLLOUT) and not receiving[peer]:
                    raise self._loss(peer, self._sockets[peer].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                heard = event & ~select.POLLOUT
                if heard:
                    self._receive(peer, receiving[peer])
                if event & select.POLLOUT or (heard and sending[peer].release()):
                    self._send(peer, sending[peer])
                if wanted := _events(sending[peer], receiving[peer]):
                    poll.modify(number, wanted)
                else:
                    poll.unregister(number)
                    del waiting[number]

    def _await(self, poll: "select.poll", peers: Iterable[int]) -> list[tuple[int, int]]:
        """Events of the connections to these peers; PeerLost if there are none for too long, which is announced."""
        events = poll.poll(1000 * min(LATE_S, self._timeout))
        if not events and self._timeout > LATE_S:
            names = ", ".join(self._name(peer) for peer in sorted(peers))
            print(f"lockstep: waiting for {names} for {LATE_S:.0f} s (at most {self._timeout:.0f} s)", file=sys.stderr, flush=True)
            events = poll.poll(1000 * (self._timeout - LATE_S))
        if not events:
            peer = min(peers)
            silence = f"sent nothing for {self._timeout:.0f} s, though its host answers: it hangs, or is frozen"
            raise PeerLost(f"{self._name(peer)} {silence}", peer)
        return events

    def _name(self, peer: int) -> str:
        return f"rank {peer} ({self._hosts[peer]})" if self._hosts else f"rank {peer}"

    def _loss(self, peer: int, number: int) -> PeerLost:
        """Error about a peer whose connection ended with an error number."""
        what = STOPPED_ANSWERING if number in UNREACHABLE else "closed its connection: it ended"
        return PeerLost(f"{self._name(peer)} {what}", peer)

    def _send(self, peer: int, buffers: "_Buffers") -> None:
        try:
            while buffers:
                buffers.advance(self._sockets[peer].sendmsg(buffers.next()))
        except BlockingIOError:
            pass  # sending continues when the socket has room
        except OSError as error:
            raise self._loss(peer, error.errno or 0) from None

    def _receive(self, peer: int, buffers: "_Buffers") -> None:
        try:
            count = self._sockets[peer].recvmsg_into(buffers.next())[0]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._loss(peer, error.errno or 0) from None
        if count == 0:
            raise self._loss(peer, 0)
        buffers.advance(count)


class _Buffers:
    """Memory that successive socket calls work through; what exceeds the first `ahead` bytes waits for `release`."""

    def __init__(self, arrays: Arrays, ahead: int | None = None):
        self._left = [array.view(np.uint8).data for array in arrays if array.size]
        self._held: list[memoryview] = []
        if ahead is not None:
            self._left, self._held = _divide(self._left, ahead)

    def __bool__(self) -> bool:
        return bool(self._left)

    def release(self) -> bool:
        """Let everything pass; whether anything was held back."""
        held, self._held = self._held, []
        self._left += held
        return bool(held)

    def next(self) -> list[memoryview]:
        return self._left[:BUFFERS_A_CALL]

    def advance(self, count: int) -> None:
        finished = 0
        while count and count >= len(self._left[finished]):
            count -= len(self._left[finished])
            finished += 1
        del self._left[:finished]
        if count:
            self._left[0] = self._left[0][count:]


def _divide(views: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first `count` bytes, and the others."""
    for number, view in enumerate(views):
        if count < len(view):
            first = [view[:count]] if count else []
            return views[:number] + first, [view[count:], *views[number + 1 :]]
        count -= len(view)
    return views, []


def _events(sending: _Buffers, receiving: _Buffers) -> int:
    return (select.POLLOUT if sending else 0) | (select.POLLIN if receiving else 0)


def _cut(arrays: Arrays, parts: list[Piece]) -> Arrays:
    return [arrays[piece.array][piece.start : piece.stop] for piece in parts]


def _add_up(addends: Arrays, out: np.ndarray) -> None:
    """Write the sum of arrays, added in order, to `out`; half precision is summed in float32, all else in its own type."""
    if out.dtype.kind in "iu" or out.dtype == np.float64:
        np.add(addends[0], addends[1], out=out)
        for addend in addends[2:]:
            np.add(out, addend, out=out)
        return
    total = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    np.add(widen(addends[0]), widen(addends[1]), out=total)
    for addend in addends[2:]:
        np.add(total, widen(addend), out=total)
    if total is not out:
        out[:] = narrow(total) if out.dtype == KIND else total
