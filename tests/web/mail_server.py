"""An SMTP server that prints its port, and then each mail that it takes as a line of JSON.

    mail_server.py [CODE …]      answers the first recipients with these codes, such as 451 or 550
"""

import asyncio
import json
import sys
from email import message_from_bytes, policy

from aiosmtpd.smtp import SMTP

refusals = sys.argv[1:]


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
        print(json.dumps(mail), flush=True)
        return "250 OK"


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(Handler(), hostname="mail.test"), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
