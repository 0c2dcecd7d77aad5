// Tables that a click on a heading sorts: good numbers first, then the other way round; what is missing stays last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), undefined, { numeric: true });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const direction = before ? (before === "ascending" ? "descending" : "ascending") : head.dataset.first;
      const sign = direction === "ascending" ? 1 : -1;
      const missing = row => row.cells[column].hasAttribute("data-missing");
      const rows = [...body.rows].sort((a, b) =>
        missing(a) - missing(b) || sign * compare(value(a, column), value(b, column)));
      body.append(...rows);
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction);
    });
  });
}
