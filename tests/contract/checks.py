"""What the API promises beyond its schemas, held against every answer that Schemathesis gets."""

import os
import re
from collections import Counter

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.core.transport import Response
from schemathesis.generation.meta import TestPhase
from schemathesis.openapi.checks import RejectedPositiveData
from schemathesis.specs.openapi.checks import is_unexpected_http_status_case

from examples import resolve
from world import body

METHODS = {"get", "put", "post", "delete", "patch"}
# One request in this many is sent again with other keys.
SAMPLE = 10
# A code and its status, where they stand in a text.
CODE = re.compile(r"`([a-z][a-z0-9_]+)` \(\d+\)")

# A request that fits its schema is rightly answered 422 where what is wrong with it is beyond any
# schema: what there is already, what other fields say, a list too long to be written down. Known by
# `field: message`, so that a rule that a schema could state is not let off with them.
BEYOND_SCHEMAS = re.compile(
    r"""
    cursor:\ must\ be\ a\ `meta.next_cursor`\ of\ this\ list     # made by the host
    | .*:\ is\ no\                                               # the id of nothing, or of another scope's
    | .*country(_code)?:\ must\ be\ an\ ISO\ 3166-1              # 249 codes, in either case
    | subdomain:\ is\ reserved                                   # the operator's list
    | .*:\ (is|http\ ports\ are)\ for\ http\ tunnels\ only       # the tunnel's protocol
    | local_scheme:\ must\ be\ `auto`                            # the same
    | local_tls_verify:\ must\ be\ null                          # the same
    | proxy_protocol:\ must\ be\ one\ of\ .*\ tunnels           # the same
    | tls_passthrough:\ must\ be\ false                          # the same, and basic auth
    | http_basic_auth_\w+:\ is\ required\ while                  # what is stored counts as well
    | device_id:\ is\ required\ while                            # whether the tunnel runs
    | .*:\ (says\ the\ same|stands\ in)                          # twice in a list, by some of the fields
    | url:\ must\ (have\ a\ host\ name\ with\ a\ public\ address|lead\ to) # what the name server says
    | domain:\ (belongs\ to\ the\ platform|must\ be\ verified)   # the operator's list; what was asked before
    """,
    re.VERBOSE,
)

# The keys that `run` made, by what they are: `revoked`, a `stranger`'s, and by the scope that they lack.
with open(os.environ["CONTRACT_KEYS"], encoding="utf-8") as lines:
    KEYS = dict(line.split() for line in lines)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    return not (isinstance(failure, RejectedPositiveData) and is_beyond_schemas(response))


def is_beyond_schemas(response):
    faults = [f"{fault['field']}: {fault['message']}" for fault in body(response).get("errors", [])]
    return response.status_code == 422 and faults and all(map(BEYOND_SCHEMAS.match, faults))


@schemathesis.check
def envelope(ctx, response, case):
    """What succeeds is `data` and `meta`, with the request's id."""
    if response.status_code >= 300:
        return True
    answer = body(response)
    assert answer.keys() == {"data", "meta"}, f"an envelope has data and meta, this has {list(answer)}"
    unknown = answer["meta"].keys() - {"request_id", "next_cursor"}
    assert not unknown, f"unknown in meta: {unknown}"
    # A repeated answer is the first one's to the byte.
    if not header(response, "Idempotent-Replayed"):
        assert answer["meta"]["request_id"] == header(response, "X-Request-Id"), "another id than in X-Request-Id"


@schemathesis.check
def problem(ctx, response, case):
    """What fails is a problem record, with a code that the description lists."""
    if response.status_code < 400:
        return True
    assert_problem(response, case)


def assert_problem(response, case):
    kind = header(response, "Content-Type")
    assert kind == "application/problem+json", f"{response.status_code} comes as {kind}"
    record, raw = body(response), case.operation.schema.raw_schema
    code = record["code"]
    expected = {
        "status": response.status_code,
        "request_id": header(response, "X-Request-Id"),
        "type": f"{raw['externalDocs']['url']}/errors#{code}",
    }
    found = {name: record[name] for name in expected}
    assert found == expected, f"expected {expected}, found {found}"
    listed = codes_of(raw, case.operation, case.method, response.status_code)
    assert code in listed, f"{code} is not among the codes of {response.status_code}: {sorted(listed)}"
    if response.status_code == 401:
        assert header(response, "WWW-Authenticate") == "Bearer", "401 without WWW-Authenticate: Bearer"


def codes_of(raw, operation, method, status):
    """The codes that an answer may have: the ones of its status, or all, where the operation has no such status."""
    answers = operation.definition.raw["responses"] if method == operation.method.upper() else {}
    answer = answers.get(str(status))
    if answer:
        return set(codes(raw, answer))
    no_operations = CODE.findall(raw["info"].get("description", ""))
    return set(no_operations).union(*(codes(raw, answer) for answer in raw["components"]["responses"].values()))


def codes(raw, answer):
    answer = resolve(answer, raw)
    record = resolve(answer["content"]["application/problem+json"]["schema"], raw)
    examples = resolve(record["properties"]["code"], raw).get("examples")
    return examples or CODE.findall(answer["description"])


@schemathesis.check
class Keys:
    """No key, no scope and no owner is ignored: with others, the same request is refused."""

    def __init__(self):
        self.asked = Counter()
        self.operations = set()
        self.session = requests.Session()

    def after_response(self, ctx, response, case):
        operation = case.operation
        # Chains of requests alone come to some of them only.
        if case.meta.phase.name == TestPhase.FUZZING:
            self.operations = operations(operation)
        if self.is_turn("a key", operation):
            self.expect(case, response, None, 401, "missing_api_key")
            self.expect(case, response, KEYS["revoked"], 401, "invalid_api_key")
        # What leads nowhere needs no scope.
        if is_routed(case) and self.is_turn("its scope", operation):
            self.expect(case, response, KEYS[scope(operation)], 403, "insufficient_scope")
        if case.path_parameters and response.status_code < 300 and self.is_turn("its owner", operation):
            self.expect(case, response, KEYS["stranger"], 404, "not_found")

    def after_run(self, ctx):
        wanted = {(what, label) for what in ("a key", "its scope") for label in self.operations}
        missed = sorted(f"{label} without {what}" for what, label in wanted - self.asked.keys())
        assert not missed, f"never asked: {', '.join(missed)}"

    def is_turn(self, what, operation):
        self.asked[what, operation.label] += 1
        return self.asked[what, operation.label] % SAMPLE == 1

    def expect(self, case, response, key, status, code):
        request = response.request.copy()
        request.headers.pop("Authorization", None)
        if key:
            request.headers["Authorization"] = f"Bearer {key}"
        again = self.send(request)
        answer = f"{again.status_code} {body(again).get('code')}"
        assert answer == f"{status} {code}", f"expected {status} {code} of the same request, got {answer}"
        assert_problem(again, case)

    def send(self, request):
        # All on one connection: what is refused before its body was read must not break what follows.
        try:
            return Response.from_requests(self.session.send(request, allow_redirects=False, timeout=10), verify=False)
        except requests.ConnectionError as error:
            message = f"the answer before closed the connection, without `Connection: close`: {error}"
            raise AssertionError(message) from error


def is_routed(case):
    is_its_path = not case.meta.is_negative_at(ParameterLocation.PATH)
    return is_its_path and case.method == case.operation.method.upper() and not is_unexpected_http_status_case(case)


def operations(operation):
    """All that can be asked of the API, as `GET /tunnels`."""
    paths = operation.schema.raw_schema["paths"].items()
    return {f"{method.upper()} {path}" for path, item in paths for method in METHODS & item.keys()}


def scope(operation):
    raw = operation.definition.raw
    return raw.get("x-scope") or re.search(r"Needs the scope `([a-z:]+)`", raw["description"])[1]


def header(response, name):
    return response.headers.get(name.lower(), [None])[0]
