"use strict";
// Tables are sorted by a click on a heading, figures fill the window on a click. Nothing is loaded or sent.
(function () {
  function key(cell) {
    var text = cell ? cell.textContent.trim().replace(/,/g, "") : "";
    var scaled = /^\((-?[\d.]+)[^)]*\)e(-?\d+)/.exec(text);
    if (scaled) { return parseFloat(scaled[1] + "e" + scaled[2]); }
    if (text === "" || text === "–") { return null; }
    var number = /^-?\d[\d.]*(e[+-]?\d+)?/i.exec(text);
    return number ? parseFloat(number[0]) : text.toLowerCase();
  }
  function sort(table, column, head) {
    var down = head.getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
    var rows = Array.prototype.slice.call(body.rows).map(function (row) { return [key(row.cells[column]), row]; });
    rows.sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      var words = typeof a[0] === "string" || typeof b[0] === "string";
      var order = words ? String(a[0]).localeCompare(String(b[0])) : a[0] - b[0];
      return down ? -order : order;
    });
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (cell) { cell.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.forEach(function (row) { body.appendChild(row[1]); });
  }
  function pressed(element, act) {
    element.tabIndex = 0;
    element.addEventListener("click", act);
    element.addEventListener("keydown", function (event) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
    });
  }
  document.querySelectorAll("table.table").forEach(function (table) {
    if (!table.tHead || table.tHead.rows.length !== 1 || table.querySelector("[rowspan]")) { return; }
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, column) {
      head.classList.add("sorts");
      pressed(head, function () { sort(table, column, head); });
    });
  });
  document.querySelectorAll("figure .wide").forEach(function (box) {
    box.classList.add("opens");
    box.title = "Click to enlarge";
    pressed(box, function () { box.parentElement.classList.toggle("large"); });
  });
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") {
      document.querySelectorAll("figure.large").forEach(function (figure) { figure.classList.remove("large"); });
    }
  });
})();
