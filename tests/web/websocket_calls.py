"""Speaks WebSocket with an echo through a tunnel: `websocket_calls.py ADDRESS PORT NAME ROOT`."""

import asyncio
import ssl
import sys

import websockets

address, port, name, root = sys.argv[1:]


async def main():
    context = ssl.create_default_context(cafile=root)
    url = f"wss://{name}:{port}/"
    async with websockets.connect(url, host=address, port=int(port), ssl=context, max_size=None, proxy=None) as socket:
        for what, message in [("text", "hello"), ("bytes", bytes(1024 * 1024)), ("1 MiB of text", "ä" * 524288)]:
            await socket.send(message)
            print(f"{what}: {await socket.recv() == message}")
        pong = await socket.ping()
        print(f"pong: {await pong >= 0}")
        await socket.send("close")
        try:
            await socket.recv()
        except websockets.ConnectionClosed as closed:
            print(f"closed: {closed.rcvd.code} {closed.rcvd.reason}")


asyncio.run(asyncio.wait_for(main(), 30))
