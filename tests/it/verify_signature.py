"""Says of every delivery on standard input whether its signature holds: a receiver's side of
docs/develop/decisions/0011-events-and-webhooks.md, with Python's standard library and none of Culvert's
code.

A delivery is a line of JSON: secret, id, timestamp, signature, and the body in hexadecimal.
"""

import hashlib
import hmac
import json
import sys

for line in sys.stdin:
    delivery = json.loads(line)
    signed = f"{delivery['id']}.{delivery['timestamp']}.".encode() + bytes.fromhex(delivery["body"])
    expected = "v1=" + hmac.new(delivery["secret"].encode(), signed, hashlib.sha256).hexdigest()
    print("holds" if hmac.compare_digest(expected.encode(), delivery["signature"].encode()) else "fails")
