"""What the requests meet: names for new effects, a device that obeys, a tunnel that runs.

Without these nearly all of them are refused, for the same few reasons.
"""

import os
import random
import re
import subprocess
import time
import uuid

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase

from examples import nodes

IDEMPOTENCY_KEY = "Idempotency-Key"
# A service for tunnels to lead to: the host's own health, which the device can reach.
HOST, PORT = os.environ["CONTRACT_SERVICE"].split(":")
CHANCE = random.Random(0)
SESSION = requests.Session()
# The last one of each list.
CURSORS = {}
# What the host told of: ids and cursors.
TOLD = set()
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Where there are ids of what is no tunnel's.
LISTS = {
    "device_id": "/devices",
    "game_preset_id": "/presets",
    "node_id": "/nodes",
    "operation_id": "/operations",
    "webhook_id": "/webhooks",
}


def now_and_then():
    """As often as every operation is reached; it takes time, and an untidy world is to be met as well."""
    return CHANCE.random() < 0.25


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """The ids in answers' examples are of nothing, and Schemathesis would try them every few draws. It then
    takes itself for flaky and leaves an operation after a dozen requests."""
    for pointer, node in nodes(raw_schema):
        if "/responses/" in pointer:
            node.pop("example", None)


@schemathesis.hook
def before_call(context, case, kwargs):
    meta = case.meta
    # Generated keys are few and short: most requests would only repeat one.
    if IDEMPOTENCY_KEY in case.headers and not is_about_its_key(case):
        case.headers[IDEMPOTENCY_KEY] = str(uuid.uuid4())
    if not meta.is_negative_at(ParameterLocation.PATH) and is_better_known(case, case.path_parameters.values()):
        use_what_exists(case)
    if "cursor" in case.query and meta.generation.mode.is_positive and is_better_known(case, [case.query["cursor"]]):
        use_known_cursor(case)


def is_better_known(case, values):
    """What a request before has told of is left to its link; a chain of requests that begins with what is
    made up would end there."""
    phase = case.meta.phase.name
    if phase == TestPhase.STATEFUL:
        return not TOLD.issuperset(values)
    # The ids of the description's examples are of nothing.
    return phase == TestPhase.EXAMPLES or now_and_then()


def use_what_exists(case):
    if "tunnel_id" in case.path_parameters:
        use_our_tunnel(case)
    use_listed(case.path_parameters)
    if case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        use_listed(case.body)
        if case.body.get("device_ids"):
            case.body["device_ids"] = [ask("GET", "/devices")[0]["id"]]


def use_listed(ids):
    for name in ids.keys() & LISTS.keys():
        records = ask("GET", LISTS[name])
        if records:
            ids[name] = CHANCE.choice(records)["id"]


def use_known_cursor(case):
    """Only the host makes cursors."""
    cursor = CURSORS.get(case.formatted_path)
    if cursor:
        case.query["cursor"] = cursor
    else:
        del case.query["cursor"]


def use_our_tunnel(case):
    tunnel = NAMED if "/domain" in case.path else RUNNING
    case.path_parameters["tunnel_id"] = tunnel.id()
    if tunnel is NAMED and case.method == "DELETE":
        tunnel.assign()
    if "port_id" in case.path_parameters:
        case.path_parameters["port_id"] = tunnel.port_id()
    if case.meta.generation.mode.is_positive and isinstance(case.body, dict) and "domain" in case.body:
        case.body["domain"] = tunnel.domain


def is_about_its_key(case):
    """Bad keys and the longest ones stay; and some of the others, so that keys do come twice."""
    meta = case.meta
    is_meant = meta.is_negative_at(ParameterLocation.HEADER) or meta.phase.data.parameter == IDEMPOTENCY_KEY
    return is_meant or (meta.phase.name == TestPhase.FUZZING and now_and_then())


@schemathesis.hook
def after_call(context, case, response):
    answer = body(response)
    cursor = answer.get("meta", {}).get("next_cursor")
    if cursor:
        CURSORS[case.formatted_path] = cursor
        TOLD.add(cursor)
    if "data" in answer:
        TOLD.update(ID.findall(response.text))
    data = answer.get("data")
    for record in data if isinstance(data, list) else [data]:
        if isinstance(record, dict) and record.get("remote_control_enabled") is False:
            consent()
    is_in_chain = case.meta is not None and case.meta.phase.name == TestPhase.STATEFUL
    if response.status_code == 202 and (is_in_chain or now_and_then()):
        settle(data)


def consent():
    """The API turns remote control off and never on: only the device can. Its agent refuses while it has
    not heard of the turning off, and is away while it restarts."""
    for _ in range(5):
        if subprocess.run(os.environ["CONTRACT_CONSENT"].split(), capture_output=True).returncode == 0:
            return


def settle(operation):
    """Waits until the device has done what it was told."""
    for _ in range(500):
        if not operation or operation.get("finished_at", "none is told"):
            return
        time.sleep(0.01)
        operation = ask("GET", f"/operations/{operation['id']}")


class Running:
    """A tunnel that runs, and so can be stopped and restarted, whatever was done to the one before."""

    tunnel_id = None

    def id(self):
        tunnel = self.tunnel_id and ask("GET", f"/tunnels/{self.tunnel_id}")
        if not tunnel or not tunnel["runtime"]["running"]:
            self.tunnel_id = ask("POST", "/tunnels", {"local_host": HOST, "local_port": int(PORT)})["id"]
            device = ask("GET", "/devices")[0]
            settle(ask("POST", f"/tunnels/{self.tunnel_id}/actions/start", {"device_id": device["id"]}))
        return self.tunnel_id

    def port_id(self):
        path = f"/tunnels/{self.tunnel_id}/extra-ports"
        ports = ask("GET", path)
        return (ports[0] if ports else ask("POST", path, {"local_port": int(PORT)}))["id"]


class Named:
    """A tunnel with a domain of its own, which can be assigned and removed."""

    tunnel_id = domain = None

    def id(self):
        """A new one where it is gone, or was changed so that it can have no domain."""
        if not self.verify():
            self.tunnel_id = ask("POST", "/tunnels", {"local_port": int(PORT), "protocol": "http"})["id"]
            # `names.py` has it be an alias of what it has to be an alias of.
            self.domain = ask("GET", f"/tunnels/{self.tunnel_id}/domain")["cname_target"] + ".example"
            self.verify()
        return self.tunnel_id

    def assign(self):
        """Gives the tunnel its domain, which can be taken away then."""
        ask("PUT", f"/tunnels/{self.tunnel_id}/domain", {"domain": self.domain})

    def verify(self):
        """Whether the tunnel can have its domain, which is verified then."""
        path = f"/tunnels/{self.tunnel_id}/domain/actions/verify"
        return self.tunnel_id is not None and ask("POST", path, {"domain": self.domain}) is not None


RUNNING, NAMED = Running(), Named()


def ask(method, path, content=None):
    """The data of an answer to a request of our own; none, where it is refused."""
    headers = {"Authorization": f"Bearer {os.environ['CONTRACT_KEY']}", IDEMPOTENCY_KEY: str(uuid.uuid4())}
    url = f"{os.environ['CONTRACT_URL']}/v2{path}"
    answer = SESSION.request(method, url, json=content, headers=headers, timeout=10)
    return answer.json().get("data")


def body(response):
    """An answer's object; an empty one where there is none."""
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
