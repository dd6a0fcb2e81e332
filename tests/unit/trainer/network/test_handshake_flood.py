"""Whom a listener drops when more strangers call at once than it can hear."""

import asyncio

from trainer.network.handshake import _Listener


def test_a_flood_drops_the_flooding_hosts_oldest_caller():
    async def dropped():
        listener = _Listener(0, None, b"", [1], {})
        addresses = ["10.0.0.2", "10.0.0.9", "10.0.0.9", "10.0.0.3", "10.0.0.9"]
        callers = [asyncio.ensure_future(asyncio.Event().wait()) for _ in addresses]
        listener._pending.update(zip(callers, addresses, strict=True))
        listener._drop_one()
        await asyncio.sleep(0)
        gone = [number for number, caller in enumerate(callers) if caller.cancelled()]
        assert list(listener._pending.values()) == ["10.0.0.2", "10.0.0.9", "10.0.0.3", "10.0.0.9"]
        for caller in callers:
            caller.cancel()
        return gone

    assert asyncio.run(dropped()) == [1]
