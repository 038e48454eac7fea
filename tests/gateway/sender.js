// Sends telemetry by the JavaScript SDK of OpenTelemetry, as JSON:
//
//     node sender.js URL TIMEOUT_MS
//
// For each line that it reads it makes a span, a data point and a log record, and writes what became
// of each: {"kind": "traces", "ids": ["…"], "answered": true}. It ends when there are no more.
"use strict";

const readline = require("node:readline");
const { LoggerProvider, SimpleLogRecordProcessor } = require("@opentelemetry/sdk-logs");
const {
  AggregationTemporality,
  MeterProvider,
  PeriodicExportingMetricReader,
} = require("@opentelemetry/sdk-metrics");
const { BasicTracerProvider, SimpleSpanProcessor } = require("@opentelemetry/sdk-trace-base");
const { OTLPLogExporter } = require("@opentelemetry/exporter-logs-otlp-http");
const { OTLPMetricExporter } = require("@opentelemetry/exporter-metrics-otlp-http");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-http");

const [url, timeout] = process.argv.slice(2);

function pointIds(metrics) {
  return metrics.scopeMetrics
    .flatMap((scope) => scope.metrics)
    .flatMap((metric) => metric.dataPoints)
    .map((point) => point.attributes.id);
}

// Lets an exporter say what became of each export; nothing else is changed about it.
function noting(kind, exporter, idsOf) {
  const send = exporter.export.bind(exporter);
  exporter.export = (items, done) =>
    send(items, (result) => {
      const told = { kind, ids: idsOf(items), answered: result.code === 0 };
      process.stdout.write(`${JSON.stringify(told)}\n`);
      done(result);
    });
  return exporter;
}

function options(signal) {
  return { url: `${url}/v1/${signal}`, timeoutMillis: Number(timeout) };
}

const traces = noting("traces", new OTLPTraceExporter(options("traces")), (spans) =>
  spans.map((span) => span.spanContext().spanId),
);
const metrics = noting(
  "metrics",
  new OTLPMetricExporter({
    ...options("metrics"),
    temporalityPreference: AggregationTemporality.DELTA,
  }),
  pointIds,
);
const logs = noting("logs", new OTLPLogExporter(options("logs")), (records) =>
  records.map((record) => record.attributes.id),
);

const tracing = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(traces)] });
const reader = new PeriodicExportingMetricReader({
  exporter: metrics,
  exportIntervalMillis: 2 ** 30,
  exportTimeoutMillis: Number(timeout),
});
const metering = new MeterProvider({ readers: [reader] });
const logging = new LoggerProvider({ processors: [new SimpleLogRecordProcessor({ exporter: logs })] });

const tracer = tracing.getTracer("tests");
const counter = metering.getMeter("tests").createCounter("work");
const logger = logging.getLogger("tests");

// What became of it was told already.
function flush(provider) {
  return provider.forceFlush().catch(() => {});
}

async function main() {
  let number = 0;
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    number += 1;
    tracer.startSpan("work").end();
    await flush(tracing);
    counter.add(1, { id: String(number) });
    await flush(metering);
    logger.emit({ body: "worked", attributes: { id: String(number) } });
    await flush(logging);
  }
  process.exit(0);
}

main();
