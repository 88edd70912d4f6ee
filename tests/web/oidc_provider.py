"""A provider of OpenID Connect that lies: which lie, its settings say. Prints its port.

    PUT /settings   JSON: {"lie": "nonce", "claims": {…}}; what is not set is as it must be
"""

import base64
import hashlib
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlparse

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

CLIENT, SECRET = "culvert", "a secret & more"
keys = {"first": RSAKey.generate_key(2048, {"kid": "first"}), "second": ECKey.generate_key("P-256", {"kid": "second"})}
settings, codes, served = {}, {}, ["first"]


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def text(value):
    return encoded(json.dumps(value).encode())


def id_token(issuer, nonce):
    now, lie = int(time.time()), settings.get("lie")
    claims = {"iss": issuer, "sub": "grace", "aud": CLIENT, "exp": now + 300, "iat": now, "nonce": nonce, "auth_time": now}
    claims |= settings.get("claims", {})
    if lie == "none":
        return ".".join([text({"alg": "none"}), text(claims), ""])
    if lie == "mac":
        # By a MAC, of which the public key is the secret.
        signed = text({"alg": "HS256", "kid": "first"}) + "." + text(claims)
        secret = keys["first"].as_pem(private=False)
        return f"{signed}.{encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"
    if lie == "rotated":
        served[:] = ["first", "second"]
        return jwt.encode({"alg": "ES256", "kid": "second"}, claims, keys["second"])
    if lie == "stranger":
        return jwt.encode({"alg": "RS256", "kid": "first"}, claims, RSAKey.generate_key(2048, {"kid": "first"}))
    return jwt.encode({"alg": "RS256", "kid": "first"}, claims, keys["first"])


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("content-length", 0))).decode()

    def do_PUT(self):
        settings.clear()
        settings.update(json.loads(self.body()))
        self.answer({})

    def do_GET(self):
        issuer, url = f"http://{self.headers['host']}", urlparse(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/.well-known/openid-configuration":
            named = settings.get("issuer", issuer)
            ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self.answer({"issuer": named} | {name: f"{issuer}/{end}" for name, end in ends.items()})
        elif url.path == "/keys":
            other = {"kty": "unheard-of", "kid": "other"}
            self.answer({"keys": [other] + [keys[name].as_dict(private=False) for name in served]})
        elif url.path == "/authorize":
            code = f"code-{len(codes)}"
            codes[code] = query
            self.send_response(302)
            self.send_header("location", query["redirect_uri"] + "?" + urlencode({"code": code, "state": query["state"]}))
            self.send_header("content-length", "0")
            self.end_headers()

    def do_POST(self):
        form = {name: values[0] for name, values in parse_qs(self.body()).items()}
        asked = codes.pop(form.get("code"), None)
        # Each part is encoded before they are put together (RFC 6749, section 2.3.1).
        secret = base64.b64encode(f"{CLIENT}:{urlencode({'': SECRET})[1:]}".encode()).decode()
        verifier = form.get("code_verifier", "").encode()
        challenge = encoded(hashlib.sha256(verifier).digest())
        is_right = asked and self.headers.get("authorization") == f"Basic {secret}" and asked["code_challenge"] == challenge
        if not is_right:
            return self.answer({"error": "invalid_grant"}, 400)
        self.answer({"access_token": "none", "id_token": id_token(f"http://{self.headers['host']}", asked["nonce"])})


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
sys.stdout.flush()
server.serve_forever()
