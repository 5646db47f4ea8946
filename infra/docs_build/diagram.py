"""Draw the pages' diagrams: a part of Mermaid's flowcharts as static SVG, so that a page needs no script and no other host.

The part: `flowchart LR`; a title, `accTitle: TEXT`; nodes `id[Text]`, `id(Text)` (people) and `id[(Text)]` (a store), with
`<br>` between lines; and arrows `a --> b`, `a -->|text| b` and `a -.-> b`, also in chains. GitHub draws the same source.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise

CHARACTER, LINE, FONT = 7.3, 18, 13
"""Width of a character, height of a line and size of the font, in pixels."""
PADDING, GAP, ROW_GAP, LABEL_GAP = 12, 44, 22, 16
NODE = re.compile(r"(?P<id>\w+)(?:\[\((?P<store>[^\])]+)\)\]|\[(?P<box>[^\]]+)\]|\((?P<person>[^)]+)\))?")
ARROW = re.compile(r"\s*(?P<arrow>-->|-\.->)(?:\|(?P<label>[^|]+)\|)?\s*")
BREAK = re.compile(r"<br\s*/?>")


class DiagramError(ValueError):
    """A line of a diagram is not in the part of Mermaid that is drawn here."""


@dataclass(frozen=True)
class Node:
    """A box and its place; (x, y) is its upper left corner."""

    name: str
    lines: tuple[str, ...]
    kind: str = "box"
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * CHARACTER + 2 * PADDING if self.lines else 0.0

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PADDING


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes."""

    source: str
    target: str
    label: str = ""
    dashed: bool = False


@dataclass
class Diagram:
    """What the source says."""

    title: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


def parse(source: str) -> Diagram:
    """Read a diagram. Raises DiagramError with the first line that is not understood."""
    lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if not lines or lines[0] != "flowchart LR":
        raise DiagramError(f"{lines[:1]}: expected a diagram to begin with `flowchart LR`")
    diagram = Diagram()
    for line in lines[1:]:
        if line.startswith("accTitle:"):
            diagram.title = line.partition(":")[2].strip()
        else:
            _parse_chain(line, diagram)
    if not diagram.title:
        raise DiagramError("expected a line `accTitle: TEXT`, which screen readers read in place of the drawing")
    return diagram


def _parse_chain(line: str, diagram: Diagram) -> None:
    position, previous, arrow = 0, "", None
    while position < len(line):
        node = NODE.match(line, position)
        if node is None:
            raise DiagramError(f"{line!r}: expected a node at character {position}, as id[Text]")
        name = _add_node(node, diagram)
        if arrow:
            diagram.edges.append(Edge(previous, name, arrow["label"] or "", arrow["arrow"] == "-.->"))
        position, previous = node.end(), name
        arrow = ARROW.match(line, position)
        if position < len(line) and arrow is None:
            raise DiagramError(f"{line!r}: expected an arrow at character {position}, as --> or -->|text|")
        position = arrow.end() if arrow else position
    if arrow:
        raise DiagramError(f"{line!r}: expected a node behind the last arrow")


def _add_node(match: re.Match[str], diagram: Diagram) -> str:
    name = match["id"]
    for kind in ("store", "box", "person"):
        if text := match[kind]:
            diagram.nodes[name] = Node(name, tuple(BREAK.split(text)), kind)
    diagram.nodes.setdefault(name, Node(name, (name,)))
    return name


def layers(diagram: Diagram) -> tuple[dict[str, int], set[Edge]]:
    """Return each node's column, by the longest path to it, and the arrows that lead back to an earlier column."""
    targets: dict[str, list[Edge]] = defaultdict(list)
    for edge in diagram.edges:
        targets[edge.source].append(edge)
    back: set[Edge] = set()
    order: list[str] = []
    state: dict[str, str] = {}

    def visit(name: str) -> None:
        state[name] = "open"
        for edge in targets[name]:
            if state.get(edge.target) == "open":
                back.add(edge)
            elif edge.target not in state:
                visit(edge.target)
        state[name] = "done"
        order.append(name)

    for name in diagram.nodes:
        if name not in state:
            visit(name)
    column = dict.fromkeys(diagram.nodes, 0)
    for name in reversed(order):
        for edge in targets[name]:
            if edge not in back:
                column[edge.target] = max(column[edge.target], column[name] + 1)
    return column, back


def place(diagram: Diagram) -> tuple[dict[str, Node], set[Edge], float, float]:
    """Return the placed boxes, the arrows that lead back, and width and height of what the boxes take.

    An arrow over a column gets a place below the column's boxes, a node without text of the name `waypoint` gives it.
    """
    column, back = layers(diagram)
    count = max(column.values()) + 1
    rows = [[node for node in diagram.nodes.values() if column[node.name] == number] for number in range(count)]
    for edge in diagram.edges:
        for number in range(column[edge.source] + 1, column[edge.target]):
            rows[number].append(Node(waypoint(edge, number), ()))
    heights = [sum(node.height for node in row) + ROW_GAP * (len(row) - 1) for row in rows]
    placed: dict[str, Node] = {}
    x = float(PADDING)
    for number, row in enumerate(rows):
        widest = max(node.width for node in row)
        y = PADDING + (max(heights) - heights[number]) / 2
        for node in row:
            placed[node.name] = replace(node, x=x + (widest - node.width) / 2, y=y)
            y += node.height + ROW_GAP
        words = [e.label for e in diagram.edges if e not in back and column[e.source] == number]
        x += widest + max(GAP, max(map(len, words), default=0) * CHARACTER * 0.9 + LABEL_GAP)
    right = max(node.x + node.width for node in placed.values()) + PADDING
    return placed, back, right, max(heights) + 2 * PADDING


def waypoint(edge: Edge, column: int) -> str:
    """Return the name of the place at which an arrow passes a column."""
    return f"{edge.source}>{edge.target}@{column}"


def svg(source: str) -> str:
    """Return a diagram as an SVG element without blank lines, in the colours of the text around it. Raises DiagramError."""
    diagram = parse(source)
    placed, back, width, height = place(diagram)
    below = height + LINE * len(back) + (PADDING if back else 0)
    parts = [
        f'<svg class="diagram" role="img" viewBox="0 0 {width:.0f} {below:.0f}" width="{width:.0f}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(diagram.title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    returning = sorted(back, key=lambda edge: placed[edge.source].x - placed[edge.target].x)
    for edge in diagram.edges:
        if edge in back:
            parts.append(_returning(edge, placed[edge.source], placed[edge.target], height + LINE * returning.index(edge)))
        else:
            between = [placed[name] for n in range(len(placed)) if (name := waypoint(edge, n)) in placed]
            parts.append(_forward(edge, [placed[edge.source], *between, placed[edge.target]]))
    parts += [_box(node) for node in placed.values() if node.lines]
    return "\n".join([*parts, "</svg>"])


def _forward(edge: Edge, stops: list[Node]) -> str:
    """Return an arrow from the right side of the first node, through the places between, to the left side of the last."""
    points = [(stops[0].x + stops[0].width, _middle(stops[0])), *((node.x, _middle(node)) for node in stops[1:])]
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        path += f"C{middle:.0f} {y0:.0f} {middle:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    (x0, y0), (x1, y1) = points[:2]
    return _arrow(edge, path, ((x0 + x1) / 2, (y0 + y1) / 2 - 5))


def _middle(node: Node) -> float:
    return node.y + node.height / 2


def _returning(edge: Edge, source: Node, target: Node, depth: float) -> str:
    """Return an arrow that leads back below the boxes, at a height."""
    x0, x1 = source.x + source.width / 2, target.x + target.width / 2
    path = f"M{x0:.0f} {source.y + source.height:.0f}V{depth:.0f}H{x1:.0f}V{target.y + target.height:.0f}"
    return _arrow(edge, path, ((x0 + x1) / 2, depth - 4))


def _arrow(edge: Edge, path: str, at: tuple[float, float]) -> str:
    dashes = ' stroke-dasharray="5 4"' if edge.dashed else ""
    text = f'<text class="label" x="{at[0]:.0f}" y="{at[1]:.0f}">{escape(edge.label)}</text>' if edge.label else ""
    return f'<path class="arrow" d="{path}"{dashes} marker-end="url(#tip)"/>{text}'


def _box(node: Node) -> str:
    radius = {"box": 4, "person": node.height / 2, "store": 4}[node.kind]
    shape = (
        f'<rect class="{node.kind}" x="{node.x:.0f}" y="{node.y:.0f}" width="{node.width:.0f}" height="{node.height:.0f}" '
        f'rx="{radius:.0f}"/>'
    )
    middle, first = node.x + node.width / 2, node.y + PADDING / 2 + FONT
    texts = [f'<text x="{middle:.0f}" y="{first + LINE * n:.0f}">{escape(line)}</text>' for n, line in enumerate(node.lines)]
    return shape + "".join(texts)
