'use strict';
// Crosshair of the charts. Reads the data table of each chart, which is also there without script.
// Text is never inserted as markup.
for (const figure of document.querySelectorAll('figure.chart')) {
  const rows = [...figure.querySelectorAll('tr[data-x]')];
  const tip = figure.querySelector('.tip');
  if (!rows.length) continue;
  const at = rows.map(row => +row.dataset.x);
  const names = [...figure.querySelectorAll('thead th')].slice(1).map(th => th.textContent);
  const make = (name, parent, className) => {
    const element = parent.ownerSVGElement !== undefined
      ? document.createElementNS('http://www.w3.org/2000/svg', name)
      : document.createElement(name);
    element.setAttribute('class', className);
    parent.append(element);
    return element;
  };
  const shown = series => {
    const box = figure.querySelector('.k' + series + ' input');
    return !box || box.checked;
  };
  for (const svg of figure.querySelectorAll('svg')) {
    svg.querySelector('title').remove(); // aria-label has the same text; this avoids a second tooltip
    const [left, top, width, height] = svg.dataset.plot.split(' ').map(Number);
    const marks = make('g', svg, '');
    marks.style.display = 'none';
    const cross = make('path', marks, 'cross');
    const dots = names.map((_, n) => {
      const dot = make('circle', marks, 'dot c' + n % 6);
      dot.setAttribute('r', 4);
      return dot;
    });
    const hide = () => { marks.style.display = 'none'; tip.hidden = true; };
    svg.addEventListener('pointerleave', hide);
    svg.addEventListener('pointercancel', hide);
    const show = event => {
      const box = svg.getBoundingClientRect();
      const scale = box.width / svg.viewBox.baseVal.width;
      const share = ((event.clientX - box.left) / scale - left) / width;
      if (share < -0.03 || share > 1.03) return hide();
      let best = 0;
      at.forEach((x, n) => { if (Math.abs(x - share) < Math.abs(at[best] - share)) best = n; });
      const x = left + at[best] * width;
      cross.setAttribute('d', `M${x} ${top}v${height}`);
      tip.replaceChildren();
      make('b', tip, '').textContent = rows[best].cells[0].textContent;
      [...rows[best].cells].slice(1).forEach((cell, n) => {
        const known = cell.dataset.y !== undefined && shown(n);
        dots[n].style.display = known ? '' : 'none';
        if (!shown(n)) return;
        dots[n].setAttribute('cx', x);
        dots[n].setAttribute('cy', top + (1 - cell.dataset.y) * height || 0);
        const line = make('div', tip, 'c' + n % 6);
        make('i', line, '');
        line.append(names[n]);
        make('span', line, '').textContent = cell.textContent;
      });
      marks.style.display = '';
      tip.hidden = false;
      const room = figure.querySelector('.canvas').clientWidth - tip.offsetWidth;
      const beside = x * scale + (at[best] > 0.5 ? -tip.offsetWidth - 12 : 12);
      tip.style.left = Math.max(0, Math.min(room, beside)) + 'px';
    };
    svg.addEventListener('pointermove', show);
    svg.addEventListener('pointerdown', show);
  }
}
