"""Any sound graph file with the components of the tests, as plain data."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Everything YAML can hold and some of what it confuses.
texts = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["on", "1e3", "0x1F", "null", "~", "12:30", "", " a ", "#x", "- a", "${env:X}", "$${", "*a"]
    ),
    st.text(alphabet="${}env:AX ", max_size=10),
)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,10}", fullmatch=True)
sizes = st.integers(0, 2**40) | st.sampled_from(["32MB", "5 GiB", "1.5k", 7])
durations = st.floats(0, 1000) | st.sampled_from(["25ms", "2 h", 3])

auths = st.one_of(
    st.none(),
    st.fixed_dictionaries({"type": st.just("key"), "key": texts}),
    st.fixed_dictionaries({"type": st.just("name"), "name": texts}),
)
receivers = st.fixed_dictionaries(
    {},
    optional={
        "listen": st.sampled_from(["127.0.0.1:0", "[::1]:0", ":0"]),
        "limits": st.fixed_dictionaries({}, optional={"max_body": sizes, "timeout": durations}),
        "tokens": st.dictionaries(texts, texts, max_size=2),
        "auth": auths,
        "names": st.lists(texts, max_size=2),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "strict": st.booleans(),
    },
)
exporters = st.fixed_dictionaries({}, optional={"mark": texts, "url": texts})
deliveries = st.fixed_dictionaries(
    {},
    optional={
        "order": st.sampled_from(["received", "key"]),
        "retention_time": st.sampled_from(["90m", "72h", "3d", 3600]),
        "retention_size": st.none() | st.integers(2**25, 2**40),
        "retry_max": st.floats(0.1, 100),
        "on_full": st.sampled_from(["block", "drop_oldest"]),
        "poison": st.none() | st.fixed_dictionaries({}, optional={"pairs": st.integers(10, 64)}),
    },
)
quivers = st.fixed_dictionaries(
    {},
    optional={
        "segment": st.fixed_dictionaries({"target_size": st.sampled_from(["1MB", "8MB", 2**24])}),
        "wal": st.fixed_dictionaries({"flush_interval": durations}),
        "retention": st.fixed_dictionaries(
            {"size_cap": st.integers(2**30, 2**40)},
            optional={"max_age": st.none() | st.sampled_from(["90m", "3d", 0.5])},
        ),
    },
)


data_nodes = st.fixed_dictionaries(
    {"nodes": st.sampled_from([{"a": "h:1", "b": "[::1]:2"}, ["h:1", "h:2"], "h:1, h:2"])},
    optional={
        "replicas": st.sampled_from([1, 2]),
        "max_size": st.none() | st.integers(2**25, 2**28),
        "max_age": st.sampled_from(["90m", "3d", 3600]),
        "token": texts,
        "tls": st.sampled_from([None, {}, {"ca_file": "ca.pem"}]),
        "rate": st.none() | st.integers(1, 2**40),
        "nodes_file": st.sampled_from([None, "nodes.yaml"]),
        "nodes_dns": st.sampled_from([None, "service:1"]),
    },
)
# Longer than any other: it is nobody else's.
DATA_NODES = "the-data-nodes"


@st.composite
def graph_files(draw: st.DrawFn) -> dict[str, Any]:
    """Return a file: some receivers, one quiver, some exporters, perhaps a processor between."""
    found = draw(st.lists(names, min_size=4, max_size=7, unique_by=str.lower))
    hold, source, between, *ends = found
    nodes: dict[str, Any] = {
        source: {"kind": "receiver", "type": "toy", "to": hold, "config": draw(receivers)},
        hold: {"kind": "processor", "type": "quiver", "config": draw(quivers)},
        between: {"kind": "processor", "type": "drop", "to": ends[:1]},
    }
    for end in ends:
        nodes[end] = {"kind": "exporter", "type": "memory", "config": draw(exporters)}
        if draw(st.booleans()):
            nodes[end]["delivery"] = draw(deliveries)
    behind = draw(st.sampled_from([[between, *ends[1:]], ends, [ends[0]]]))
    if draw(st.booleans()):
        behind = [*behind, DATA_NODES]
        nodes[DATA_NODES] = {"kind": "exporter", "type": "nodes", "config": draw(data_nodes)}
    if draw(st.booleans()):
        nodes[hold]["to"] = behind
    else:
        nodes[hold]["out_ports"] = {"port": {"destinations": behind}}
    top = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "drain": st.floats(0, 1000),
                "statsd": st.none() | st.fixed_dictionaries({"interval": st.floats(1, 100)}),
                "logging": st.fixed_dictionaries({"max_line": st.integers(256, 9999)}),
                "dead_letters": st.fixed_dictionaries(
                    {"handlers": st.just({"tell.them": {"type": "memory"}})}
                ),
            },
        )
    )
    return {"data_dir": "./elsewhere/data", "nodes": nodes, **top}
