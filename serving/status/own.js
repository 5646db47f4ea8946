// The script of a developer's own page: opts out and in again, and asks to be forgotten.
"use strict";
{
  const ANSWER_MS = 15000, POLL_MS = 2000;
  const at = (name) => document.getElementById(name);
  const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  const { user, token, forgetting } = at("choose").dataset;
  const say = (words) => { at("stands").textContent = words; };

  // The token goes into this header: a cookie or a remembered password would be sent for other pages, too.
  const call = async (path, sent) => {
    const headers = { Authorization: "Bearer " + token, "Content-Type": "application/json" };
    const options = { headers, credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(ANSWER_MS) };
    const answer = await fetch(path, sent ? { ...options, method: "POST", body: JSON.stringify({ user, ...sent }) } : options);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    return found;
  };

  const follow = async (stands) => {
    for (;;) {
      say(stands.state + ": " + stands.message);
      if (stands.state !== "waiting") return;
      await wait(POLL_MS);
      try {
        stands = await call("me/forget");
      } catch (error) {
        say("waiting: " + error.message);
      }
    }
  };

  at("opt-out")?.addEventListener("click", async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    try {
      await call("me/opt-out", { opted_out: button.dataset.optedOut === "true" });
      location.reload();
    } catch (error) {
      say("refused: " + error.message);
      button.disabled = false;
    }
  });

  const ask = (now) => {
    at("sure").hidden = !now;
    at("forget").disabled = now;
    at(now ? "confirm" : "forget").focus();
  };
  at("forget")?.addEventListener("click", () => ask(true));
  at("cancel")?.addEventListener("click", () => ask(false));
  at("confirm")?.addEventListener("click", async () => {
    at("sure").hidden = true;
    try {
      await call("me/forget", {});
      location.reload(); // what was shown of before is forgotten
    } catch (error) {
      say("refused: " + error.message);
      at("forget").disabled = false;
    }
  });

  if (forgetting === "waiting") follow({ state: "waiting", message: at("stands").textContent.replace(/^waiting: /, "") });
}
