"""A provider of OpenID Connect that nobody here wrote (oidc-provider-mock). Prints its port."""

import threading

from oidc_provider_mock import User, run_server_in_thread

users = [User(sub="ada", claims={"email": "ada@example.test", "email_verified": True})]
with run_server_in_thread(user_claims=users) as server:
    print(server.server_port, flush=True)
    threading.Event().wait()
