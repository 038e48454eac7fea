"""The reference pages say what the code does: claim by claim, for every page.

A claim is read off a page, and the code is asked for the same. A page that a script writes makes
one claim: it is what the script writes now.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
import yaml
from pydantic import BaseModel, create_model
from pydantic_core import PydanticUndefined
from scripts import code_pages, config_page, metrics_page
from tests.processors.passing import event_of

from holdfast import errors
from holdfast.dataflow.source.options import SourceOptions
from holdfast.deliver.exporters.classify import failure_of_status
from holdfast.deliver.exporters.dialects import PRESETS
from holdfast.deliver.exporters.otlp import OTLP_PRESETS
from holdfast.graph.model import GraphFile, TelemetrySettings
from holdfast.operate.cli import cli
from holdfast.operate.gateway_metrics import ALL_METRICS
from holdfast.operate.metrics import METRICS, prometheus_name
from holdfast.operate.node_metrics import NODE_METRICS
from holdfast.operate.telemetry import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX
from holdfast.operate.telemetry_metrics import TELEMETRY_METRICS
from holdfast.processors import attributes, filter_items, match, redact, rename, route, sample, trim
from holdfast.processors import filter as filter_module
from holdfast.quiver import EventTimeStatement, Receipt
from holdfast.receive.body import RequestLimits
from holdfast.receive.openlineage import Config
from holdfast.receive.responses import STATUS_OF
from holdfast.receive.server_state import ConnectionSettings
from holdfast.remote import ClientSettings, FlightSettings, PlannedRange
from holdfast.remote.owner import KINDS
from holdfast.remote.wire import VERSION
from holdfast.settings.keys import key_of
from holdfast.signals.openlineage.facts import FACETS, PLACES, Slot
from holdfast.signals.openlineage.findings import MAX_PROBLEMS
from holdfast.signals.openlineage.json_text import MAX_DEPTH
from holdfast.store.fsck.findings import FindingKind
from holdfast.units import parse_duration_s, parse_size_bytes

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
# What a claim is about, what the page says of it, and what the code does.
Claims = Iterator[tuple[str, object, object]]


def of_config(page: str) -> Claims:
    yield "run: python scripts/config_page.py", page, config_page.page()


def of_code(name: str) -> Callable[[str], Claims]:
    def claims(page: str) -> Claims:
        yield "run: python scripts/code_pages.py", page, code_pages.PAGES[name]()

    return claims


def of_metrics(page: str) -> Claims:
    yield "run: python scripts/metrics_page.py", page, metrics_page.page()
    names = re.findall(r"^\| `(\w+)", page, re.MULTILINE)
    known = (*ALL_METRICS, *NODE_METRICS)
    yield "names", set(names), {prometheus_name(metric.name) for metric in known}


def of_processors(page: str) -> Claims:
    modules: dict[str, Any] = {
        "filter": filter_module,
        "route": route,
        "redact": redact,
        "rename": rename,
        "trim": trim,
        "filter_items": filter_items,
        "attributes": attributes,
        "sample": sample,
    }
    models: dict[str, type[BaseModel]] = {
        **{name: module.Config for name, module in modules.items()},
        "condition": match.Condition,
        "rule": route.RouteRule,
        "pattern": redact.ValuePattern,
        "rename-rule": rename.RenameRule,
        "item-condition": filter_items.ItemCondition,
        "attribute-action": attributes.AttributeAction,
    }
    for name, model in models.items():
        found = re.search(rf"<!-- options: {name} -->\n(?:\|.*\n){{2}}((?:\|.*\n)*)", page)
        assert found is not None, name
        yield name, found[1].splitlines(), option_rows(name, model)
    secrets = page.partition("The names by default: ")[2].partition("\n\n")[0]
    yield "secrets", re.findall(r"`([^`]+)`", secrets), list(redact.DEFAULT_NAMES)
    seen = set()
    for one in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        name = one.split("\n", 1)[0]
        for example in yaml_blocks(one):
            config = example.get("config") or next(iter(example.values()))["config"]
            modules[name].make(modules[name].Config.model_validate(config))
            seen.add(name)
    yield "examples", seen, set(modules)
    yield "marker", *marker_facets(page)


def option_rows(name: str, model: type[BaseModel]) -> list[str]:
    """Return the rows of a table of options."""
    made = []
    for field in {"rule": ["port"]}.get(name, list(model.model_fields)):
        info = model.model_fields[field]
        words = " ".join((info.description or "").split())
        made.append(f"| `{info.alias or field}` | {shown_default(info.default)} | {words} |")
    return made


def shown_default(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    if default == redact.DEFAULT_NAMES:
        return "see below"
    text = default if isinstance(default, str) else orjson.dumps(default).decode()
    return f"`{text}`"


def marker_facets(page: str) -> tuple[object, object]:
    """Return the facet that tells what was trimmed, as it is shown and as it is."""
    (example,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    shown = orjson.loads("{" + example + "}")
    processor = trim.make(trim.Config(facets=("spark.*",), max_facet_bytes=1024))
    large = {"spark.logicalPlan": {"x": "y" * 2000}}
    passed = processor.process(event_of({"run": {"facets": large}}))
    assert passed is not None
    found = passed.document["run"]["facets"]
    shown[trim.MARKER]["facets"][0]["bytes"] = found[trim.MARKER]["facets"][0]["bytes"]
    return shown, found


def of_exporters(page: str) -> Claims:
    for node in (examples := yaml_blocks(page)):
        module = importlib.import_module(f"holdfast.deliver.exporters.{node['type']}")
        module.Config.model_validate(node["config"])
    types = {node["type"] for node in examples}
    yield "examples", types, {"http", "otlp", "otap", "files", "kafka", "python", "console"}
    statuses = re.findall(r"^\| ((?:\d{3}(?:, )?)+) \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(statuses) == 5
    for codes, kind in statuses:
        real = {failure_of_status(int(code)).kind.value for code in codes.split(", ")}
        yield codes, {kind}, real
    presets = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(/\S+)` \| `(\w+)` \|$", page, re.MULTILINE)
    told = {name: preset for names, *preset in presets for name in quoted(names)}
    yield "presets", told, {n: [p.path(p.dialect), p.dialect] for n, p in PRESETS.items()}
    otlp = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| (gRPC|HTTP) \| (\w+) \| `(\S*)/v1/", page, re.MULTILINE
    )
    told = {name: [*preset] for names, *preset in otlp for name in quoted(names)}
    known = {
        name: [
            {"grpc": "gRPC", "http": "HTTP"}[preset.protocol],
            "all" if len(preset.kinds) > 1 else preset.kinds[0].value,
            preset.prefix,
        ]
        for name, preset in OTLP_PRESETS.items()
    }
    yield "presets of otlp", told, known


def of_http_api(page: str) -> Claims:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", page, re.MULTILINE)
    told = [(reason, int(status)) for status, reason in rows]
    yield "reasons", told, [(str(reason), status) for reason, status in STATUS_OF.items()]
    for group, settings in (("limits", RequestLimits()), ("connections", ConnectionSettings())):
        bounds = re.findall(rf"^\| `{group}\.(\w+)` \| (\S+) \|", page, re.MULTILINE)
        told_bounds = [(key, parsed_bound(shown)) for key, shown in bounds]
        fields = type(settings).model_fields
        yield group, told_bounds, [(key_of(name), getattr(settings, name)) for name in fields]
    plain = page.replace("POST ", "")
    yield "paths not told", [one for one in Config().all_paths if f"`{one}`" not in plain], []
    (example,) = yaml_blocks(page)
    (node,) = example["nodes"].values()
    namespaces = Config.model_validate(node["config"]).tokens[0].namespaces
    yield "example", namespaces, ("airflow-*", "s3://lake-*")


def parsed_bound(shown: str) -> float:
    if shown.isdecimal():
        return int(shown)
    return parse_duration_s(shown) if shown.endswith("s") else parse_size_bytes(shown)


def of_flight(page: str) -> Claims:
    for model in (FlightSettings, ClientSettings):
        head = f"| `{model.__name__}` | default | |\n|---|---|---|\n"
        table = section(page, "Settings").partition(head)[2].partition("\n\n")[0]
        told = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE))
        yield model.__name__, told, {n: str(f.default) for n, f in model.model_fields.items()}
    yield "version", f"version {VERSION} of the protocol" in page, True
    cells = re.findall(r"^\| (`.*?) \|", section(page, "Statements"), re.MULTILINE)
    statement = [name for cell in cells for name in quoted(cell)]
    yield "statement", statement, [field.name for field in fields(EventTimeStatement)]
    receipt = section(page, "Puts").rpartition("the receipt:")[2]
    yield "receipt", quoted(receipt), list(Receipt._fields)
    planned = section(page, "Actions").rpartition("A `range` has")[2].partition(":")[0]
    yield "range", quoted(planned), [field.name for field in fields(PlannedRange)]
    yield "puts", [kind for kind in KINDS if f"`{kind}`" not in section(page, "Puts")], []


def of_validation(page: str) -> Claims:
    for slot in Slot:
        known = [f"`{f.key}` {f.version}" for (place, _), f in FACETS.items() if place is slot]
        yield slot, f"| `{slot}` | {PLACES[slot]} | {', '.join(known)} |" in page, True
    told = set(re.findall(r"^\| `(\w+)` \| (?:error|warning|either)", page, re.MULTILINE))
    sources = ROOT / "src" / "holdfast" / "signals" / "openlineage"
    yield "rules", told, {r for path in sources.glob("*.py") for r in rules_in(path.read_text())}
    yield "levels", f"more than {MAX_DEPTH} levels" in page, True
    yield "problems", f"At most {MAX_PROBLEMS}\nerrors" in page, True


def rules_in(source: str) -> Iterator[str]:
    """Yield the rule of every problem that is made in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            rule = node.args[2] if node.func.id == "Problem" else None
            if isinstance(rule, ast.Constant):
                yield str(rule.value)


def of_store_check(page: str) -> Claims:
    table = page.partition("| finding |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| (\w[\w ]+) \|", table, re.MULTILINE)
    yield "findings", told, [kind.value for kind in FindingKind]


def of_telemetry(page: str) -> Claims:
    (example,) = yaml_blocks(page)
    settings = TelemetrySettings.model_validate(example["telemetry"])
    by_default = TelemetrySettings(config=settings.config)
    yield "the example has the defaults", settings, by_default
    told = re.findall(r"^\| (\w+) \|", page, re.MULTILINE)
    yield "signals", tuple(told[1:]), by_default.signals
    known = {prometheus_name(metric.name) for metric in TELEMETRY_METRICS}
    yield "metrics", set(re.findall(r"gateway_telemetry_\w+", page)) <= known, True
    bounds = (MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX)
    yield "cuts", all(f"{bound:,}" in page for bound in bounds), True


def section(page: str, title: str) -> str:
    """Return what stands below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def quoted(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def yaml_blocks(page: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]


CLAIMS: dict[str, Callable[[str], Claims]] = {
    **{name: of_code(name) for name in code_pages.PAGES},
    "config": of_config,
    "exporters": of_exporters,
    "flight": of_flight,
    "http-api": of_http_api,
    "metrics": of_metrics,
    "openlineage-validation": of_validation,
    "processors": of_processors,
    "store-check": of_store_check,
    "telemetry": of_telemetry,
}


@pytest.mark.parametrize("name", sorted(path.stem for path in REFERENCE.glob("*.md")))
def test_a_page_says_what_the_code_does(name: str) -> None:
    claims = list(CLAIMS[name]((REFERENCE / f"{name}.md").read_text()))
    assert claims
    for about, told, real in claims:
        assert told == real, f"{name}: {about}"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("cli", "--since"),
        ("errors", "DiskFull"),
        ("python-api", "append_raw"),
        ("spark", "max_rows"),
        ("config", "default"),
        ("exporters", "401"),
        ("flight", "None"),
        ("http-api", "503"),
        ("metrics", "counter"),
        ("openlineage-validation", "run"),
        ("processors", "required"),
        ("store-check", "wrong count"),
        ("telemetry", "8,192"),
    ],
)
def test_a_page_that_says_something_else_is_found(name: str, word: str) -> None:
    page = (REFERENCE / f"{name}.md").read_text()
    assert any(told != real for _, told, real in CLAIMS[name](page.replace(word, "777")))


def _plant_option(patch: pytest.MonkeyPatch) -> None:
    command = cli.get_command(click.Context(cli), "doctor")
    assert command is not None
    patch.setattr(command, "params", [*command.params, click.Option(["--planted"])])


def _plant_verb(patch: pytest.MonkeyPatch) -> None:
    group = cli.get_command(click.Context(cli), "dlq")
    assert isinstance(group, click.Group)
    patch.setattr(group, "commands", {**group.commands, "planted": click.Command("planted")})


def _plant_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors, "Planted", type("Planted", (errors.BadInput,), {}), raising=False)


def _plant_metric(patch: pytest.MonkeyPatch) -> None:
    planted = METRICS[-1]._replace(name="quiver.seal.planted")
    patch.setattr(metrics_page, "METRICS", (*METRICS, planted))


def _plant_setting(patch: pytest.MonkeyPatch) -> None:
    planted = create_model("Planted", __base__=GraphFile, planted=(int, 0))
    patch.setattr(config_page, "GraphFile", planted)


def _plant_spark_option(patch: pytest.MonkeyPatch) -> None:
    planted = create_model("Planted", __base__=SourceOptions, planted=(int, 0))
    patch.setattr(code_pages, "SourceOptions", planted)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("cli", _plant_option),
        ("cli", _plant_verb),
        ("errors", _plant_error),
        ("metrics", _plant_metric),
        ("config", _plant_setting),
        ("spark", _plant_spark_option),
    ],
)
def test_what_is_not_on_its_page_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REFERENCE / f"{name}.md").read_text()
    plant(monkeypatch)
    found = [real for _, told, real in CLAIMS[name](page) if told != real]
    assert any("planted" in str(real).lower() for real in found), found
