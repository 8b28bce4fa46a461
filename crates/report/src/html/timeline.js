// Zoom and pan of the timeline. Reads the data table of the drawing.
for (const figure of document.querySelectorAll('figure.timeline')) {
  const slices = [...figure.querySelectorAll('tr[data-at]')].map(row => {
    const [start, took, track, color, pale] = row.dataset.at.split(' ').map(Number);
    return {start, end: start + took, track, color, pale, cells: [...row.cells].map(cell => cell.textContent)};
  });
  const all = +figure.dataset.all;
  const begin = figure.dataset.view.split(' ').map(Number);
  let [from, to] = begin;
  const tip = figure.querySelector('.tip');
  const canvas = figure.querySelector('.canvas');
  const svgs = [...figure.querySelectorAll('svg')];
  const make = (name, parent, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  const time = ns => {
    const [unit, size] = ns >= 1e9 ? ['s', 1e9] : ns >= 1e6 ? ['ms', 1e6] : ns >= 1e3 ? ['µs', 1e3] : ['ns', 1];
    return (ns / size).toPrecision(3) / 1 + ' ' + unit;
  };
  const draw = () => {
    for (const svg of svgs) {
      const width = svg.viewBox.baseVal.width;
      const scale = width / (to - from);
      const bars = svg.querySelector('.slices');
      bars.replaceChildren();
      for (const slice of slices) {
        if (slice.end < from || slice.start > to) continue;
        const left = Math.max(0, (slice.start - from) * scale);
        const wide = Math.min(width, (slice.end - from) * scale) - left;
        const top = slice.track * 44 + 20;
        make('rect', make('g', bars, {class: 'c' + slice.color}), {
          class: 'bar', x: left, y: top, width: Math.max(0.8, wide), height: 18, opacity: slice.pale ? 0.35 : 0.9,
        });
        if (wide > slice.cells[0].length * 6.7 + 8) {
          make('text', bars, {class: 'mid note', x: left + wide / 2, y: top + 13}).textContent = slice.cells[0];
        }
      }
      const marks = svg.querySelector('.marks');
      const y = +svg.dataset.height + 14;
      marks.replaceChildren();
      make('text', marks, {x: 0, y}).textContent = time(from);
      make('text', marks, {class: 'mid', x: width / 2, y}).textContent = time(to - from) + ' shown';
      make('text', marks, {class: 'end', x: width, y}).textContent = time(to);
    }
    figure.dataset.shown = from + ' ' + to;
  };
  const show = (low, high) => {
    const span = Math.min(all || 1, Math.max(10, high - low));
    from = Math.max(0, Math.min(low, all - span));
    to = from + span;
    tip.hidden = true;
    draw();
  };
  const zoom = (factor, at) => show(at - (at - from) * factor, at + (to - at) * factor);
  const steps = {
    in: () => zoom(0.5, (from + to) / 2),
    out: () => zoom(2, (from + to) / 2),
    left: () => show(from - (to - from) / 2, to - (to - from) / 2),
    right: () => show(from + (to - from) / 2, to + (to - from) / 2),
    all: () => show(0, all),
    reset: () => show(...begin),
  };
  const keys = {'+': 'in', '-': 'out', ArrowLeft: 'left', ArrowRight: 'right', 0: 'reset'};
  for (const hidden of figure.querySelectorAll('.zoom')) hidden.hidden = false;
  for (const button of figure.querySelectorAll('button[data-do]')) {
    button.addEventListener('click', steps[button.dataset.do]);
  }
  for (const svg of svgs) {
    const share = event => {
      const box = svg.getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    };
    const at = event => from + share(event) * (to - from);
    let began = null;
    let chosen = null;
    const drop = () => { if (chosen) chosen.remove(); began = chosen = null; };
    svg.addEventListener('pointerdown', event => { began = share(event); });
    svg.addEventListener('pointermove', event => {
      const width = svg.viewBox.baseVal.width;
      if (began !== null) {
        const [low, high] = [Math.min(began, share(event)), Math.max(began, share(event))];
        chosen = chosen || make('rect', svg, {class: 'chosen', y: 0, height: svg.dataset.height});
        chosen.setAttribute('x', low * width);
        chosen.setAttribute('width', (high - low) * width);
      }
      const box = svg.getBoundingClientRect();
      const height = (event.clientY - box.top) / box.height * svg.viewBox.baseVal.height;
      const slack = (to - from) / box.width * 2;
      const track = Math.floor(height / 44);
      const here = slices.filter(slice => slice.track === track
        && slice.start <= at(event) + slack && slice.end >= at(event) - slack);
      // The shortest of several: work lies on top of a longer wait.
      here.sort((one, other) => (one.end - one.start) - (other.end - other.start));
      tip.hidden = !here.length;
      if (!here.length) return;
      const [label, trackName, start, duration, roundTrip] = here[0].cells;
      tip.replaceChildren();
      const line = text => tip.appendChild(document.createElement('div')).append(text);
      tip.appendChild(document.createElement('b')).append(label + ', ' + duration);
      line(trackName + ', from ' + start);
      if (roundTrip !== '-') line('round trip ' + roundTrip);
      const room = canvas.clientWidth - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, event.clientX - box.left + 12)) + 'px';
      tip.style.top = (track * 44 + 42) / svg.viewBox.baseVal.height * box.height + 'px';
    });
    svg.addEventListener('pointerup', event => {
      const width = svg.getBoundingClientRect().width;
      const [one, other] = [began, share(event)];
      drop();
      if (one === null || Math.abs(one - other) * width < 5) return;
      const span = to - from;
      show(from + Math.min(one, other) * span, from + Math.max(one, other) * span);
    });
    for (const gone of ['pointerleave', 'pointercancel']) {
      svg.addEventListener(gone, () => { drop(); tip.hidden = true; });
    }
    svg.addEventListener('dblclick', steps.reset);
    // Without Ctrl the wheel scrolls the page.
    svg.addEventListener('wheel', event => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 0.8 : 1.25, at(event));
    }, {passive: false});
    svg.addEventListener('keydown', event => {
      const step = steps[keys[event.key]];
      if (!step) return;
      event.preventDefault();
      step();
    });
  }
}
