"""A local service: `service.py grpc`, `websocket`, `h2c`, `h2 FOLDER` or `abrupt FOLDER`. It prints its port and serves until it is
killed. The folder has `cert.pem` and `key.pem`."""

import asyncio
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import grpc
import h2.config
import h2.connection
import h2.events
import websockets


def unary(request, context):
    return request


def fail(request, context):
    context.set_trailing_metadata((("reason", "told in the trailers"),))
    context.abort(grpc.StatusCode.NOT_FOUND, "there is no such thing")


def hang(request, context):
    """Answers no caller: it ends with the call."""
    ended = Event()
    if context.add_callback(ended.set):
        ended.wait()
    return request


def stream_out(request, context):
    for number in range(5):
        yield b"%s %d" % (request, number)


def stream_in(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def stream_both(requests, context):
    for request in requests:
        yield request.upper()


def endless(request, context):
    number = 0
    while context.is_active():
        yield b"%d" % number
        number += 1


def grpc_service():
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Hang": grpc.unary_unary_rpc_method_handler(hang),
        "StreamOut": grpc.unary_stream_rpc_method_handler(stream_out),
        "StreamIn": grpc.stream_unary_rpc_method_handler(stream_in),
        "StreamBoth": grpc.stream_stream_rpc_method_handler(stream_both),
        "Endless": grpc.unary_stream_rpc_method_handler(endless),
    }
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), options=unlimited)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


async def echo(socket):
    async for message in socket:
        if message == "close":
            await socket.close(4321, "as asked")
        else:
            await socket.send(message)


async def websocket_service():
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


class H2cConnection(asyncio.Protocol):
    """HTTP/2 and nothing else: it answers with the request's pseudo headers and the size of its body."""

    def connection_made(self, transport):
        self.transport, self.requests = transport, {}
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.http2.initiate_connection()
        transport.write(self.http2.data_to_send())

    def data_received(self, data):
        for event in self.http2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                self.requests[event.stream_id] = [dict(event.headers), 0]
            elif isinstance(event, h2.events.DataReceived):
                self.requests[event.stream_id][1] += len(event.data)
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                headers, size = self.requests.pop(event.stream_id)
                named = [headers[name] for name in (":method", ":scheme", ":path", ":authority", "x-forwarded-host")]
                self.http2.send_headers(event.stream_id, [(":status", "200"), ("content-type", "text/plain")])
                self.http2.send_data(event.stream_id, f"{' '.join(named)} {size}\n".encode(), end_stream=True)
        self.transport.write(self.http2.data_to_send())


def tls_context(folder, protocols=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def abrupt_service(folder):
    """Ends each answer by closing the connection, without a close_notify alert of TLS. The body of each request is `five!`: what is
    not read before the close would reset the connection."""
    context = tls_context(folder)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        stream = context.wrap_socket(connection, server_side=True)
        request = b""
        while not request.endswith(b"\r\n\r\nfive!"):
            request += stream.recv(65536)
        stream.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + 300_000 * b"x")
        stream.close()


async def h2c_service(tls=None):
    server = await asyncio.get_running_loop().create_server(H2cConnection, "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if sys.argv[1] == "grpc":
    grpc_service()
elif sys.argv[1] == "h2c":
    asyncio.run(h2c_service())
elif sys.argv[1] == "h2":
    asyncio.run(h2c_service(tls_context(sys.argv[2], ["h2"])))
elif sys.argv[1] == "abrupt":
    abrupt_service(sys.argv[2])
else:
    asyncio.run(websocket_service())
