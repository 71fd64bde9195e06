"use strict";
// The page of `milepost plan`: its plots, tables that sort, and a list of numbers that can be searched.
(() => {
  const { data, draw, sortable, start } = page;
  const all = [...document.querySelectorAll(".number-of")];
  const groups = [...document.querySelectorAll(".group")];
  const opened = groups.map((group) => group.open);
  const texts = new Map();
  const textOf = (one) => {
    if (!texts.has(one)) {
      const parts = [...one.querySelectorAll("summary, .about")].map((part) => part.textContent);
      texts.set(one, parts.join(" ").toLowerCase());
    }
    return texts.get(one);
  };

  // What is found is shown, in groups that open for it and close again with the search.
  function search(box, found) {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const one of all) {
      one.hidden = !words.every((word) => textOf(one).includes(word));
      count += !one.hidden;
    }
    groups.forEach((group, i) => {
      group.hidden = !group.querySelector(".number-of:not([hidden])");
      group.open = words.length ? !group.hidden : opened[i];
    });
    found.textContent = `${count.toLocaleString("en")} of ${all.length.toLocaleString("en")}`;
  }

  // A link to a number opens it, whatever the search has hidden.
  function openTarget() {
    const target = all.find((one) => `#${one.id}` === location.hash);
    if (!target) return;
    const group = target.closest(".group");
    target.hidden = group.hidden = false;
    target.open = group.open = true;
    target.scrollIntoView({ block: "nearest" });
  }

  function listen() {
    const box = document.getElementById("wanted");
    const found = document.getElementById("found");
    box.closest(".tools").hidden = false;
    box.oninput = () => search(box, found);
    document.getElementById("fold").onclick = () => all.forEach((one) => { one.open = false; });
    addEventListener("hashchange", openTarget);
    search(box, found);
    openTarget();
  }

  document.querySelectorAll("table").forEach(sortable);
  if (all.length) listen();
  start(() => Promise.all(Object.entries(data.plots).map(([id, plot]) => draw(id, plot))));
})();
