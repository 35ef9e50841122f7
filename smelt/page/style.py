"""The style sheet: light and dark, for wide screens and narrow ones."""

STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --card: #fff; --fg: #1c1e21; --dim: #5c6470; --line: #dfe2e6;
  --code: #f4f5f6; --link: #0b57b8; --bad: #b3261e; --badbg: #fdecea; --warn: #8a5300; --warnbg: #fff4de;
  --kernel: #dbe9fb; --kernelline: #4d86c9; --library: #fbeccb; --libraryline: #b98a24; --product: #e9defa;
  --productline: #8a63c4; --area: #8db4e3; --device: #d6a35c;
  --g0: #2f7de1; --g1: #1d9a6c; --g2: #c2571a; --g3: #8a4fd0; --g4: #b03a76; --g5: #6f7d11; }
@media (prefers-color-scheme: dark) { :root { --bg: #14161a; --card: #1b1e24; --fg: #e4e6ea; --dim: #9aa3af;
  --line: #31363f; --code: #15181d; --link: #82b4ff; --bad: #ff8a80; --badbg: #3b1d1c; --warn: #f2c572;
  --warnbg: #352a16; --kernel: #1e3350; --kernelline: #5f97db; --library: #3d3317; --libraryline: #c79a3a;
  --product: #33254a; --productline: #a583dd; --area: #3f6ea8; --device: #a8763a;
  --g0: #66a3f2; --g1: #4cc498; --g2: #f08b54; --g3: #b68bf0; --g4: #e57aae; --g5: #b4c23c; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--bg); color: var(--fg); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.2rem; }
h1 { font-size: 1.45rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1rem 0 .4rem; } h4 { font-size: .95rem; margin: .9rem 0 .3rem; }
h5 { font-size: .85rem; margin: .8rem 0 .2rem; color: var(--dim); }
h4, h2 small, .place { overflow-wrap: anywhere; } .place, h2 small { color: var(--dim); font-weight: normal; }
code, pre, .no { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
a { color: var(--link); } .quiet { color: var(--dim); margin: .3rem 0; }
section, .tiles { margin: 1rem 0; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; }
.say { background: var(--warnbg); color: var(--warn); border-radius: 8px; padding: .5rem .8rem; margin: 1rem 0; }
.say p { margin: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: .6rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .55rem .8rem; }
.tile b { display: block; font-size: 1.3rem; } .tile span { color: var(--dim); font-size: .85rem; }
.tile.bad b { color: var(--bad); }
.breaks li { margin: .4rem 0; overflow-wrap: anywhere; } .contents li { overflow-wrap: anywhere; }
.source, .scroll, pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--code); }
pre { padding: .6rem .8rem; margin: .4rem 0; max-height: 34rem; overflow: auto; }
.lines { display: grid; min-width: max-content; padding: .3rem 0; }
.line { display: grid; grid-template-columns: 3.4rem 1.6rem 1fr; align-items: stretch; }
.line:target, .elsewhere:target { outline: 2px solid var(--link); }
.line code { white-space: pre; padding: 0 1rem 0 .4rem; tab-size: 4; }
.no { color: var(--dim); text-align: right; padding-right: .6rem; user-select: none; }
.bars { display: flex; gap: 2px; } .bars i { flex: 1; max-width: 5px; }
i.g0 { background: var(--g0); } i.g1 { background: var(--g1); } i.g2 { background: var(--g2); }
i.g3 { background: var(--g3); } i.g4 { background: var(--g4); } i.g5 { background: var(--g5); }
summary i { display: inline-block; width: .7em; height: .7em; border-radius: 2px; }
.line.broken { background: var(--badbg); } .line.again { background: var(--warnbg); }
.notes { padding: .15rem .6rem .3rem 5.2rem; max-width: min(76rem, calc(100vw - 4.2rem)); position: sticky; left: 0; }
.note { font-size: .86rem; overflow-wrap: anywhere; border-left: 3px solid var(--line); padding-left: .6rem;
  margin: .2rem 0; }
.note ul { margin: .2rem 0; padding-left: 1.1rem; } .note code { white-space: pre-wrap; }
.note.break { border-color: var(--bad); } .note.break > b { color: var(--bad); }
.note.recompile { border-color: var(--warn); } .note.recompile > b { color: var(--warn); }
.note.guards { color: var(--dim); }
.others { margin: .6rem 0; } .elsewhere { margin-top: .3rem; overflow-wrap: anywhere; }
.elsewhere + .notes { padding-left: 1rem; }
summary { cursor: pointer; } .version { border-top: 1px solid var(--line); margin-top: .9rem; padding-top: .7rem; }
.folded { margin: .5rem 0; }
.program { margin: .3rem 0 1rem; }
.picture { max-height: 60vh; overflow: auto; text-align: center; }
.graph { display: inline-block; font: 12px system-ui, "DejaVu Sans", sans-serif; }
.graph text { text-anchor: middle; fill: var(--fg); } .graph .where { fill: var(--dim); font-size: 10.5px; }
.graph .edges path { fill: none; stroke: var(--dim); stroke-width: 1.2; opacity: .6; }
.box rect { stroke-width: 1.3; } .box:hover rect { stroke-width: 2.6; }
.box.kernel rect { fill: var(--kernel); stroke: var(--kernelline); }
.box.library rect { fill: var(--library); stroke: var(--libraryline); }
.box.product rect { fill: var(--product); stroke: var(--productline); }
.units { margin: .6rem 0; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.unit { display: grid; grid-template-columns: 1fr 5.6rem 5.2rem 5.2rem 4rem 4.4rem; gap: .5rem; padding: .3rem .7rem; }
.unit > span { overflow-wrap: anywhere; } .unit > span + span { text-align: right; }
.unit small { color: var(--dim); }
.heads { color: var(--dim); font-size: .82rem; background: var(--code); }
.kernel { border-top: 1px solid var(--line); border-left: 4px solid var(--kernelline); }
.kernel.library { border-left-color: var(--libraryline); } .kernel.product { border-left-color: var(--productline); }
.kernel > summary { list-style: none; } .kernel > summary::-webkit-details-marker { display: none; }
.kernel > summary:hover, .kernel[open] > summary { background: var(--code); }
.inside { padding: .2rem .8rem .6rem; font-size: .9rem; overflow-wrap: anywhere; position: relative; }
.inside p { margin: .3rem 0; } .origins { margin: .2rem 0; padding-left: 1.2rem; }
.anchor { position: absolute; top: -2.2rem; } .anchor:target ~ p:first-of-type { font-weight: bold; }
.curve { width: 100%; max-width: 760px; height: auto; display: block; font: 11px system-ui, "DejaVu Sans", sans-serif; }
.curve .area { fill: var(--area); opacity: .75; } .curve .device { fill: var(--device); opacity: .6; }
.curve .grid line { stroke: var(--line); } .curve .marks line { stroke: var(--bad); stroke-dasharray: 3 3; }
.curve text { fill: var(--dim); } .curve .under { text-anchor: middle; }
.curve .left, .curve .right { text-anchor: end; }
.shares { display: grid; grid-template-columns: max-content minmax(40px, 420px) max-content; gap: .2rem .7rem;
  align-items: center; font-size: .88rem; }
.shares svg { width: 100%; height: .8rem; } .shares rect { fill: var(--area); }
@media (max-width: 640px) {
  body { font-size: 14px; } header, main { padding: 0 .5rem; } section { padding: .7rem; border-radius: 8px; }
  .line { grid-template-columns: 2.6rem 1rem 1fr; } .notes { padding-left: .6rem; max-width: calc(100vw - 2.6rem); }
  .heads { display: none; } .unit { grid-template-columns: 1fr 1fr; gap: .1rem .6rem; }
  .unit > span:first-child { grid-column: 1 / -1; } .unit > span + span { text-align: left; color: var(--dim); }
  .unit > span[data-is]::before { content: attr(data-is) " "; font-size: .8rem; }
  .shares { grid-template-columns: max-content 1fr max-content; } }
@media print { .picture, pre { max-height: none; } }
"""
