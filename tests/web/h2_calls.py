"""Speaks HTTP/2 by hand: `h2_calls.py WHAT ADDRESS PORT NAME ROOT`. Prints what came of it."""

import socket
import ssl
import struct
import sys

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

what, address, port, name, root = sys.argv[1:]
# An attack has to be ended before it has sent so many bytes.
MOST = 16 * 1024 * 1024


class Visitor:
    def __init__(self):
        context = ssl.create_default_context(cafile=root)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((address, int(port)), timeout=20)
        self.socket = context.wrap_socket(plain, server_hostname=name)
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def request(self, method="GET", path="/", more=(), end=True):
        stream = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "https"), (":authority", name), (":path", path)]
        self.h2.send_headers(stream, pseudo + list(more), end_stream=end)
        self.flush()
        return stream

    def events(self):
        """What comes until the connection ends."""
        while True:
            data = self.socket.recv(65536)
            if not data:
                return
            yield from self.h2.receive_data(data)
            self.flush()

    def until(self, kind, stream):
        for event in self.events():
            if isinstance(event, kind) and event.stream_id == stream:
                return event
        raise SystemExit("the connection ended")


def attack(visitor, step):
    """Repeats a step until the node ends the connection; says how many were enough."""
    sent = 0
    try:
        for steps in range(100_000):
            data = step()
            visitor.socket.sendall(data)
            sent += len(data)
            if sent > MOST:
                break
    except (ConnectionError, ssl.SSLError):
        return "ended by the node"
    return f"not ended by {steps} steps"


def rapid_reset(visitor):
    def step():
        stream = visitor.request()
        visitor.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        return visitor.h2.data_to_send()

    return attack(visitor, step)


def made_you_reset(visitor):
    """Streams that the node itself has to reset: a WINDOW_UPDATE of 0 is an error of the stream."""
    def step():
        stream = visitor.request(end=False, method="POST")
        return struct.pack(">IBI", 4 << 8 | 8, 0, stream) + bytes(4)

    return attack(visitor, step)


def continuation_flood(visitor):
    """Headers without an end."""
    block = b"\x40\x01a\x7f\x80\x3f" + b"b" * 8191
    visitor.socket.sendall(struct.pack(">IBI", len(block) << 8 | 1, 0, 1) + block)
    return attack(visitor, lambda: struct.pack(">IBI", len(block) << 8 | 9, 0, 1) + block)


def open_websocket(visitor, path="/"):
    """Extended CONNECT (RFC 8441); the stream and the answer's headers."""
    for event in visitor.events():
        if isinstance(event, h2.events.RemoteSettingsChanged):
            break
    more = [(":protocol", "websocket"), ("sec-websocket-version", "13")]
    stream = visitor.request("CONNECT", path, more, end=False)
    answer = visitor.until(h2.events.ResponseReceived, stream)
    return stream, {name.decode(): value.decode() for name, value in answer.headers}


def end_of(visitor, stream):
    """How a stream ends, of which all is taken."""
    for event in visitor.events():
        if isinstance(event, h2.events.DataReceived):
            visitor.h2.acknowledge_received_data(event.flow_controlled_length, stream)
        if isinstance(event, h2.events.StreamReset) and event.stream_id == stream:
            return "reset"
        if isinstance(event, h2.events.StreamEnded) and event.stream_id == stream:
            return "ended"
    return "the connection ended"


def held_websocket(visitor):
    """A WebSocket that says nothing, until it ends."""
    stream, headers = open_websocket(visitor)
    print(f"open: {headers[':status']}", flush=True)
    return end_of(visitor, stream)


def refused_websocket(visitor):
    """The service answers 200 where it should agree to the WebSocket."""
    _, headers = open_websocket(visitor, "/echo")
    return f"{headers[':status']} {headers.get('culvert-error')}"


def slow_download(visitor):
    """Takes a little of an answer, and the rest when it is told to."""
    stream = visitor.request(path="/big")
    begin = visitor.until(h2.events.DataReceived, stream)
    print("begun", flush=True)
    sys.stdin.readline()
    visitor.h2.acknowledge_received_data(begin.flow_controlled_length, stream)
    visitor.flush()
    return end_of(visitor, stream)


def stalled_download(visitor):
    """Takes an answer that stalls, until it ends, and asks again on the same connection."""
    stream = visitor.request(path="/stall")
    visitor.until(h2.events.DataReceived, stream)
    print("begun", flush=True)
    ended = end_of(visitor, stream)
    again = visitor.until(h2.events.ResponseReceived, visitor.request(path="/echo"))
    return f"{ended}, then {dict(again.headers)[b':status'].decode()}"


def websocket(visitor):
    """Extended CONNECT (RFC 8441), one text frame and its echo."""
    stream, headers = open_websocket(visitor)
    status = headers[":status"]
    enabled = visitor.h2.remote_settings.enable_connect_protocol
    mask, text = b"\x01\x02\x03\x04", b"hello"
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
    visitor.h2.send_data(stream, bytes([0x81, 0x80 | len(text)]) + mask + masked)
    visitor.flush()
    frame = visitor.until(h2.events.DataReceived, stream).data
    return f"enabled {enabled}, status {status}, {frame!r}"


print({
    "rapid_reset": rapid_reset,
    "made_you_reset": made_you_reset,
    "continuation_flood": continuation_flood,
    "websocket": websocket,
    "held_websocket": held_websocket,
    "refused_websocket": refused_websocket,
    "slow_download": slow_download,
    "stalled_download": stalled_download,
}[what](Visitor()))
