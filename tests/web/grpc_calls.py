"""Calls a gRPC service through a tunnel: `grpc_calls.py ADDRESS NAME ROOT`. Prints what came of each call."""

import sys

import grpc

address, name, root = sys.argv[1:]
credentials = grpc.ssl_channel_credentials(open(root, "rb").read())
options = [
    ("grpc.ssl_target_name_override", name),
    ("grpc.default_authority", name),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
channel = grpc.secure_channel(address, credentials, options)
WITHIN = 20


def report(what, call):
    try:
        print(f"{what}: {call()}")
    except grpc.RpcError as error:
        trailers = {key: value for key, value in error.trailing_metadata() or ()}
        print(f"{what}: {error.code().name}, {error.details()}, {trailers.get('reason')}")


def method(kind, path):
    return getattr(channel, kind)(f"/test.Echo/{path}")


def cancel():
    answers = method("unary_stream", "Endless")(b"", timeout=WITHIN)
    first = next(answers)
    answers.cancel()
    return f"{first!r}, then {answers.code().name}"


big = bytes(16 * 1024 * 1024)
report("unary", lambda: method("unary_unary", "Unary")(b"hello", timeout=WITHIN))
report("status", lambda: method("unary_unary", "Fail")(b"", timeout=WITHIN))
report("stream out", lambda: b", ".join(method("unary_stream", "StreamOut")(b"n", timeout=WITHIN)))
report("stream in", lambda: method("stream_unary", "StreamIn")(iter([b"ab", b"cde"]), timeout=WITHIN))
report("both", lambda: b" ".join(method("stream_stream", "StreamBoth")(iter([b"a", b"b"]), timeout=WITHIN)))
report("cancel", cancel)
report("deadline", lambda: method("unary_unary", "Hang")(b"", timeout=0.5))
report("16 MiB", lambda: method("unary_unary", "Unary")(big, timeout=WITHIN) == big)
