// The status page's script: shows what has changed, and asks for moves by hand.
"use strict";
{
  const REFRESH_MS = 5000, ANSWER_MS = 15000;
  const at = (name) => document.getElementById(name);
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

  // --- what changes

  const shown = new Map(); // of each section, the HTML that it was made of
  const warn = (words) => {
    at("stale").textContent = words;
    at("stale").hidden = !words;
  };

  const replace = (section, fresh) => {
    // What a reader opened, scrolled or reached with the keyboard stays so.
    const open = new Set([...section.querySelectorAll("details[open]")].map((each) => each.dataset.key));
    const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const reachable = "a, summary, [tabindex]";
    const focused = [...section.querySelectorAll(reachable)].indexOf(document.activeElement);
    section.replaceChildren(...fresh.childNodes);
    Object.assign(section.dataset, fresh.dataset);
    section.querySelectorAll("details").forEach((each) => { each.open = open.has(each.dataset.key); });
    section.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
    if (focused >= 0) section.querySelectorAll(reachable)[focused]?.focus({ preventScroll: true });
  };

  const OF_TEST = ["reject", "pause", "resume"], OFFERED = [...OF_TEST, "back"];
  const kinds = [...document.querySelectorAll("#hand [data-kind]")];
  const offer = () => {
    const offers = at("now").dataset.offers.split(" ");
    for (const each of kinds) each.hidden = OFFERED.includes(each.dataset.kind) && !offers.includes(each.dataset.kind);
    at("previous").textContent = at("now").dataset.previous;
    const select = at("version"), before = select.value;
    select.replaceChildren(at("choices").content.cloneNode(true));
    if ([...select.options].some((each) => each.value === before)) select.value = before;
  };

  const chosen = () => new URLSearchParams(location.search).get("project") ?? "";
  const refresh = async () => {
    const project = chosen();
    const options = { credentials: "same-origin", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(ANSWER_MS) };
    const answer = await fetch("admin/live?project=" + encodeURIComponent(project), options);
    if (answer.status === 401) throw new Error("this browser is no longer logged in; open a link of `tabloop status`");
    if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? "HTTP " + answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (project !== chosen()) return; // another one was chosen meanwhile
    for (const section of fresh.querySelectorAll("section")) {
      if (shown.get(section.id) === section.outerHTML) continue;
      shown.set(section.id, section.outerHTML);
      replace(at(section.id), section);
      if (section.id === "now" && !asking()) offer();
    }
    const now = at("now").dataset;
    document.title = `tabloop${now.project && " " + now.project}: ${now.champion ? "version " + now.champion : "not ready"}`;
  };

  const follow = async () => {
    let since = new Date();
    for (;;) {
      await wait(REFRESH_MS);
      if (document.hidden) continue;
      try {
        await refresh();
        since = new Date();
        warn("");
      } catch (error) {
        warn(`As of ${since.toLocaleTimeString()}: ${error.message}`);
      }
    }
  };

  at("project")?.addEventListener("change", () => {
    const project = at("project").value;
    history.replaceState(null, "", project ? "?project=" + encodeURIComponent(project) : location.pathname);
    refresh().then(() => warn(""), (error) => warn(error.message));
  });

  // --- moves by hand

  const say = (words) => { at("outcome").textContent = words; };
  let kind = "", path = "", body = {};

  // The token goes into this header alone: a cookie or a remembered password would be sent for other pages, too.
  const call = async (path, sent) => {
    const headers = { Authorization: "Bearer " + at("token").value, "Content-Type": "application/json" };
    const options = { headers, credentials: "omit", cache: "no-store", redirect: "error" };
    const answer = await fetch(path, sent ? { ...options, method: "POST", body: JSON.stringify(sent) } : options);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error.message);
    return told;
  };

  const asking = () => at("version").disabled;
  const ask = (now) => {
    at("sure").hidden = !now;
    for (const each of [...kinds, ...["version", "reason", "token"].map(at)]) each.disabled = now;
  };

  for (const button of kinds) {
    button.addEventListener("click", () => {
      kind = button.dataset.kind;
      const now = at("now").dataset, ofTest = OF_TEST.includes(kind);
      const version = ofTest ? now.challenger : kind === "back" ? now.previous : at("version").value;
      path = "admin/" + (kind === "back" ? "rollback" : kind);
      body = { version, champion: now.champion, reason: at("reason").value.trim(), project: now.project };
      if (!body.version || !body.reason || !at("token").value) return say("Choose a version, and give a reason and the token.");
      const left = kind === "promote" ? "retired" : "rolled back";
      at("summary").textContent = kind === "pause"
        ? `The test of version ${version} is paused: developers keep their versions, only a breach ends it, and its time goes on.`
        : kind === "reject"
        ? `The test of version ${version} ends, and the version is rejected; version ${body.champion} stays champion.`
        : kind === "resume"
        ? `The test of version ${version} goes on.`
        : version === body.champion
        ? `Version ${version} stays champion; the paused test ends, and its challenger is rejected.`
        : `Version ${version} becomes champion; version ${body.champion} is ${left}, and a running test ends.`;
      say("");
      ask(true);
      at("confirm").focus();
    });
  }
  at("cancel").addEventListener("click", () => {
    ask(false);
    kinds.find((each) => each.dataset.kind === kind).focus();
  });
  at("confirm").addEventListener("click", async () => {
    at("sure").hidden = true;
    let asked = false;
    try {
      let told = await call(path, body);
      asked = true;
      while (told.state === "waiting") {
        say("waiting: " + told.message);
        await wait(2000);
        told = await call(`admin/requests/${told.id}?project=${encodeURIComponent(body.project)}`);
      }
      say(told.state + ": " + told.message);
    } catch (error) {
      say((asked ? "asked for, but its state is not known: " : "refused: ") + error.message);
    }
    ask(false);
    offer();
  });

  offer();
  follow();
}
