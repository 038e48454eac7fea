// The console's script: the token, live figures, charts. Everything else is made by the server.
"use strict";

(() => {
  const TOKEN = "holdfast-token";
  const byId = (id) => document.getElementById(id);

  // ------------------------------------------------------------------ the token
  // In this tab only, and in no cookie: nothing is sent along by itself. An address that
  // `holdfast console` printed has it behind the #, which no browser sends to a server.
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.has("token")) {
    sessionStorage.setItem(TOKEN, fragment.get("token"));
    history.replaceState(null, "", location.pathname + location.search);
  }
  const token = () => sessionStorage.getItem(TOKEN);
  const dialog = byId("unlock");
  const lock = byId("lock");

  const showLock = () => {
    lock.textContent = token() ? "Lock" : "Unlock";
    document.documentElement.dataset.unlocked = token() ? "yes" : "no";
  };
  const ask = (note) => {
    byId("unlock-note").textContent = note;
    byId("token").value = "";
    if (!dialog.open) dialog.showModal();
  };
  lock.addEventListener("click", () => {
    if (!token()) return ask("");
    sessionStorage.removeItem(TOKEN);
    location.reload();
  });
  byId("unlock-cancel").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", () => {
    const given = byId("token").value.trim();
    if (!given) return;
    sessionStorage.setItem(TOKEN, given);
    showLock();
    // What a page could not show without it is asked for again.
    document.querySelectorAll("[data-unlocks]").forEach((one) => htmx.trigger(one, "unlocked"));
    byId("message").replaceChildren();
  });
  showLock();

  document.addEventListener("htmx:configRequest", (event) => {
    if (token()) event.detail.headers["Authorization"] = "Bearer " + token();
  });
  // What was said of one action stays until the next.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.requestConfig.verb === "post") byId("message").replaceChildren();
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.xhr && event.detail.xhr.status === 401) {
      const had = token();
      sessionStorage.removeItem(TOKEN);
      showLock();
      ask(had ? "The token was not accepted." : "");
    }
  });
  // After an action the list of dead letters is another one.
  document.addEventListener("htmx:afterRequest", (event) => {
    const path = event.detail.requestConfig ? event.detail.requestConfig.path : "";
    if (!event.detail.successful || !path.startsWith("/actions/letters/")) return;
    byId("letter").replaceChildren();
    htmx.trigger(document.body, "changed-letters");
  });
  document.addEventListener("htmx:sendError", () => connection(false));

  // --------------------------------------------------------------- live figures
  const connection = (isOpen) => {
    const pill = byId("connection");
    const text = isOpen ? "live" : "no connection";
    if (pill.textContent !== text) pill.textContent = text;
    pill.dataset.state = isOpen ? "good" : "bad";
  };
  const each = (attribute, values, change) => {
    if (!values) return;
    document.querySelectorAll(`[${attribute}]`).forEach((element) => {
      const value = values[element.getAttribute(attribute)];
      if (value !== undefined) change(element, value);
    });
  };
  const live = new EventSource("/live");
  live.addEventListener("open", () => connection(true));
  live.addEventListener("error", () => connection(false));
  live.addEventListener("message", (event) => {
    const figures = JSON.parse(event.data);
    each("data-live", figures.texts, (element, text) => { element.textContent = text; });
    each("data-state-key", figures.states, (element, state) => { element.dataset.state = state; });
    each("data-part", figures.parts, (element, part) => { element.value = part; });
    connection(true);
  });
  addEventListener("pagehide", () => live.close());

  // --------------------------------------------------------------------- charts
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const PALETTE = ["--accent", "--uneasy", "--good", "--bad", "--soft"];
  const CHARTS = {
    rates: (name) => name === "accepted" || name.startsWith("sent:"),
    waiting: (name) => name.startsWith("waiting:"),
  };
  const label = (name) => name.replace(/^sent:/, "to ").replace(/^waiting:/, "");
  const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [4, 2]];

  const plot = (element, history) => {
    const names = Object.keys(history.series).filter(CHARTS[element.dataset.chart]);
    element.replaceChildren();
    if (!history.times_s.length || !names.length) {
      const empty = document.createElement("div");
      empty.className = "empty";
      empty.append(document.createElement("p"));
      empty.firstChild.textContent = "The first point comes after ten seconds.";
      element.append(empty);
      return;
    }
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, size: 46 };
    const series = names.map((name, index) => ({
      label: label(name),
      stroke: colour(PALETTE[index % PALETTE.length]),
      dash: DASHES[Math.floor(index / PALETTE.length) % DASHES.length],
      width: 1.6,
      points: { show: history.times_s.length < 3 },
      value: (_, value) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 })),
    }));
    new uPlot(
      {
        width: element.clientWidth || 400,
        height: 180,
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
        axes: [{ ...axis, size: 30 }, axis],
        series: [{ label: "at", value: "{HH}:{mm}:{ss}" }, ...series],
        cursor: { y: false },
      },
      [history.times_s, ...names.map((name) => history.series[name])],
      element,
    );
  };
  const charts = document.querySelectorAll("[data-chart]");
  const drawCharts = async () => {
    try {
      const answer = await fetch("/api/history");
      const found = await answer.json();
      charts.forEach((element) => plot(element, found));
    } catch {
      connection(false);
    }
  };
  if (charts.length) {
    drawCharts();
    setInterval(drawCharts, 10000);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
    let later = 0;
    addEventListener("resize", () => {
      clearTimeout(later);
      later = setTimeout(drawCharts, 200);
    });
  }
})();
