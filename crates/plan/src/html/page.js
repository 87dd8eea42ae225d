"use strict";
(() => {
  const STEP = 100;
  // A browser takes long to lay out more rows than this.
  const MOST = 10000;
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const rows = document.getElementById("rows");
  const find = document.getElementById("find");
  const told = document.getElementById("told");
  const more = document.getElementById("more");
  const all = document.getElementById("all");
  // A link is [node, network]; its text is made when somebody searches.
  const links = [];
  plan.nodes.forEach((node, n) => node[2].forEach((link, network) => { if (link) links.push([n, network]); }));
  let texts = null;
  let found = links;
  let shown = 0;

  const words = (link) => {
    const node = plan.nodes[link[0]], network = plan.networks[link[1]];
    const [addresses, gateways, cables] = node[2][link[1]];
    const parts = [node[0], plan.groups[node[1]], network.name, addresses, addresses.replace(/\/\d+/g, ""), gateways];
    if (network.rail !== null) parts.push("rail" + network.rail, "r" + network.rail);
    for (const [leaf, port, netdev, , vrf] of cables) {
      if (leaf !== null) parts.push(plan.leaves[leaf]);
      parts.push(port || "", netdev || "", vrf || "");
    }
    return (" " + parts.join(" ") + " ").toLowerCase();
  };

  // Links that have each word as a whole come first: 172.16.0.1 before 172.16.0.10. A word in quotes is always a whole.
  const search = (text) => {
    const wanted = text.toLowerCase().split(/\s+/).map((word) => word.replace(/^"|"$/g, "")).filter((word) => word);
    const quoted = text.toLowerCase().match(/"[^"\s]+"/g) || [];
    if (!wanted.length) return links;
    texts = texts || links.map(words);
    const whole = [], part = [];
    texts.forEach((text, i) => {
      if (!wanted.every((word) => text.includes(word))) return;
      if (!quoted.every((word) => text.includes(" " + word.slice(1, -1) + " "))) return;
      (wanted.every((word) => text.includes(" " + word + " ")) ? whole : part).push(links[i]);
    });
    return whole.concat(part);
  };

  const cell = (row, lines, name) => {
    const td = row.insertCell();
    const given = lines.filter((line) => line !== null && line !== undefined && line !== "");
    for (const line of given.length ? given : ["-"]) {
      const span = document.createElement("span");
      span.textContent = line;
      if (name) span.className = name;
      td.append(span);
    }
  };

  const show = (count) => {
    const end = Math.min(found.length, shown + count);
    const part = document.createDocumentFragment();
    const body = document.createElement("tbody");
    for (; shown < end; shown++) {
      const [n, at] = found[shown];
      const node = plan.nodes[n], network = plan.networks[at];
      const [addresses, gateways, cables] = node[2][at];
      const row = body.insertRow();
      cell(row, [node[0]]);
      cell(row, [plan.groups[node[1]]]);
      cell(row, [network.name], "chip r" + network.colour);
      cell(row, cables.map((cable) => cable[2]));
      cell(row, addresses.split(" "));
      cell(row, cables.map((cable) => cable[0] === null ? null : plan.leaves[cable[0]]));
      cell(row, cables.map((cable) => cable[1]));
      cell(row, gateways.split(" "));
      if (plan.mtu) cell(row, [...new Set(cables.map((cable) => cable[3]))]);
      if (plan.vrf) cell(row, cables.map((cable) => cable[4]));
    }
    part.append(...body.rows);
    rows.append(part);
    const left = found.length - shown;
    const number = (value) => value.toLocaleString("en");
    told.textContent = `${number(shown)} of ${number(found.length)} links are shown` +
      (found.length < links.length ? `, ${number(links.length)} are in the plan` : "");
    more.hidden = left <= 0;
    all.hidden = left <= 0 || found.length > MOST;
    more.textContent = `Show ${number(Math.min(STEP, left))} more`;
    all.textContent = `Show all ${number(found.length)}`;
  };

  const look = () => {
    found = search(find.value);
    rows.textContent = "";
    shown = 0;
    show(STEP);
    const hash = find.value.trim() ? "#find=" + encodeURIComponent(find.value.trim()) : "#links";
    try { history.replaceState(null, "", hash); } catch { /* Some viewers of attachments forbid it. */ }
  };

  let timer = 0;
  find.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 120); });
  more.addEventListener("click", () => show(STEP));
  all.addEventListener("click", () => show(found.length));
  for (const card of document.querySelectorAll("a.card")) {
    card.addEventListener("click", (event) => {
      event.preventDefault();
      find.value = '"' + card.dataset.group + '"';
      look();
      document.getElementById("links").scrollIntoView();
    });
  }
  const given = location.hash.match(/^#find=(.*)/);
  if (given) {
    try { find.value = decodeURIComponent(given[1]); } catch { /* Not a link of this page. */ }
    look();
    document.getElementById("links").scrollIntoView();
  } else {
    show(STEP);
  }
})();
