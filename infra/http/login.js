
const say = text => { document.body.textContent = text; };
async function logIn() {
  const [, code, page] = /^([^/]*)(\/.*)?$/.exec(location.hash.slice(1));
  const root = location.origin + location.pathname.replace(/\/+$/, ""); // a proxy may serve the app under a path
  history.replaceState(null, "", root + "/?login");
  const headers = {"X-Login-Code": code};
  const answer = await fetch(root + "/?login", {method: "POST", credentials: "omit", headers});
  const text = await answer.text();
  if (!answer.ok) return say(text);
  const request = new XMLHttpRequest();
  request.open("GET", root + "/", true, "session", text);
  request.onload = () => request.status < 400 ? location.replace(root + (page || "/")) : say("the login failed: HTTP " + request.status);
  request.onerror = () => say("the server does not answer");
  request.send();
}
logIn();
