"""A name server on which every name exists, for webhooks to lead somewhere and custom domains to be verified.

    names.py 127.1.2.3 5353

Every name is at the address that the server is at, and is an alias for itself without its last label.
"""

import socket
import struct
import sys

A, CNAME = 1, 5
IS_ANSWER = 0x8180
IN = 1


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, port))
        print("ready", flush=True)
        while True:
            question, client = server.recvfrom(512)
            server.sendto(answer(question, socket.inet_aton(address)), client)


def answer(question, address):
    """RFC 1035, section 4: the question, and what is known of it."""
    labels, end = name(question)
    (kind,) = struct.unpack_from("!H", question, end)
    data = {A: address, CNAME: b"".join(labels[:-1]) + b"\0"}.get(kind)
    record = b"" if data is None else struct.pack("!HHHIH", 0xC00C, kind, IN, 0, len(data)) + data
    header = question[:2] + struct.pack("!HHHHH", IS_ANSWER, 1, bool(record), 0, 0)
    return header + question[12 : end + 4] + record


def name(question):
    """The labels that are asked for, with their lengths before them, and where the name ends."""
    labels, at = [], 12
    while question[at]:
        labels.append(question[at : at + 1 + question[at]])
        at += len(labels[-1])
    return labels, at + 1


if __name__ == "__main__":
    main()
