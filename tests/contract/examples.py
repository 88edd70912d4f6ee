"""Whether every example in an OpenAPI 3.1 document fits the schema that it stands beside.

    examples.py openapi.json
"""

import json
import sys

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

DOCUMENT = "urn:openapi"
# Below these is data, whatever it looks like, and no part of the description.
DATA = {"example", "examples", "default", "const", "enum"}
# The keys of these objects are names that the API chose.
NAMED = {"properties", "patternProperties", "$defs", "paths", "schemas", "responses", "parameters", "headers"}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    count, faults = check(document)
    for fault in faults:
        print(fault)
    print(f"{count} examples, {len(faults)} faults")
    sys.exit(bool(faults))


def check(document):
    """How many examples there are, and what is wrong with them."""
    registry = Registry().with_resource(DOCUMENT, DRAFT202012.create_resource(document))
    count, faults = 0, []
    for pointer, node in nodes(document):
        # A parameter, a header and a body have their schema beside the example; a schema is one itself.
        schema = {"$ref": f"{DOCUMENT}#{pointer}/schema" if "schema" in node else f"{DOCUMENT}#{pointer}"}
        validator = Draft202012Validator(schema, registry=registry, format_checker=Draft202012Validator.FORMAT_CHECKER)
        for place, example in examples(node, document):
            count += 1
            faults += [f"{pointer}/{place}: {error.message}" for error in validator.iter_errors(example)]
    return count, faults


def nodes(value, pointer="", named=False):
    """The objects of the description, and where they are (as JSON pointers)."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from nodes(item, f"{pointer}/{index}")
    elif isinstance(value, dict):
        if not named:
            yield pointer, value
        for key, item in value.items():
            if named or key not in DATA:
                step = key.replace("~", "~0").replace("/", "~1")
                yield from nodes(item, f"{pointer}/{step}", not named and key in NAMED)


def examples(node, document):
    """The examples of an object, and where in it they are."""
    if "example" in node:
        yield "example", node["example"]
    several = node.get("examples", [])
    if isinstance(several, list):
        yield from ((f"examples/{index}", example) for index, example in enumerate(several))
    else:
        yield from ((f"examples/{name}", resolve(example, document)["value"]) for name, example in several.items())


def resolve(node, document):
    """What a reference into the document stands for."""
    while "$ref" in node:
        steps = node["$ref"].removeprefix("#/").split("/")
        node = document
        for step in steps:
            node = node[step.replace("~1", "/").replace("~0", "~")]
    return node


if __name__ == "__main__":
    main()
