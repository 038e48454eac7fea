"""Write the Python code for the protobuf schemas in docs/format.

    python scripts/make_protobuf.py [FOLDER]

The code is committed, so that nobody needs the compiler to install Holdfast; a test compares it
with what the compiler writes today. With a folder, the code goes there instead.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCHEMAS = {
    "docs/format/fileset.proto": "src/holdfast/store/filesets",
    "docs/format/gc.proto": "src/holdfast/store/gc",
}

HEAD = {
    ".py": '"""Written by scripts/make_protobuf.py from {schema}."""\n# mypy: ignore-errors\n',
    ".pyi": "# Written by scripts/make_protobuf.py from {schema}.\n"
    '# mypy: disable-error-code="type-arg"\n',
}


def generate(schema: str) -> dict[str, str]:
    """Return the modules for a schema: their names and what is in them."""
    from grpc_tools import protoc

    source = ROOT / schema
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{source.parent}", f"--python_out={folder}"]
        if protoc.main([*arguments, f"--pyi_out={folder}", str(source)]) != 0:
            raise SystemExit(f"{schema} is not a valid schema")
        return {
            path.name: HEAD[path.suffix].format(schema=schema) + path.read_text()
            for path in sorted(Path(folder).iterdir())
        }


def main() -> None:
    for schema, package in SCHEMAS.items():
        folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / package
        for name, text in generate(schema).items():
            (folder / name).write_text(text)


if __name__ == "__main__":
    main()
