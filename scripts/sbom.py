"""Write a bill of materials (CycloneDX 1.6, JSON) of Holdfast as it is installed here.

    python scripts/sbom.py [EXTRA…] > build/holdfast.cdx.json

It lists what the base and the named extras (all of them by default) need, down to the last
dependency, with versions, licenses and who needs whom, from the metadata of the installed
packages; what is installed besides is left out. Nothing in it depends on when it is made: the
same packages give the same file.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SPEC = "1.6"


def main() -> int:
    """Print the document."""
    sys.stdout.write(json.dumps(bill(sys.argv[1:] or ["all"]), indent=1) + "\n")
    return 0


def bill(extras: list[str]) -> dict[str, Any]:
    """Return the document."""
    needs: dict[str, set[str]] = {}
    root = "holdfast"
    _walk(root, frozenset(extras), needs, set())
    parts = {name: _component(distribution(name)) for name in sorted(needs)}
    serial = uuid5(NAMESPACE_URL, json.dumps([parts[name]["purl"] for name in sorted(parts)]))
    references = {name: part["bom-ref"] for name, part in parts.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**parts.pop(root), "type": "application"}},
        "components": list(parts.values()),
        "dependencies": [
            {"ref": references[name], "dependsOn": sorted(references[one] for one in needs[name])}
            for name in sorted(needs)
        ],
    }


def _walk(name: str, extras: frozenset[str], needs: dict[str, set[str]], seen: set[object]) -> None:
    """Note what a package needs, with these extras of it, and what those need."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    found = needs.setdefault(name, set())
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        marker = wanted.marker
        if marker and not any(marker.evaluate({"extra": one}) for one in (*extras, "")):
            continue
        other = canonicalize_name(wanted.name)
        try:
            distribution(other)
        except PackageNotFoundError:
            sys.stderr.write(f"sbom: {other} is not installed; `make test` installs all of it\n")
            continue
        if other != name:
            found.add(other)
        _walk(other, frozenset(wanted.extras), needs, seen)


def _component(one: Distribution) -> dict[str, Any]:
    name = canonicalize_name(one.metadata["Name"])
    purl = f"pkg:pypi/{name}@{one.version}"
    about = {"type": "library", "bom-ref": purl, "name": name, "version": one.version}
    fields = one.metadata.json
    expression, text = fields.get("license_expression"), fields.get("license")
    licenses: list[dict[str, Any]] = []
    if expression:
        licenses = [{"expression": expression}]
    elif text:
        # Some put the whole text there; its first line names it.
        licenses = [{"license": {"name": str(text).strip().splitlines()[0][:200]}}]
    return {**about, "purl": purl, **({"licenses": licenses} if licenses else {})}


if __name__ == "__main__":
    sys.exit(main())
