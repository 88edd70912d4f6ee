"""An SMTP server that prints its port, and then each mail that it takes as a line of JSON.

    mail_server.py [CODE …]                      answers the first recipients with these codes, such as 451 or 550
    mail_server.py --tls|--starttls CERT KEY     takes mail over TLS alone: from the first byte, or after STARTTLS
"""

import asyncio
import json
import ssl
import sys
from email import message_from_bytes, policy

from aiosmtpd.smtp import SMTP

refusals = sys.argv[1:]
mode = refusals.pop(0) if refusals and refusals[0].startswith("--") else None
context = None
if mode:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(refusals.pop(0), refusals.pop(0))


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if refusals:
            code = refusals.pop(0)
            print(json.dumps({"refused": code}), flush=True)
            return f"{code} not now"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = message_from_bytes(envelope.content, policy=policy.default)
        headers = {name.lower(): value for name, value in message.items()}
        mail = {"from": envelope.mail_from, "to": envelope.rcpt_tos, "headers": headers, "text": message.get_content()}
        mail["tls"] = server.transport.get_extra_info("ssl_object") is not None
        print(json.dumps(mail), flush=True)
        return "250 OK"


async def main():
    loop = asyncio.get_running_loop()
    starttls = {"tls_context": context, "require_starttls": True} if mode == "--starttls" else {}
    server = await loop.create_server(
        lambda: SMTP(Handler(), hostname="mail.test", **starttls), "127.0.0.1", 0, ssl=context if mode == "--tls" else None
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
