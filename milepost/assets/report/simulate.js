"use strict";
// The page of `milepost simulate`: plots of a workload that the reader chooses, and of one of its runs.
(() => {
  const { data: report, make, draw, fill, sortable, start } = page;
  let workload = 0;
  let run = 0;

  function drawAll() {
    const { plots, runs } = report.workloads[workload];
    const drawn = Object.entries({ ...plots, ...runs[run].plots }).map(([id, plot]) => draw(id, plot));
    const facts = runs[run].facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    document.querySelector(".facts").replaceChildren(...facts);
    return Promise.all(drawn);
  }

  function fillRuns() {
    const { runs, first } = report.workloads[workload];
    run = first;
    const select = document.getElementById("chosen");
    fill(select, runs.map((one) => one.name), (number) => { run = number; drawAll(); });
    select.value = run;
  }

  sortable(document.querySelector("table"));
  if (report.workloads.length > 1) {
    document.querySelector(".workloads").hidden = false;
    const select = document.getElementById("workload");
    fill(select, report.workloads.map((one) => one.name), (number) => { workload = number; fillRuns(); drawAll(); });
  }
  fillRuns();
  start(drawAll);
})();
